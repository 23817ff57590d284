/* split_k.cuh: Y[R,N] = X[R,K] W[N,K]^T, where the tiles of persistent.cuh are at most half as many as SMs: the two blocks of a cluster
 * take a tile together, each one half of its k-blocks.
 *
 * A block has 64 of the tile's rows to finish: those of its warpgroup that has its rank. The other warpgroup's sums go to the other
 * block, into the shared memory of the warp there that has the same rows, which adds the two and stores them as epilogue.cuh
 * says. Of two sums the order is no matter, and each is over its half of K in order; where K is cut follows from K alone.
 *
 *   warps                        | do                                        | wait on                           | signal
 *   consumers of the own rank    | mainloop, addition, epilogue              | full, summed                      | empty
 *   consumers of the other rank  | mainloop, send their sums                 | full                              | empty, the other block's summed
 *   producer, one thread         | copies of rows and weights, prefetches    | empty, rows for the grid before   | full
 *
 * A block has one tile at most, and which one follows from the bucket. So its weights come into the pipeline before the rows are there.
 * The memory then has little to do, and weights of the layer's experts may be prefetched into L2 (common/prefetch.cuh).
 *
 * Bound, of 132 blocks: what L2 gives. A stage of 128 weight rows is 32 KB for 512 cycles, and blocks that have other
 * stages than their neighbours share nothing. The sums that change places are 64 rows by WIDTH floats, both ways at once.
 * 509 rows by 2048 x 2048, added to h, take 15.8 us on an H200, 270 TFLOP/s (profiles/results/kernels-heads-h200-2026-11-28.txt).
 *
 * K is a multiple of 32, at least 96, so that each block has a k-block; N anything; every array starts on 16 bytes. Needs sm_90a.
 */
#pragma once

#include "common/prefetch.cuh"
#include "persistent/persistent.cuh"

/* What a block has: the pipeline of Tile, then a warp's place for the other block's sums, and later for its finished rows. */
template <class Tile>
struct PersistentSplitK : Tile {
  static constexpr uint32_t SPLIT_K = 2;  /* blocks */
  static constexpr uint32_t FRAGMENTS = Tile::WIDTH / 8;  /* of which a thread has four sums each */
  static constexpr uint32_t WARP_BYTES = FRAGMENTS * WARP * sizeof(float4), GROUP_BYTES = GMMA_GROUP / WARP * WARP_BYTES;
  static constexpr uint32_t BARRIERS = Tile::STAGES * Tile::STAGE_BYTES + GROUP_BYTES;
  static constexpr uint32_t SHARED = BARRIERS + (2 * Tile::STAGES + 1) * sizeof(uint64_t);
  static_assert(Tile::MULTICAST == 1 && !Tile::GATHERS, "the blocks of a cluster share no weights");
  static_assert(PERSISTENT_GROUPS == SPLIT_K, "a warpgroup's rows for each block to finish");
  static_assert(Tile::OUT_BYTES <= WARP_BYTES, "finished rows lie where sums came");
  static_assert(SHARED <= 227 * 1024, "what a block may have");

  /* This block's k-blocks. */
  uint32_t first, steps;
  __device__ inline PersistentSplitK(uint32_t k_blocks, uint32_t rank) {
    const uint32_t cut = (k_blocks + 1) / 2;
    first = rank > 0 ? cut : 0, steps = rank > 0 ? k_blocks - cut : cut;
  }

  /* A warp's sums to its like in block `to`, at what is `at` here. */
  static __device__ inline void send(const typename Tile::Acc &acc, const char *at, uint32_t to, const uint64_t *summed) {
    const uint32_t there = shared_address(at) + threadIdx.x % WARP * sizeof(float4), counted = shared_address(summed);
#pragma unroll
    for (uint32_t i = 0; i < FRAGMENTS; i++) store4_to_block(there + i * WARP * sizeof(float4), to, fragment(acc, i), counted);
  }

  /* Sums that have come, added to those of the same rows here. */
  static __device__ inline void add(typename Tile::Acc &acc, const char *at) {
    const float4 *from = reinterpret_cast<const float4 *>(at) + threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
      const float4 v = from[i * WARP];
      acc[4 * i] += v.x, acc[4 * i + 1] += v.y, acc[4 * i + 2] += v.z, acc[4 * i + 3] += v.w;
    }
  }
};

template <class Tile>
__device__ inline void persistent_split_k(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product,
                                          const tg_prefetch_args &prefetch) {
  using SplitK = PersistentSplitK<Tile>;
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];
  PersistentPipeline<Tile> pipe(persistent_shared, SplitK::BARRIERS);
  uint64_t *summed = pipe.empty + Tile::STAGES;
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), rank = cluster_rank();
  const SplitK run(product.k_blocks(), rank);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    pipe.init();
    barrier_init(summed, 1);
    barriers_ready();
    barrier_arrive_expecting(summed, SplitK::GROUP_BYTES);
  }
  __syncthreads();
  cluster_arrive();
  auto scheduler = PersistentScheduler<Tile>::of_bucket(product);
  const uint32_t t = blockIdx.x / SplitK::SPLIT_K;
  const bool produces = threadIdx.x == PERSISTENT_GROUPS * GMMA_GROUP;
  uint32_t begun = 0;
  Prefetcher prefetcher(prefetch, run.steps, Tile::STAGES);
  if (produces) {
    tensor_map_prefetch(x_map);
    begun = persistent_begin(pipe, w_map, product, scheduler.tile(t), run.first, run.steps);
  }
  __syncwarp();
  cluster_wait();  /* the other block has its barriers */
  wait_for_earlier_kernels();
  if (!produces) scheduler.count_rows(product);  /* what it copies does not depend on how many rows there are */
  const PersistentWorkTile tile = scheduler.tile(t);
  if (produces) persistent_copy(pipe, x_map, w_map, product, tile, run.first, run.steps, begun, [&] { prefetcher.issue(); });
  if (group == PERSISTENT_GROUPS) return;
  if (tile.rows <= group * GMMA_M) {  /* of both blocks: nobody waits for its sums */
    persistent_skip(pipe, group, run.steps);
    return;
  }
  typename Tile::Acc acc;
  persistent_multiply(acc, pipe, group, run.steps);
  char *place = pipe.stages + Tile::STAGES * Tile::STAGE_BYTES + of_warp(threadIdx.x % GMMA_GROUP / WARP) * SplitK::WARP_BYTES;
  if (group != rank) {
    SplitK::send(acc, place, group, summed);
    return;
  }
  barrier_wait_cluster(summed, 0);
  SplitK::add(acc, place);
  __syncwarp();  /* all have read what finished rows are written over */
  persistent_epilogue<Tile>(acc, place, product, tile);
  bulk_done();
}

/* Maps and arguments as PERSISTENT_DENSE has them.
 * Launch: block = PERSISTENT_THREADS; cluster = 2; grid = two blocks for each tile of the bucket, at most a block an SM. */
#define PERSISTENT_SPLIT_K(NAME, ...)                                                                                         \
  PERSISTENT_TILE(NAME, PersistentSplitK<__VA_ARGS__>)                                                                        \
  extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)                                                         \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const tg_persistent_args a) {            \
    persistent_split_k<__VA_ARGS__>(&x, &w, persistent_product<false>(a, a.epilogue), a.prefetch);                                                 \
  }
