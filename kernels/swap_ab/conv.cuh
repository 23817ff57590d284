/* conv.cuh: a conv layer's in-projection, gates and short convolution in one, for decode steps (swap_ab/swap_ab.cuh):
 *
 *   (B, C, X) = W x[r,:] + bias                                      rounded to the operand type
 *   u = B X                                                          rounded to it too
 *   y[r,:] = C (sum_j taps[:,j] u[p-(L-1)+j,:] + taps_bias)          and u becomes the state's newest column
 *
 * conv/conv.cu has the rest of the formula. A tile is WIDTH channels, that is rows c, H + c and 2H + c of W, a warpgroup each, or of
 * weights in 8 bits two warps each. A thread does all that four channels of a row need, their state too. From 33 rows of 16 bits on, tiles have
 * the batch rows first (swap_ab_conv), which weights in 8 bits never have.
 *
 * Bound: memory, 3 H^2 sizeof(W) bytes. H is a multiple of WIDTH, and there are three taps.
 * Measured on an H200 in bf16 in the model, H = 2048 (floor; how: profiles/README.md): 7.9 us (5.5) at 16 rows, 10.5 at 32, 9.8
 * at 64, 11.5 at 128, 16.3 (8.1) at 256, 18.6 while 32 MiB of experts' weights come beside them.
 *
 * Launch: block = THREADS, grid = (clusters of blocks that split K or multicast, H / WIDTH of them; rows of the bucket / ROWS / MULTICAST).
 */
#pragma once

#include "common/prefetch.cuh"
#include "conv/args.h"
#include "swap_ab/swap_ab.cuh"

/* Four sums as the operand type holds them. */
template <typename T>
__device__ inline float4 held4(float4 v) {
  return make_float4(float(T(v.x)), float(T(v.y)), float(T(v.z)), float(T(v.w)));
}

constexpr uint32_t SWAP_AB_COLUMNS = TG_CONV_TAPS - 1;  /* of the state, oldest first */

/* What the convolution knows of FOURS fours of channels, from c on. */
template <typename X, uint32_t FOURS>
struct SwapAbTaps {
  X *columns;         /* [slots,SWAP_AB_COLUMNS,H] */
  const float *bias;  /* [H] or null */
  uint32_t hidden, c;
  float4 taps[TG_CONV_TAPS][FOURS];

  static __device__ inline float4 add(float4 sum, float4 u, float4 w) {
    return make_float4(fmaf(w.x, u.x, sum.x), fmaf(w.y, u.y, sum.y), fmaf(w.z, u.z, sum.z), fmaf(w.w, u.w, sum.w));
  }

  __device__ inline X *column(uint32_t slot, uint32_t j, uint32_t f) const {
    return columns + ((size_t)slot * SWAP_AB_COLUMNS + j) * hidden + c + 4 * f;
  }

  /* from[H,TG_CONV_TAPS]: those of four channels lie side by side. */
  __device__ inline void load(const float *from) {
    static_assert(TG_CONV_TAPS == 3, "three loads of four");
#pragma unroll
    for (uint32_t f = 0; f < FOURS; f++) {
      const float *w = from + (size_t)(c + 4 * f) * TG_CONV_TAPS;
      const float4 a = load4(w), b = load4(w + 4), d = load4(w + 8);
      taps[0][f] = make_float4(a.x, a.w, b.z, d.y), taps[1][f] = make_float4(a.y, b.x, b.w, d.z);
      taps[2][f] = make_float4(a.z, b.y, d.x, d.w);
    }
  }
};

constexpr uint32_t SWAP_AB_NO_SLOT = 0xffffffffu;

/* A row's state, of those channels. No step overlaps the one before it, so it may be read before the wait, past the first-level cache
 * (common/pdl.cuh). No column is looked at before the products are done: a block that finds its SM late has no time to wait for it. */
template <typename X, uint32_t FOURS>
struct SwapAbPast {
  uint32_t slot = SWAP_AB_NO_SLOT, position;
  Raw4<X> columns[SWAP_AB_COLUMNS][FOURS];

  using Taps = SwapAbTaps<X, FOURS>;

  /* Whether column j is of the sequence: before position 0 there was nothing. */
  __device__ inline bool was(uint32_t j) const { return SWAP_AB_COLUMNS - j <= position; }

  __device__ inline void find(const tg_row &row) { slot = __ldcg(&row.slot), position = __ldcg(&row.position); }

  __device__ inline void load(const Taps &conv) {
    if (slot == SWAP_AB_NO_SLOT) return;
#pragma unroll
    for (uint32_t j = 0; j < SWAP_AB_COLUMNS; j++)
#pragma unroll
      for (uint32_t f = 0; f < FOURS; f++) columns[j][f] = was(j) ? raw4_past_l1(conv.column(slot, j, f)) : Raw4<X>();
  }

  /* y of the f-th four's B, C and X, which had no bias yet; the columns move on by one, and u becomes the newest. */
  __device__ inline float4 convolve(const Taps &conv, uint32_t f, const float4 (&products)[3], const float *product_bias) const {
    const uint32_t c = conv.c + 4 * f;
    float4 of[3], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t g = 0; g < 3; g++) {
      of[g] = products[g];
      if (product_bias) of[g] = sum4(of[g], load4(product_bias + g * conv.hidden + c));
      of[g] = held4<X>(of[g]);
    }
#pragma unroll
    for (uint32_t j = 0; j < SWAP_AB_COLUMNS; j++) {
      const float4 u = load4(columns[j][f]);
      if (was(j)) sum = Taps::add(sum, u, conv.taps[j][f]);
      if (j > 0) store4(conv.column(slot, j - 1, f), u);
    }
    const float4 now = held4<X>(make_float4(of[0].x * of[2].x, of[0].y * of[2].y, of[0].z * of[2].z, of[0].w * of[2].w));
    sum = Taps::add(sum, now, conv.taps[SWAP_AB_COLUMNS][f]);
    if (conv.bias) sum = sum4(sum, load4(conv.bias + c));
    store4(conv.column(slot, SWAP_AB_COLUMNS - 1, f), now);
    return make_float4(of[1].x * sum.x, of[1].y * sum.y, of[1].z * sum.z, of[1].w * sum.w);
  }
};

/* Tiles of 64 by 64 read from shared memory as much as that gives. With batch rows first the weight rows of a tile's channels, B's, C's and
 * X's, are the instruction's N: a wide one reads less for the same work. And all three products of a channel come to one thread, so that
 * nothing changes hands after them. The thread has columns 8 j + 2 q and the next of a row. For these to be neighbours in y, the weight
 * rows of a tile come in another order: the map is of [3 H / WIDTH, WIDTH / 8 (2 rows apart), 4 (WIDTH / 4 apart), 2, H], and its boxes
 * are of one run of WIDTH channels, or a block's share of it. So a thread's channels are WIDTH / 4 from q WIDTH / 4 on.
 *
 * Maps else as swap_ab_product has them. */
template <class Tile>
__device__ inline void swap_ab_conv(const TensorMap *x_map, const TensorMap *w_map, const tg_conv_product_args &args,
                                    const tg_prefetch_args &prefetch, uint32_t hidden, uint32_t stages) {
  using X = typename Tile::X;
  static_assert(Tile::ROWS_FIRST ? Tile::WIDTH % (8 * Tile::MULTICAST) == 0 && !Tile::IS_BF16X3 : Tile::BOXES == 3 && Tile::SPLITS_K,
                "blocks issue whole atoms; B, C and X");
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[SWAP_AB_BARRIERS];
  let_next_kernel_start();
  /* With weight rows first all that is used behind the branch or the wait is read here: profiles/log/arguments.md. */
  const std::conditional_t<Tile::ROWS_FIRST, const tg_conv_product_args &, tg_conv_product_args> a = args;
  const float *const bias = a.bias;
  const uint32_t all = __ldcg(&a.step->rows);
  const uint64_t rows_at = __ldcg(&a.step->row_table);
  SwapAbBlock<Tile> block(shared, barriers, stages);
  const uint32_t tile = blockIdx.x / block.blocks / Tile::MULTICAST, rank = Tile::MULTICAST > 1 ? cluster_rank() : 0;
  const uint32_t first_row = (blockIdx.y * Tile::MULTICAST + rank) * Tile::ROWS;
  const SwapAbRun run(hidden, block.rank, block.blocks);
  if (!block.consumes()) {
    const uint64_t policy = cache_policy(gridDim.y == 1), stays = cache_policy(false);
    Prefetcher prefetcher(prefetch, run.steps, stages);
    block.produce(
        run.steps,
        [&](uint32_t s, char *to, uint64_t *barrier) {
#pragma unroll
          for (uint32_t g = 0; g < 3; g++) {
            const uint32_t k = (run.first + s) * GMMA_K;
            if constexpr (Tile::ROWS_FIRST) {
              constexpr uint32_t SHARE = Tile::WIDTH / 8 / Tile::MULTICAST;
              const uint32_t at[5] = {k, 0, 0, rank * SHARE, g * (hidden / Tile::WIDTH) + tile};
              char *there = to + (g * Tile::WIDTH + rank * SHARE * 8) * GMMA_ROW_BYTES;
              if constexpr (Tile::MULTICAST == 1)
                tensor_copy(there, w_map, at, barrier, policy);
              else
                tensor_multicast(there, w_map, at, barrier, (1u << Tile::MULTICAST) - 1, policy);
            } else {
              Tile::copy_weights(to + g * Tile::BOX_BYTES, w_map, run.first + s, g * hidden + tile * Tile::WIDTH, barrier, policy);
            }
          }
        },
        [&](uint32_t s, char *to, uint64_t *barrier) {
          tensor_copy(to, x_map, (run.first + s) * GMMA_K, first_row, barrier, stays);
          prefetcher.issue();
        },
        [] {});
    return;
  }
  const uint32_t rows = rows_from(first_row, all, Tile::ROWS);
  const tg_row *row_table = table<tg_row>(a.state, rows_at) + first_row;
  X *y = static_cast<X *>(a.y) + (size_t)first_row * hidden;
  /* This thread has FOURS fours of channels, from `column` of the tile on, of each of TURNS rows. */
  constexpr uint32_t IN_ROW = Tile::ROWS_FIRST ? 4 : Tile::WIDTH / 4, FOURS = Tile::WIDTH / 4 / IN_ROW;
  constexpr uint32_t TURNS = Tile::ROWS_FIRST ? 2 : (Tile::ROWS * IN_ROW + Tile::CONSUMERS - 1) / Tile::CONSUMERS;
  static_assert(Tile::CONSUMERS % IN_ROW == 0, "a thread's channels are those of its first row");
  const uint32_t items = block.rows() * IN_ROW;
  const uint32_t column = threadIdx.x % IN_ROW * FOURS * 4, c = tile * Tile::WIDTH + column;
  auto item = [](uint32_t t) { return threadIdx.x + t * Tile::CONSUMERS; };
  auto row = [&](uint32_t t) {
    return Tile::ROWS_FIRST ? threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + 8 * t : block.row(item(t) / IN_ROW);
  };
  SwapAbTaps<X, FOURS> conv{static_cast<X *>(a.columns), a.taps_bias, hidden, c};
  SwapAbPast<X, FOURS> pasts[TURNS];
#pragma unroll
  for (uint32_t t = 0; t < TURNS; t++) {
    const uint32_t i = item(t), r = row(t);
    if ((Tile::ROWS_FIRST || i < items) && r < rows) pasts[t].find(row_table[r]);
  }
  conv.load(a.taps);
#pragma unroll
  for (uint32_t t = 0; t < TURNS; t++) pasts[t].load(conv);
  [[maybe_unused]] float scales[2] = {};  /* of this thread's two weight rows */
  if constexpr (Tile::IN_8_BITS) {
    const uint32_t r = SwapAbBlock<Tile>::output();
    const float *of = a.w_scale + r / Tile::WIDTH * hidden + tile * Tile::WIDTH + r % Tile::WIDTH;
    if (SwapAbBlock<Tile>::counts()) scales[0] = of[0], scales[1] = of[8];
  }
  wait_for_earlier_kernels();
  typename Tile::Acc acc;
  block.multiply(acc, run.steps);
  if constexpr (Tile::IN_8_BITS) SwapAbBlock<Tile>::scale(acc, scales);
  if constexpr (!Tile::ROWS_FIRST) {
    block.send(acc);
    block.put(acc);
  }
#pragma unroll
  for (uint32_t t = 0; t < TURNS; t++) {
    if (pasts[t].slot == SWAP_AB_NO_SLOT) continue;
    /* With batch rows first there is no register for y until here. */
    X *to = (Tile::ROWS_FIRST ? static_cast<X *>(a.y) + (size_t)(first_row + row(t)) * hidden : y + (size_t)row(t) * hidden) + c;
#pragma unroll
    for (uint32_t f = 0; f < FOURS; f++) {
      float4 of[3];
#pragma unroll
      for (uint32_t g = 0; g < 3; g++) {
        if constexpr (Tile::ROWS_FIRST) {
          const float *v = acc + 4 * (g * Tile::WIDTH / 8 + 2 * f) + 2 * t;
          of[g] = make_float4(v[0], v[1], v[4], v[5]);
        } else {
          of[g] = block.get(item(t) / IN_ROW, g * Tile::WIDTH + column);
        }
      }
      store4(to + 4 * f, pasts[t].convolve(conv, f, of, bias));
    }
  }
}

/* PASSING: structs are passed by value, or as __grid_constant__ where that makes shorter machine code (profiles/log/arguments.md). */
#define SWAP_AB_CONV_KERNEL(PASSING, NAME, ...)                                                            \
  SWAP_AB_TILE(NAME, __VA_ARGS__)                                                                          \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                    \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                       \
           const PASSING tg_conv_product_args a, const PASSING tg_prefetch_args prefetch, uint32_t hidden, \
           uint32_t stages) {                                                                              \
    swap_ab_conv<__VA_ARGS__>(&x, &w, a, prefetch, hidden, stages);                                        \
  }
#define SWAP_AB_CONV(...) SWAP_AB_CONV_KERNEL(, __VA_ARGS__)
#define SWAP_AB_CONV_ROWS(...) SWAP_AB_CONV_KERNEL(__grid_constant__, __VA_ARGS__)
