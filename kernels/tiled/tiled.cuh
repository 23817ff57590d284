/* tiled.cuh: matrix products with weights, dense and grouped by expert: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Weight rows are the M operand of the matrix instruction and batch rows its N operand, so that eight rows already fill one instruction
 * and a weight is read once for all rows of a tile. A block computes BN outputs of BR rows, K in stages of BK through a pipeline in
 * shared memory that cp.async fills; the accumulators then cross shared memory once more, so that outputs are stored along N. Every sum
 * is in an order that the tile alone fixes: a row's bits depend neither on the rows beside it nor on where in the tile it lies.
 *
 * Dense: block (x, y) has outputs x BN.. and rows y BR.. of the first *count rows (less `row_base`: X and Y start there). Grouped: block
 * (x, y) has expert tile y of the *count tiles that the router listed, consecutive places of the token sort; X's row at place p is
 * `gather[p]`, or p itself. Experts' weights and those in 8 bits are packed (common/packed.cuh), others lie row after row.
 *
 * Epilogues (v is the f32 sum, times the row's scale of weights in 8 bits, plus bias[n] where there is one):
 *   TILED_STORE      y[r,n] = v, in X's type
 *   TILED_STORE_F32  y[r,n] = v
 *   TILED_ADD        y[r,n] += v, f32: the residual stream
 *   TILED_SILU_MUL   y[r,n] = silu(v) * v', in X's type, v from W and v' from W_pair: half of a block's weight rows are of each
 *
 * Bound: memory for few rows (N K sizeof(W) bytes), the tensor cores from about 175 rows on (2 R N K FLOP; with f32 rows and bf16 weights
 * three passes). 64 rows of bf16 on an H200: 6144 x 2048 in 17.6 us, 32% of the bound; all experts' gate and up of LFM2-8B-A1B 203, 51%,
 * and down 97, 53% (profiles/results/kernels-heads-h200-2026-11-28.txt).
 *
 * N may be anything, K is a multiple of 32. Every array starts on 16 bytes.
 */
#pragma once

#include "common/bf16x3.cuh"
#include "common/e4m3.cuh"
#include "common/experts.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/packed.cuh"
#include "common/pdl.cuh"
#include "tiled/args.h"

constexpr uint32_t TILED_STORE = 0, TILED_STORE_F32 = 1, TILED_ADD = 2, TILED_SILU_MUL = 3;

/* What is resident per block stays under 99 KiB, all that an sm_86 or sm_89 grants. */
constexpr int TILED_PIPELINE_BYTES = 96 * 1024;

/* A block's tile: BN outputs, BR rows, BK of K per stage; WN x WR x WK warps share it along each. */
template <class Math_, int BN_, int BR_, int BK_, int WN, int WR, int WK>
struct TiledTile {
  using Math = Math_;
  static constexpr int BN = BN_, BR = BR_, BK = BK_, WARPS_N = WN, WARPS_R = WR, WARPS_K = WK;
  static constexpr int THREADS = WARP * WN * WR * WK;
  static constexpr int MI = BN / WN / 16, NI = BR / WR / 8, KW = BK / WK;  /* per warp: 16-output and 8-row pieces, k */
  static constexpr int W_PITCH = BK + Math::W_PAD, X_PITCH = BK + Math::X_PAD;  /* elements; pads spread the banks */
  static constexpr int W_BYTES = BN * W_PITCH * (int)sizeof(typename Math::W);
  static constexpr int STAGE_BYTES = W_BYTES + BR * X_PITCH * (int)sizeof(typename Math::X);
  static constexpr int FIT = TILED_PIPELINE_BYTES / STAGE_BYTES;
  static constexpr int STAGES = FIT > 4 ? 4 : FIT;
  static constexpr int OUT_PITCH = BN + 4;
  static constexpr int OUT_BYTES = WK * BR * OUT_PITCH * (int)sizeof(float);
  static constexpr int SHARED = STAGES * STAGE_BYTES > OUT_BYTES ? STAGES * STAGE_BYTES : OUT_BYTES;
  /* On an SM at once, at least: operands of 16 bits leave registers for two blocks of large tiles. */
  static constexpr int BLOCKS = sizeof(typename Math::X) == 2 && sizeof(typename Math::W) == 2 ? 2 : 1;
  static_assert(BN % (16 * WN) == 0 && BR % (8 * WR) == 0 && BK % (16 * WK) == 0, "whole instructions");
  static_assert(sizeof(typename Math::W) > 1 || KW % PACKED_COLUMNS == 0, "a warp has whole blocks of columns");
  static_assert(STAGES >= 2, "a pipeline has at least two stages");
  static_assert(BN * BK * (int)sizeof(typename Math::W) % (16 * THREADS) == 0 && BR * BK * (int)sizeof(typename Math::X) % (16 * THREADS) == 0,
                "threads share a stage evenly");
  using Acc = float[MI][NI][4];
};

/* ---- one stage's products, for one warp ------------------------------------------------------ */

/* An instruction's weights of rows g and g + 8 from w on, at the tile's pitch; `k`: which columns. */
template <class Tile, typename T>
__device__ inline void tiled_weights(uint32_t (&a)[4], const T *w, int k, int lane) {
  load_matrix_x4(a, w + lane % 16 * Tile::W_PITCH + k + lane / 16 * 8);
}
template <class Tile>
__device__ inline void tiled_weights(uint32_t (&a)[4], const E4m3 *w, int k, int lane) {
  const E4m3 *at = w + lane / 4 * Tile::W_PITCH + k / PACKED_COLUMNS * PACKED_COLUMNS + lane % 4 * 16 + k % PACKED_COLUMNS / 16 * 4;
  const uint32_t first = *reinterpret_cast<const uint32_t *>(at), second = *reinterpret_cast<const uint32_t *>(at + 8 * Tile::W_PITCH);
  a[0] = bf16_of_e4m3<0>(first), a[1] = bf16_of_e4m3<0>(second), a[2] = bf16_of_e4m3<2>(first), a[3] = bf16_of_e4m3<2>(second);
}

/* Rows of 16 bits, and weights of their type or in 8 bits. */
template <typename T, typename W_ = T>
struct HalfMath {
  using W = W_;
  using X = T;
  static constexpr int W_PAD = 16 / sizeof(W), X_PAD = 8;

  /* w[16 MI, KW] and x[8 NI, KW] at the tile's pitches */
  template <class Tile>
  static __device__ inline void multiply(typename Tile::Acc &acc, const W *w, const T *x, int lane) {
#pragma unroll
    for (int k = 0; k < Tile::KW; k += 16) {
      uint32_t b[Tile::NI][2];
      if constexpr (Tile::NI % 2 == 0) {
#pragma unroll
        for (int j = 0; j < Tile::NI; j += 2) {
          uint32_t pair[4];
          load_matrix_x4(pair, x + (j * 8 + lane % 8 + lane / 16 * 8) * Tile::X_PITCH + k + lane / 8 % 2 * 8);
          b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
        }
      } else {
#pragma unroll
        for (int j = 0; j < Tile::NI; j++)
          load_matrix_x2(b[j], x + (j * 8 + lane % 8) * Tile::X_PITCH + k + lane / 8 % 2 * 8);
      }
#pragma unroll
      for (int i = 0; i < Tile::MI; i++) {
        uint32_t a[4];
        tiled_weights<Tile>(a, w + i * 16 * Tile::W_PITCH, k, lane);
#pragma unroll
        for (int j = 0; j < Tile::NI; j++) mma<T>(acc[i][j], a, b[j][0], b[j][1]);
      }
    }
  }
};

/* f32 rows as bf16x3, weights in bf16 or 8 bits: three passes, the smallest part's first. The tensor cores truncate as they accumulate, so a stage has
 * accumulators of its own that are then added with rounding: without that the error grows with K. */
template <typename W_>
struct Bf16x3Math {
  using W = W_;
  using X = float;
  static constexpr int W_PAD = 16 / sizeof(W), X_PAD = 8;

  template <class Tile>
  static __device__ inline void multiply(typename Tile::Acc &acc, const W *w, const X *x, int lane) {
    typename Tile::Acc sum = {};
#pragma unroll
    for (int k = 0; k < Tile::KW; k += 16) {
      uint32_t a[Tile::MI][4];
#pragma unroll
      for (int i = 0; i < Tile::MI; i++) tiled_weights<Tile>(a[i], w + i * 16 * Tile::W_PITCH, k, lane);
#pragma unroll
      for (int j = 0; j < Tile::NI; j++) {
        const float *from = x + (j * 8 + lane / 4) * Tile::X_PITCH + k + lane % 4 * 2;
        uint32_t b0[3], b1[3];
        bf16x3(*reinterpret_cast<const float2 *>(from), b0);
        bf16x3(*reinterpret_cast<const float2 *>(from + 8), b1);
#pragma unroll
        for (int p = 2; p >= 0; p--)
#pragma unroll
          for (int i = 0; i < Tile::MI; i++) mma<__nv_bfloat16>(sum[i][j], a[i], b0[p], b1[p]);
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::MI; i++)
#pragma unroll
      for (int j = 0; j < Tile::NI; j++)
#pragma unroll
        for (int v = 0; v < 4; v++) acc[i][j][v] += sum[i][j][v];
  }
};

/* f32 rows with f32 or f16 weights: plain f32, an output being where the matrix instruction would have it. */
template <typename W_>
struct PlainMath {
  using W = W_;
  using X = float;
  static constexpr int W_PAD = 16 / sizeof(W_), X_PAD = 4;

  template <class Tile>
  static __device__ inline void multiply(typename Tile::Acc &acc, const W *w, const X *x, int lane) {
#pragma unroll 2
    for (int k = 0; k < Tile::KW; k += 4) {
#pragma unroll
      for (int i = 0; i < Tile::MI; i++) {
        float4 w0 = load4(w + (i * 16 + lane / 4) * Tile::W_PITCH + k);
        float4 w1 = load4(w + (i * 16 + lane / 4 + 8) * Tile::W_PITCH + k);
#pragma unroll
        for (int j = 0; j < Tile::NI; j++) {
          float4 x0 = load4(x + (j * 8 + lane % 4 * 2) * Tile::X_PITCH + k);
          float4 x1 = load4(x + (j * 8 + lane % 4 * 2 + 1) * Tile::X_PITCH + k);
          acc[i][j][0] = dot4(acc[i][j][0], w0, x0);
          acc[i][j][1] = dot4(acc[i][j][1], w0, x1);
          acc[i][j][2] = dot4(acc[i][j][2], w1, x0);
          acc[i][j][3] = dot4(acc[i][j][3], w1, x1);
        }
      }
    }
  }
};

/* Four consecutive outputs from n on, of which `left` exist. */
__device__ inline void add_bias4(float4 &v, const float *bias, uint32_t n, uint32_t left) {
  v.x += bias[n];
  if (left > 1) v.y += bias[n + 1];
  if (left > 2) v.z += bias[n + 2];
  if (left > 3) v.w += bias[n + 3];
}

/* Stores four outputs, or adds them to what is there; `left` of them exist, and rows of y start on a multiple of 4 if `aligned`. */
template <bool ADDS = false, typename T>
__device__ inline void put4(T *to, float4 v, uint32_t left, bool aligned) {
  if (aligned && left >= 4) {
    store4(to, ADDS ? sum4(load4(to), v) : v);
    return;
  }
  const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
    if (i < left) to[i] = ADDS ? T(float(to[i]) + values[i]) : T(values[i]);
}

/* The pieces of 16 bytes that a thread copies of every stage: the same ROWS x BK of a matrix, where they start, and which exist. */
template <class Tile, typename T, int ROWS, int PITCH>
struct TiledPieces {
  static constexpr int EACH = 16 / sizeof(T), COUNT = ROWS * Tile::BK / EACH / Tile::THREADS;
  const T *from[COUNT];
  uint32_t valid = 0;  /* bit i: piece i */

  static __device__ inline uint32_t row(int i) { return (threadIdx.x + i * Tile::THREADS) / (Tile::BK / EACH); }
  static __device__ inline uint32_t column(int i) { return (threadIdx.x + i * Tile::THREADS) % (Tile::BK / EACH) * EACH; }

  /* Copies those from column k_first on, `along` elements behind where they start. Where a piece does not exist zeros are written, and
   * the address is that of one that does. */
  template <class... Policy>
  __device__ inline void fill(T *stage, uint32_t k_first, uint32_t along, uint32_t k_total, Policy... policy) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const bool there = (valid >> i & 1) && k_first + column(i) < k_total;
      T *to = stage + row(i) * PITCH + column(i);
      /* The address is a value of its own: for weights in 8 bits ptxas 13.0 adds a uniform register to it in the copy, an illegal instruction. */
      if constexpr (IS_E4M3<T>) asm volatile("" : "+l"(to));
      copy16_async(to, from[i] + (there ? along : 0), there, policy...);
    }
  }
};

/* Whether weights are packed, where they are those of experts' `tiles`, or not. */
template <typename W>
__device__ inline bool tiled_packed(const ExpertTile *tiles) { return IS_E4M3<W> || tiles; }

/* What a block copies into the stages of its pipeline. */
template <class Tile>
struct TiledCopies {
  using W = typename Tile::Math::W;
  using X = typename Tile::Math::X;
  uint32_t k_total;
  uint64_t policy;  /* of weights */
  TiledPieces<Tile, W, Tile::BN, Tile::W_PITCH> w_pieces;
  TiledPieces<Tile, X, Tile::BR, Tile::X_PITCH> x_pieces;

  static __device__ inline char *stage(int at) {
    extern __shared__ uint4 shared[];
    return reinterpret_cast<char *>(shared) + at * Tile::STAGE_BYTES;
  }
  static __device__ inline W *w(int at) { return reinterpret_cast<W *>(stage(at)); }
  static __device__ inline X *x(int at) { return reinterpret_cast<X *>(stage(at) + Tile::W_BYTES); }

  /* Weights are `outputs` rows of `from` from n_first on and, in a tile of more, as many of `pair`. */
  __device__ inline void set_weights(const W *from, const W *pair, uint32_t n_first, uint32_t outputs, uint32_t n_total,
                                     const ExpertTile *tiles) {
    static_assert(Tile::BK % PACKED_COLUMNS == 0 || PACKED_COLUMNS % Tile::BK == 0, "a stage's columns lie in blocks alike");
#pragma unroll
    for (int i = 0; i < w_pieces.COUNT; i++) {
      const uint32_t row = w_pieces.row(i), column = w_pieces.column(i);
      const bool second = row >= outputs;
      const uint32_t n = n_first + (second ? row - outputs : row);
      const size_t at = tiled_packed<W>(tiles) ? packed_row(n, k_total) + packed_along(column) : (size_t)n * k_total + column;
      w_pieces.from[i] = (second ? pair : from) + (n < n_total ? at : 0);
      w_pieces.valid |= (n < n_total) << i;
    }
  }

  /* Rows `first` .. `first + rows` of `from`, or those that `gather` has there. */
  __device__ inline void set_rows(const X *from, const uint32_t *gather, uint32_t first, uint32_t rows) {
#pragma unroll
    for (int i = 0; i < x_pieces.COUNT; i++) {
      const uint32_t row = x_pieces.row(i), at = row < rows ? first + row : first;
      x_pieces.from[i] = from + (size_t)(gather ? gather[at] : at) * k_total + x_pieces.column(i);
      x_pieces.valid |= (row < rows) << i;
    }
  }
  __device__ inline void fill_w(int stage, uint32_t k_first, const ExpertTile *tiles) const {
    const bool packed = tiled_packed<W>(tiles);
    /* A packed block's columns of 8 bits are interleaved, so all of its pieces are copied, zeros that fill it up among them. */
    w_pieces.fill(w(stage), k_first, packed ? packed_along(k_first) : k_first, sizeof(W) == 1 ? packed_columns(k_total) : k_total, policy);
  }
  __device__ inline void fill_x(int stage, uint32_t k_first) const { x_pieces.fill(x(stage), k_first, k_first, k_total); }

  /* The prologue fills every stage but one with weights. */
  __device__ inline void fill_first_w(uint32_t steps, const ExpertTile *tiles) const {
#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; s++)
      if (s < steps) fill_w(s, s * Tile::BK, tiles);
  }
};

/* A warp's place among those of its block: which of the tile's k, rows and outputs are its own. */
template <class Tile>
struct TiledWarp {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int k = warp % Tile::WARPS_K, r = warp / Tile::WARPS_K % Tile::WARPS_R, n = warp / Tile::WARPS_K / Tile::WARPS_R;
};

/* The mainloop: acc = this warp's products, stage by stage. The first stages' weights are under way. */
template <class Tile>
__device__ inline void tiled_mainloop(typename Tile::Acc &acc, const TiledCopies<Tile> &copies, const TiledWarp<Tile> &warp, uint32_t steps,
                                      const ExpertTile *tiles) {
  const int w_at = warp.n * Tile::MI * 16 * Tile::W_PITCH + warp.k * Tile::KW;
  const int x_at = warp.r * Tile::NI * 8 * Tile::X_PITCH + warp.k * Tile::KW;
#pragma unroll
  for (int s = 0; s < Tile::STAGES - 1; s++) {  /* the first group has all weights so far */
    if (s < steps) copies.fill_x(s, s * Tile::BK);
    copy_commit();
  }
  int full = 0, empty = Tile::STAGES - 1;
  for (uint32_t step = 0; step < steps; step++) {
    copy_wait<Tile::STAGES - 2>();
    __syncthreads();
    uint32_t ahead = step + Tile::STAGES - 1;
    if (ahead < steps) copies.fill_w(empty, ahead * Tile::BK, tiles), copies.fill_x(empty, ahead * Tile::BK);
    copy_commit();
    Tile::Math::template multiply<Tile>(acc, copies.w(full) + w_at, copies.x(full) + x_at, warp.lane);
    full = full + 1 == Tile::STAGES ? 0 : full + 1;
    empty = empty + 1 == Tile::STAGES ? 0 : empty + 1;
  }
  copy_wait<0>();
  __syncthreads();
}

/* The epilogue: accumulators cross shared memory, where those of warps that share outputs are added up, and are stored as a.epilogue says:
 * rows `first` .. `first + rows` of Y, and `outputs` outputs from n_first on, of an expert's weights. */
template <class Tile>
__device__ inline void tiled_epilogue(const tg_tiled_args &a, const typename Tile::Acc &acc, const TiledWarp<Tile> &warp, uint32_t first,
                                      uint32_t rows, uint32_t n_first, uint32_t outputs, size_t expert) {
  using X = typename Tile::Math::X;
  extern __shared__ uint4 shared[];
  float *out = reinterpret_cast<float *>(shared);  /* [WARPS_K, BR, OUT_PITCH] */
#pragma unroll
  for (int i = 0; i < Tile::MI; i++)
#pragma unroll
    for (int j = 0; j < Tile::NI; j++)
#pragma unroll
      for (int v = 0; v < 4; v++) {
        int n = (warp.n * Tile::MI + i) * 16 + warp.lane / 4 + v / 2 * 8;
        int r = (warp.r * Tile::NI + j) * 8 + warp.lane % 4 * 2 + v % 2;
        out[(warp.k * Tile::BR + r) * Tile::OUT_PITCH + n] = acc[i][j][v];
      }
  __syncthreads();
  void *y = a.y;
  const float *bias = a.bias;
  const uint32_t n_total = a.n_total, epilogue = a.epilogue;
  auto summed = [&](uint32_t r, uint32_t n) {
    float4 v = load4(out + r * Tile::OUT_PITCH + n);
#pragma unroll
    for (int k = 1; k < Tile::WARPS_K; k++) v = sum4(v, load4(out + (k * Tile::BR + r) * Tile::OUT_PITCH + n));
    return v;
  };
  constexpr bool SCALED = IS_E4M3<typename Tile::Math::W>;
  const bool aligned = n_total % 4 == 0;
  for (uint32_t i = threadIdx.x; i < rows * (outputs / 4); i += Tile::THREADS) {
    uint32_t r = i / (outputs / 4), column = i % (outputs / 4) * 4, n = n_first + column;
    if (n >= n_total) continue;
    uint32_t left = n_total - n;
    size_t at = (size_t)(first + r) * n_total + n;
    float4 v = summed(r, column);
    if constexpr (SCALED) v = product4(v, load4(a.w_scale + expert * n_total + n));
    if (bias) add_bias4(v, bias, n, left);
    if (epilogue == TILED_ADD) {
      put4<true>(static_cast<float *>(y) + at, v, left, aligned);
    } else if (epilogue == TILED_STORE_F32) {
      put4(static_cast<float *>(y) + at, v, left, aligned);
    } else {
      if (epilogue == TILED_SILU_MUL) {
        float4 up = summed(r, column + outputs);
        if constexpr (SCALED) up = product4(up, load4(a.pair_scale + expert * n_total + n));
        v = make_float4(silu(v.x) * up.x, silu(v.y) * up.y, silu(v.z) * up.z, silu(v.w) * up.w);
      }
      put4(static_cast<X *>(y) + at, v, left, aligned);
    }
  }
}

template <class Tile>
__device__ inline void tiled(const tg_tiled_args &a) {
  using W = typename Tile::Math::W;
  const auto *x = static_cast<const typename Tile::Math::X *>(a.x);
  const W *w = static_cast<const W *>(a.w), *w_pair = static_cast<const W *>(a.w_pair);
  const uint32_t *count = a.count, *gather = a.gather;
  const ExpertTile *tiles = a.tiles;
  const uint32_t row_base = a.row_base, n_total = a.n_total, k_total = a.k_total;
  let_next_kernel_start();
  /* A dense product's first weights are loaded before the grid dependency wait, by the blocks of the first rows. */
  const bool pdl = !tiles && blockIdx.y == 0;
  ExpertTile tile;
  if (tiles) {
    wait_for_earlier_kernels();
    tile = tiles[blockIdx.y];
    if (blockIdx.y >= *count) return;
    w += tile.expert * a.expert_stride;
    if (w_pair) w_pair += tile.expert * a.expert_stride;
  }
  const uint64_t policy = cache_policy(tiles ? is_only_tile(tiles, *count, blockIdx.y, tile.expert) : gridDim.y == 1);
  const uint32_t outputs = w_pair ? Tile::BN / 2 : Tile::BN;  /* of Y, in this block */
  const uint32_t n_first = blockIdx.x * outputs;
  TiledCopies<Tile> copies{k_total, policy};
  copies.set_weights(w, w_pair, n_first, outputs, n_total, tiles);
  const uint32_t steps = (k_total + Tile::BK - 1) / Tile::BK;
  if (pdl || tiles) copies.fill_first_w(steps, tiles);
  if (!tiles) {
    wait_for_earlier_kernels();
    const uint32_t total = *count;
    tile.first = blockIdx.y * Tile::BR;
    if (row_base + tile.first >= total) {
      copy_wait<0>();
      return;
    }
    tile.rows = min((uint32_t)Tile::BR, total - row_base - tile.first);
    if (!pdl) copies.fill_first_w(steps, tiles);
  }
  copies.set_rows(x, gather, tile.first, tile.rows);
  const TiledWarp<Tile> warp;
  typename Tile::Acc acc = {};
  tiled_mainloop(acc, copies, warp, steps, tiles);
  tiled_epilogue(a, acc, warp, tile.first, tile.rows, n_first, outputs, tiles ? tile.expert : 0);
}

/* A kernel and, for the launcher, its tile: outputs and rows of a block, threads, bytes of shared memory. */
#define TILED_KERNEL(NAME, ...)                                                                                 \
  LAUNCH_CONSTANTS(NAME##_tile, 4, __VA_ARGS__::BN, __VA_ARGS__::BR, __VA_ARGS__::THREADS, __VA_ARGS__::SHARED) \
  STRUCT_KERNEL(NAME, tg_tiled_args, tiled<__VA_ARGS__>, __VA_ARGS__::THREADS, __VA_ARGS__::BLOCKS)
