/* dense_conv.cuh: a conv layer's in-projection, gates and short convolution in one, for decode steps (dense.cuh):
 *
 *   (B, C, X) = W x[r,:] + bias                                      rounded to the operand type
 *   u = B X                                                          likewise
 *   y[r,:] = C (sum_j taps[:,j] u[p-(L-1)+j,:] + taps_bias)          and u becomes the state's newest column
 *
 * conv.cu has the rest of the formula. A tile is WIDTH channels, that is rows c, H + c and 2H + c of W, a warpgroup each. A
 * thread has four channels of a row at a time, and does all that they need, their state too.
 *
 * Bound: memory, 3 H^2 sizeof(W) bytes; H is a multiple of WIDTH.
 * Measured on an H200 in bf16, H = 2048 (floor; how: profiles/README.md): 12.6 us (5.5) at 64 rows, 17.7 (8.1) at 256.
 *
 * Launch: block = THREADS, grid = (clusters of blocks that share a tile, or of mates, H / WIDTH of them; rows of the bucket /
 * ROWS / MATES).
 */
#ifndef TAILGRAPH_DENSE_CONV_CUH
#define TAILGRAPH_DENSE_CONV_CUH

#include "dense.cuh"

/* Four sums as the operand type holds them. */
template <typename T>
__device__ inline float4 held4(float4 v) {
  return make_float4(float(T(v.x)), float(T(v.y)), float(T(v.z)), float(T(v.w)));
}

/* y[R,H], columns[slots,L-1,H], bias[3H] or null, taps[H,L], taps_bias[H] or null; maps as dense_product has them. */
template <class Tile>
__device__ inline void dense_conv(typename Tile::X *y, typename Tile::X *columns, const TensorMap *x_map, const TensorMap *w_map,
                                 const float *bias, const float *taps, const float *taps_bias, const tg_state *state,
                                 const tg_step *step, uint32_t hidden, uint32_t length, uint32_t stages) {
  using X = typename Tile::X;
  static_assert(Tile::GROUPS == 3, "B, C and X");
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * DENSE_MOST_STAGES + 1];
  let_next_kernel_start();
  DenseBlock<Tile> block(shared, barriers, stages);
  const uint32_t tile = blockIdx.x / (block.blocks * Tile::MATES);
  const uint32_t first_row = (blockIdx.y * Tile::MATES + (Tile::MATES > 1 ? cluster_rank() : 0)) * Tile::ROWS;
  const DenseRun run(hidden, block.rank, block.blocks);
  if (threadIdx.x >= Tile::CONSUMERS) {
    if (threadIdx.x > Tile::CONSUMERS) {
      wait_for_earlier_kernels();
    } else {
      const uint64_t policy = cache_policy(gridDim.y == 1), stays = cache_policy(false);
      block.produce(
          run.steps,
          [&](uint32_t u, char *to, uint64_t *barrier) {
#pragma unroll
            for (uint32_t g = 0; g < 3; g++)
              block.ask_for_weights(to + g * Tile::GROUP_BYTES, w_map, (run.first + u) * GMMA_K,
                                    g * hidden + tile * Tile::WIDTH, barrier, policy);
          },
          [&](uint32_t u, char *to, uint64_t *barrier) {
            tensor_copy(to, x_map, (run.first + u) * GMMA_K, first_row, barrier, stays);
          },
          [] { wait_for_earlier_kernels(); });
    }
    __syncwarp();
    if (block.blocks > 1) cluster_wait();
    return;
  }
  const uint32_t all = __ldcg(&step->rows), rows = all > first_row ? min(all - first_row, Tile::ROWS) : 0;
  const tg_row *row_table = table<tg_row>(state, step->row_table) + first_row;
  y += (size_t)first_row * hidden;
  /* Of this thread's rows the same four channels, from c on. */
  constexpr uint32_t FOURS = Tile::WIDTH / 4, TURNS = (Tile::ROWS * FOURS + Tile::CONSUMERS - 1) / Tile::CONSUMERS;
  static_assert(Tile::CONSUMERS % FOURS == 0, "a thread's channels are those of its first row");
  const uint32_t items = block.rows() * FOURS, column = threadIdx.x % FOURS * 4, c = tile * Tile::WIDTH + column;
  const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto add = [](float4 sum, float4 u, float4 w) {
    return make_float4(fmaf(w.x, u.x, sum.x), fmaf(w.y, u.y, sum.y), fmaf(w.z, u.z, sum.z), fmaf(w.w, u.w, sum.w));
  };
  auto tap = [&](uint32_t j) {
    const float *w = taps + (size_t)c * length + j;
    return make_float4(w[0], w[length], w[2 * length], w[3 * length]);
  };
  /* What the taps make of the columns from before the step, which move on by one meanwhile; before position 0 there was
   * nothing. Only this kernel has to do with them, and no step overlaps the one before it, so all that may be done before
   * the wait, past the first-level cache (pdl.cuh). */
  auto state_of = [&](uint32_t slot, uint32_t j) { return columns + ((size_t)slot * (length - 1) + j) * hidden + c; };
  auto past = [&](X *state_of_row, uint32_t position) {
    float4 sum = zeros;
#pragma unroll 2
    for (uint32_t j = 0; j + 1 < length; j++) {
      const bool was = length - 1 - j <= position;
      const float4 u = was ? load4_past_l1(state_of_row + (size_t)j * hidden) : zeros;
      if (was) sum = add(sum, u, tap(j));
      if (j > 0) store4(state_of_row + (size_t)(j - 1) * hidden, u);
    }
    return sum;
  };
  const float4 newest = tap(length - 1);
  constexpr uint32_t NONE = 0xffffffffu;
  float4 pasts[TURNS];
  uint32_t slots[TURNS];  /* of each of this thread's rows, where it is one of the step's */
#pragma unroll
  for (uint32_t t = 0; t < TURNS; t++) {
    const uint32_t i = threadIdx.x + t * Tile::CONSUMERS, r = block.row(i / FOURS);
    pasts[t] = zeros, slots[t] = NONE;
    if (i >= items || r >= rows) continue;
    slots[t] = __ldcg(&row_table[r].slot);
    pasts[t] = past(state_of(slots[t], 0), __ldcg(&row_table[r].position));
  }
  wait_for_earlier_kernels();
  typename Tile::Acc acc;
  block.multiply(acc, run.steps);
  block.reduce(acc);
  block.put(acc);
#pragma unroll
  for (uint32_t t = 0; t < TURNS; t++) {
    const uint32_t i = threadIdx.x + t * Tile::CONSUMERS;
    if (slots[t] == NONE) continue;
    float4 of[3];
#pragma unroll
    for (uint32_t g = 0; g < 3; g++) {
      float4 v = block.get(i / FOURS, g * Tile::WIDTH + column);
      if (bias) {
        const float4 b = load4(bias + g * hidden + c);
        v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
      }
      of[g] = held4<X>(v);
    }
    const float4 now = held4<X>(make_float4(of[0].x * of[2].x, of[0].y * of[2].y, of[0].z * of[2].z, of[0].w * of[2].w));
    float4 sum = add(pasts[t], now, newest);
    if (taps_bias) {
      const float4 b = load4(taps_bias + c);
      sum = make_float4(sum.x + b.x, sum.y + b.y, sum.z + b.z, sum.w + b.w);
    }
    store4(y + (size_t)block.row(i / FOURS) * hidden + c,
           make_float4(of[1].x * sum.x, of[1].y * sum.y, of[1].z * sum.z, of[1].w * sum.w));
    if (length > 1) store4(state_of(slots[t], length - 2), now);
  }
}

#define DENSE_CONV(NAME, ...)                                                                                            \
  DENSE_TILE(NAME, __VA_ARGS__)                                                                                          \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                                 \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __VA_ARGS__::X *y,                 \
           __VA_ARGS__::X *columns, const float *bias, const float *taps, const float *taps_bias,                       \
           const tg_state *state, const tg_step *step, uint32_t hidden, uint32_t length, uint32_t stages) {             \
    GMMA_BODY(dense_conv<__VA_ARGS__>(y, columns, &x, &w, bias, taps, taps_bias, state, step, hidden, length, stages);) \
  }

#endif
