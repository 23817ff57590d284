/* split_k.cuh: Y[R,N] = X[R,K] W[N,K]^T, where the tiles of persistent.cuh are at most half as many as SMs: the two blocks of a cluster
 * take a tile together, each one half of its k-blocks.
 *
 *   warps                        | do                                      | wait on                         | signal
 *   consumers of the own rank    | mainloop, addition, epilogue            | full, summed                    | empty
 *   consumers of the other rank  | mainloop, send their accumulators       | full                            | empty, the other block's summed
 *   producer, one thread         | copies of rows and weights, prefetches  | empty, rows for the grid before | full
 *
 * The 64 rows of the warpgroup that has a block's rank are the block's to finish: each warp of the other warpgroup sends its accumulators
 * to the shared memory of the other block's warp that has the same rows, which adds the two. With weights in 8 bits, whose warpgroups all have sums
 * of all rows, each warp sends those of the other block's 64 rows, and finishes the rest. The order of two does not matter, each is
 * over its half of K in order, and where K is cut follows from K alone.
 *
 * A block has one tile at most, which follows from the bucket, so its weights come into the pipeline before the rows are there. The memory
 * then has little to do, and weights of the layer's experts may be prefetched into L2 (common/prefetch.cuh).
 *
 * Bound, of 132 blocks: what L2 gives. A stage of 128 weight rows is 32 KB for 512 cycles, and blocks that have other stages than their
 * neighbours share nothing. 509 rows by 2048 x 2048, added to h, take 15.8 us on an H200, 270 TFLOP/s
 * (profiles/results/kernels-heads-h200-2026-11-28.txt).
 *
 * K is at least 96, so that each block has a k-block; else as persistent.cuh says.
 */
#pragma once

#include "common/prefetch.cuh"
#include "persistent/persistent.cuh"

/* A block's shared memory: the pipeline of Tile, then for each warp the other block's accumulators, and later its finished rows. */
template <class Tile>
struct PersistentSplitK : Tile {
  static constexpr uint32_t SPLIT_K = 2;  /* blocks */
  static constexpr uint32_t FRAGMENTS = Tile::E4M3 ? GMMA_M / 8 : Tile::WIDTH / 8;  /* sent, of which a thread has four sums each */
  static constexpr uint32_t WARP_BYTES = FRAGMENTS * WARP * sizeof(float4), GROUP_BYTES = GMMA_GROUP / WARP * WARP_BYTES;
  static constexpr uint32_t SENT_BYTES = Tile::E4M3 ? Tile::GROUPS * GROUP_BYTES : GROUP_BYTES;
  static constexpr uint32_t BARRIERS = Tile::STAGES * Tile::STAGE_BYTES + SENT_BYTES;
  static constexpr uint32_t SHARED = BARRIERS + (2 * Tile::STAGES + 1) * sizeof(uint64_t);
  static_assert(Tile::MULTICAST == 1 && !Tile::GATHERS, "the blocks of a cluster share no weights");
  static_assert(TG_PERSISTENT_ROWS == SPLIT_K * GMMA_M && Tile::OPERANDS == 1, "a warpgroup's rows for each block to finish");
  static_assert(Tile::OUT_BYTES <= (Tile::E4M3 ? GROUP_BYTES : WARP_BYTES), "finished rows lie where sums came");
  static_assert(SHARED <= 227 * 1024, "what a block may have");

  /* This block's k-blocks. */
  uint32_t first, steps;
  __device__ inline PersistentSplitK(uint32_t k_blocks, uint32_t rank) {
    const uint32_t cut = (k_blocks + 1) / 2;
    first = rank > 0 ? cut : 0, steps = rank > 0 ? k_blocks - cut : cut;
  }

  /* A warp's accumulators to its like in block `to`, at what is `at` here. */
  static __device__ inline void send(const float *acc, const char *at, uint32_t to, const uint64_t *summed) {
    const uint32_t there = shared_address(at) + threadIdx.x % WARP * sizeof(float4), counted = shared_address(summed);
#pragma unroll
    for (uint32_t i = 0; i < FRAGMENTS; i++) store4_to_block(there + i * WARP * sizeof(float4), to, make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]), counted);
  }

  /* What has come, added to the accumulators of the same rows. */
  static __device__ inline void add(typename Tile::Acc &acc, const char *at) {
    const float4 *from = reinterpret_cast<const float4 *>(at) + threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
      const float4 v = from[i * WARP];
      acc[4 * i] += v.x, acc[4 * i + 1] += v.y, acc[4 * i + 2] += v.z, acc[4 * i + 3] += v.w;
    }
  }
};

template <class SplitK>
__device__ inline void persistent_split_k(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product) {
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];
  PersistentPipeline<SplitK> pipe(persistent_shared, SplitK::BARRIERS);
  uint64_t *summed = pipe.empty + SplitK::STAGES;
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), rank = cluster_rank();
  const SplitK run(product.k_blocks(), rank);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    pipe.init();
    barrier_init(summed, 1);
    barriers_ready();
    barrier_arrive_expecting(summed, SplitK::SENT_BYTES);
  }
  __syncthreads();
  cluster_arrive();
  auto scheduler = PersistentScheduler<SplitK>::of_bucket(product);
  const uint32_t t = blockIdx.x / SplitK::SPLIT_K;
  const bool produces = threadIdx.x == SplitK::GROUPS * GMMA_GROUP;
  uint32_t begun = 0;
  Prefetcher prefetcher(product.prefetch, run.steps, SplitK::STAGES);
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
  if (group == SplitK::GROUPS) return;
  if (tile.rows <= (SplitK::E4M3 ? 0 : group * GMMA_M)) {  /* of both blocks: nobody waits for its sums */
    persistent_skip(pipe, group, run.steps);
    return;
  }
  typename SplitK::Acc acc;
  PersistentEpilogueOf<SplitK> epilogue;
  epilogue.begin(product, tile);
  persistent_multiply(acc, pipe, product, tile, group, run.steps);
  char *place = pipe.stages + SplitK::STAGES * SplitK::STAGE_BYTES + of_warp(threadIdx.x % GMMA_GROUP / WARP) * SplitK::WARP_BYTES;
  if constexpr (SplitK::E4M3) {
    char *of_group = pipe.stages + SplitK::STAGES * SplitK::STAGE_BYTES + group * SplitK::GROUP_BYTES;
    place += group * SplitK::GROUP_BYTES;
    constexpr uint32_t HALF = 4 * SplitK::FRAGMENTS;
#pragma unroll
    for (uint32_t i = 0; i < HALF; i++) {
      const float first = acc[i], second = acc[HALF + i];
      acc[i] = rank > 0 ? second : first, acc[HALF + i] = rank > 0 ? first : second;
    }
    SplitK::send(acc + HALF, place, rank ^ 1, summed);
    barrier_wait_cluster(summed, 0);
    SplitK::add(acc, place);
    PersistentWorkTile own = tile;
    own.first += rank * GMMA_M, own.rows = rows_from(rank * GMMA_M, tile.rows, GMMA_M);
    epilogue.store(acc, of_group, product, own);
    return;
  }
  if (group != rank) {
    SplitK::send(acc, place, group, summed);
    return;
  }
  barrier_wait_cluster(summed, 0);
  SplitK::add(acc, place);
  __syncwarp();  /* all have read what finished rows are written over */
  epilogue.store(acc, place, product, tile);
}

/* Launch: block = THREADS; cluster = 2; grid = two blocks for each tile of the bucket, at most a block an SM. */
#define PERSISTENT_SPLIT_K(NAME, ...) \
  PERSISTENT_KERNEL(NAME, persistent_split_k, persistent_product<false>(a, a.epilogue), PersistentSplitK<__VA_ARGS__>)
