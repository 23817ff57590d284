/* swap_ab.cuh: matrix products of decode steps of up to 256 rows, at the speed of memory: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Weight rows are the M operand of wgmma (64 a warpgroup), batch rows its N operand: all rows of the bucket, so that a weight crosses
 * memory once (roles: block.cuh). Weights depend on no kernel, so a whole pipeline of them is issued before the grid dependency wait;
 * where K is split, those that it has no room for are prefetched into L2 meanwhile.
 *
 * Where N has too few tiles to fill the GPU the blocks of a cluster split K: each takes a run of k-blocks, sends its sums of eight batch
 * rows in turn to the block that finishes those, and adds up its own in the order of the blocks. So the order of every sum follows from K
 * and the size of the cluster alone, and a row's bits do not depend on other rows.
 *
 * Blocks of a cluster may instead multicast, each with a whole K: the LM head's share the batch rows (head.cuh), an in-projection's the
 * weight rows (conv.cuh). Each issues its part of what they share, for both, so that it leaves L2 once.
 *
 * A group may have fewer weight rows than its instruction takes: the others' sums are of whatever lies there, and nothing reads them.
 *
 * Weights in 8 bits are the operand A in registers (wgmma/fragments.cuh). A block's sums are multiplied by the scales before they are sent.
 *
 * Bound of many rows, by hand: shared memory, of which an instruction of 64 by 64 takes all that it gives (profiles/log/dense.md,
 * "What blocks read, of many rows"). Measured on an H200 in bf16 in the model, 2048 outputs of 2048 that add to h (floor): 6.3 us
 * (1.8) at 64 rows, 7.7 at 128, 9.7 (2.7) at 256.
 *
 * N may be anything, of weights in 8 bits a multiple of 8, K is a multiple of 32 (what a copy finds past a matrix are zeros). Every array starts on 16 bytes. Needs sm_90a.
 */
#pragma once

#include "common/launch.cuh"
#include "swap_ab/block.cuh"

constexpr uint32_t SWAP_AB_MOST_BEYOND = 24;  /* stages that find no room in the pipeline, and are prefetched into L2 */
constexpr uint32_t SWAP_AB_MOST_AHEAD = 4;    /* fragments of which a thread loads what they are added to before their products */

/* y[R,N] as tiled/tiled.cuh's epilogues have it; maps of x[R,K], w[N,K] and w_pair[N,K], whose boxes are GMMA_K by ROWS and by WIDTH.
 * Tiles that do not split K are for TILED_SILU_MUL alone: WIDTH rows of both matrices (GROUPS is 2).
 * Launch: block = THREADS; grid = (a cluster a tile, of as many blocks as split K; rows of the bucket / ROWS). */
template <class Tile>
__device__ inline void swap_ab_product(const TensorMap *x_map, const TensorMap *w_map, const TensorMap *pair_map, const tg_swap_ab_args &a,
                                       uint32_t inner, uint32_t epilogue, uint32_t stages) {
  using X = typename Tile::X;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[SWAP_AB_BARRIERS];
  let_next_kernel_start();
  void *y = a.y;
  const float *bias = a.bias;
  const uint32_t n_total = a.n_total;
  SwapAbBlock<Tile> block(shared, barriers, stages);
  const uint32_t rank = block.rank, blocks = block.blocks, first_row = blockIdx.y * Tile::ROWS;
  constexpr bool PAIRED = !Tile::SPLITS_K;
  constexpr uint32_t OUTPUTS = PAIRED ? Tile::WIDTH : Tile::OUTPUTS;  /* of Y, in a tile */
  const uint32_t first = blockIdx.x / blocks * OUTPUTS;
  const SwapAbRun run(inner, rank, blocks);
  if (!block.consumes()) {
    const uint64_t policy = cache_policy(gridDim.y == 1), stays = cache_policy(false);
    block.produce(
        run.steps,
        [&](uint32_t s, char *to, uint64_t *barrier) {
#pragma unroll
          for (uint32_t g = 0; g < Tile::BOXES; g++)
            Tile::copy_weights(to + g * Tile::BOX_BYTES, PAIRED && g > 0 ? pair_map : w_map, run.first + s,
                               first + (PAIRED ? 0 : g * Tile::WIDTH), barrier, policy);
        },
        [&](uint32_t s, char *to, uint64_t *barrier) { tensor_copy(to, x_map, (run.first + s) * GMMA_K, first_row, barrier, stays); },
        [&] {
          if (PAIRED || blockIdx.y > 0) return;
          const uint32_t most = min(run.steps, stages + SWAP_AB_MOST_BEYOND);
          for (uint32_t s = stages; s < most; s++)
#pragma unroll
            for (uint32_t g = 0; g < Tile::BOXES; g++) Tile::prefetch_weights(w_map, run.first + s, first + g * Tile::WIDTH);
        });
    return;
  }
  /* The scales are those of this thread's two weight rows. */
  [[maybe_unused]] float scales[2];
  if constexpr (Tile::IN_8_BITS) {
    const uint32_t r = SwapAbBlock<Tile>::output();
    const bool of_pair = PAIRED && r >= Tile::WIDTH;
    const float *of = of_pair ? a.pair_scale : a.w_scale;
    const uint32_t n = first + r - (of_pair ? Tile::WIDTH : 0);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) scales[i] = n + 8 * i < n_total ? of[n + 8 * i] : 0.0f;
  }
  auto multiply = [&](auto &acc) {
    block.multiply(acc, run.steps);
    if constexpr (Tile::IN_8_BITS) SwapAbBlock<Tile>::scale(acc, scales);
  };
  wait_for_earlier_kernels();
  const uint32_t rows = rows_from(first_row, *a.count, Tile::ROWS);
  typename Tile::Acc acc;
  if constexpr (!PAIRED) {
    if (epilogue != TILED_STORE) {
      const bool adds = epilogue == TILED_ADD;
      float *to = static_cast<float *>(y) + (size_t)first_row * n_total;
      const uint32_t n = first + SwapAbBlock<Tile>::output(), q = threadIdx.x % 4 * 2;
      /* The v-th of this thread's four of the i-th fragment that this block sums. */
      auto there = [&](uint32_t i, uint32_t v) {
        return i < block.fragments() && block.row(8 * i) + q + v % 2 < rows && n + v / 2 * 8 < n_total;
      };
      auto at = [&](uint32_t i, uint32_t v) { return to + (size_t)(block.row(8 * i) + q + v % 2) * n_total + n + v / 2 * 8; };
      auto of_bias = [&](uint32_t v) { return bias && n + v / 2 * 8 < n_total ? bias[n + v / 2 * 8] : 0.0f; };
      constexpr uint32_t AHEAD = Tile::FRAGMENTS < SWAP_AB_MOST_AHEAD ? Tile::FRAGMENTS : SWAP_AB_MOST_AHEAD;
      float old[4 * AHEAD];
      const float biases[2] = {of_bias(0), of_bias(2)};
      /* Without a branch between the loads, which are of y's first element where there is nothing to add to. */
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++)
#pragma unroll
        for (uint32_t v = 0; v < 4; v++) old[4 * i + v] = adds ? *(there(i, v) ? at(i, v) : static_cast<const float *>(y)) : 0.0f;
      multiply(acc);
      block.send(acc);
      if (!SwapAbBlock<Tile>::counts()) return;
      auto store = [&](uint32_t i, float4 sum, auto added_to) {
        const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (uint32_t v = 0; v < 4; v++)
          if (there(i, v)) *at(i, v) = (bias ? of[v] + biases[v / 2] : of[v]) + added_to(v);
      };
      float4 sums[AHEAD];
      block.sum(sums, 0);
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++) store(i, sums[i], [&](uint32_t v) { return old[4 * i + v]; });
#pragma unroll 1
      for (uint32_t i = AHEAD; i < block.fragments(); i++) {
        float4 sum[1];
        block.sum(sum, i);
        store(i, sum[0], [&](uint32_t v) { return adds ? *at(i, v) : 0.0f; });
      }
      return;
    }
  }
  multiply(acc);
  if constexpr (!PAIRED) block.send(acc);
  block.put(acc);
  const bool aligned = n_total % 4 == 0;
  X *to = static_cast<X *>(y) + (size_t)first_row * n_total;
  constexpr uint32_t FOURS = OUTPUTS / 4;
  for (uint32_t i = threadIdx.x; i < block.rows() * FOURS; i += Tile::CONSUMERS) {
    const uint32_t r = block.row(i / FOURS), column = i % FOURS * 4, n = first + column;
    if (r >= rows || n >= n_total) continue;
    const uint32_t left = n_total - n;
    float4 v = block.get(i / FOURS, column);
    if (bias) add_bias4(v, bias, n, left);
    if constexpr (PAIRED) v = silu_mul(v, block.get(i / FOURS, Tile::WIDTH + column));
    put4(to + (size_t)r * n_total + n, v, left, aligned);
  }
}

/* For the launcher: rows, groups, weight rows of a group, threads, bytes of a stage, of the bf16x3 buffers before the pipeline, of what
 * lies behind it, of sums that change hands, of a fragment of another block's; blocks that multicast. */
#define SWAP_AB_TILE(NAME, ...)                                                                                            \
  LAUNCH_CONSTANTS(NAME##_tile, 10, __VA_ARGS__::ROWS, __VA_ARGS__::GROUPS, __VA_ARGS__::WIDTH, __VA_ARGS__::THREADS,      \
                   __VA_ARGS__::STAGE_BYTES, __VA_ARGS__::BUFFERS_BYTES, __VA_ARGS__::PAST_BYTES, __VA_ARGS__::OUT_BYTES, \
                   __VA_ARGS__::FRAGMENT_BYTES, __VA_ARGS__::MULTICAST)

#define SWAP_AB_PRODUCT(NAME, ...)                                                                \
  SWAP_AB_TILE(NAME, __VA_ARGS__)                                                                 \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                           \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,              \
           const __grid_constant__ TensorMap w_pair, const tg_swap_ab_args a, uint32_t inner,     \
           uint32_t epilogue, uint32_t stages) {                                                  \
    swap_ab_product<__VA_ARGS__>(&x, &w, &w_pair, a, inner, epilogue, stages);                    \
  }
