/* conv.cuh: a conv layer's in-projection, gates and short convolution in one, for decode steps of many rows (persistent.cuh):
 *
 *   (B, C, X)[R,H] = x[R,H] W[3H,H]^T,   y = C * conv(B * X)      conv/conv.cu has the rest of the formula
 *
 * A tile is CHANNELS channels, that is rows c, H + c and 2H + c of W: 8 of B, 8 of C and 8 of X in turns, as a dimension of the tensor
 * map leads from one to the next. So B, C and X of a channel lie in one thread, and never go to memory.
 *
 * While the products are under way, the loaders copy what the convolution needs into shared memory: slots and positions, taps, and the
 * state's columns. A thread moves the columns on where they lie there, and y goes beside them. A row's channels of a tile are 128 bytes
 * of each, which leave as one bulk copy.
 *
 * Bound: the in-projection's products, and the state's columns, read and written, and y: 10 H bytes a row, where B, C and X written and
 * read again would be 12 H more. Measured on an H100, H = 2048, in a step: 27.0 us at 504 rows, where the two kernels apart take 30.3,
 * and 46.6 at 968. profiles/log/prompts.md.
 *
 * H is a multiple of CHANNELS, there are three taps, and each row is its sequence's only one. y is not x, which blocks may still read.
 */
#pragma once

#include "conv/args.h"
#include "persistent/persistent.cuh"

/* What a tile's convolution reads and stores, in shared memory. */
template <typename T, uint32_t CHANNELS>
struct PersistentPast {
  static constexpr uint32_t PITCH = CHANNELS + 16 / sizeof(T);  /* of a row's channels; spreads banks */
  T columns[TG_CONV_TAPS - 1][TG_PERSISTENT_ROWS][PITCH];       /* the state's, oldest first: before the step, then after it */
  T y[TG_PERSISTENT_ROWS][PITCH];
  float taps[TG_CONV_TAPS][CHANNELS];
  uint2 rows[TG_PERSISTENT_ROWS];                                  /* slot and position */
};

template <typename T>
struct PersistentConvTile : PersistentTile<T, 192, 4, 2> {
  using Tile = PersistentTile<T, 192, 4, 2>;
  static constexpr bool CONVOLVES = true;
  static constexpr uint32_t CHANNELS = Tile::WIDTH / 3, GROUP_ROWS = 3 * TG_PERSISTENT_TURN_ROWS;
  using Past = PersistentPast<T, CHANNELS>;
  /* Behind the stages lies the past, then the barriers: the pipeline's, and two for the past. */
  static constexpr uint32_t PAST = Tile::STAGES * Tile::STAGE_BYTES, BARRIERS = PAST + sizeof(Past);
  static constexpr uint32_t SHARED = BARRIERS + (2 * Tile::STAGES + 2) * sizeof(uint64_t);
  static_assert(SHARED <= 227 * 1024 && BARRIERS % sizeof(uint64_t) == 0, "what a block may have");
  static_assert(Tile::WIDTH / Tile::MULTICAST % GROUP_ROWS == 0, "whole groups of B, C and X");
};

template <class Tile>
struct PersistentConvolution {
  static constexpr bool LOADS = true;
  using T = typename Tile::T;
  static constexpr uint32_t LOADERS = GMMA_GROUP - WARP;  /* threads that load */
  static constexpr uint32_t LOADERS_BARRIER = 1 + TG_PERSISTENT_GROUPS;
  static constexpr uint32_t HELD = TG_CONV_TAPS - 1;  /* columns of the state */
  const tg_conv_product_args &a;
  const uint32_t hidden;  /* H */
  typename Tile::Past &past;
  uint64_t *there, *used;  /* a tile's past has come; all warps are through with it */
  uint32_t parity = 0;

  __device__ inline PersistentConvolution(const tg_conv_product_args &args, uint32_t hidden_, char *shared)
      : a(args), hidden(hidden_), past(*reinterpret_cast<typename Tile::Past *>(shared + Tile::PAST)),
        there(reinterpret_cast<uint64_t *>(shared + Tile::BARRIERS) + 2 * Tile::STAGES), used(there + 1) {}
  __device__ inline void init() const {
    barrier_init(there, LOADERS / WARP);
    barrier_init(used, PERSISTENT_WARPS);
  }

  /* Column j of a slot's state, from the tile's first channel on. */
  __device__ inline T *column(const PersistentWorkTile &tile, uint32_t slot, uint32_t j) const {
    return static_cast<T *>(a.columns) + ((size_t)slot * HELD + j) * hidden + tile.slice * Tile::CHANNELS;
  }

  __device__ inline void load(const PersistentWorkTile &tile) {
    constexpr uint32_t ELEMENTS = 16 / sizeof(T), PIECES = Tile::CHANNELS / ELEMENTS;
    const uint32_t thread = threadIdx.x % GMMA_GROUP - WARP;
    const float *taps = a.taps + (size_t)tile.slice * Tile::CHANNELS * TG_CONV_TAPS;
    barrier_wait(used, parity ^ 1);
    const tg_row *rows = table<tg_row>(a.state, __ldcg(&a.step->row_table)) + tile.first;
    for (uint32_t r = thread; r < tile.rows; r += LOADERS) past.rows[r] = make_uint2(__ldcg(&rows[r].slot), __ldcg(&rows[r].position));
    for (uint32_t i = thread; i < Tile::CHANNELS * TG_CONV_TAPS; i += LOADERS)
      past.taps[i % TG_CONV_TAPS][i / TG_CONV_TAPS] = taps[i];
    threads_meet<LOADERS, LOADERS_BARRIER>();
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++)
      for (uint32_t i = thread; i < tile.rows * PIECES; i += LOADERS) {
        const uint32_t r = i / PIECES, from = i % PIECES * ELEMENTS;
        const uint2 row = past.rows[r];
        /* Before position 0 there was nothing. */
        copy16_async(&past.columns[j][r][from], column(tile, row.x, j) + from, HELD - j <= row.y);
      }
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(there);
    parity ^= 1;
  }

  /* A warp is through with the tile's past. That it has waited for it first keeps it from being a tile ahead. */
  __device__ inline void release() {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(used);
    parity ^= 1;
  }
  __device__ inline void begin(const PersistentProduct &, const PersistentWorkTile &) const {}
  __device__ inline void skip() {
    barrier_wait(there, parity);
    release();
  }

  /* This thread's two of the i-th eight channels, of its row t. */
  __device__ inline void convolve(const typename Tile::Acc &acc, const PersistentWorkTile &tile, uint32_t i, uint32_t t, uint32_t r) const {
    const uint32_t at = 8 * i + threadIdx.x % 4 * 2;
    float2 of[3];
#pragma unroll
    for (uint32_t g = 0; g < 3; g++) {
      const float *v = acc + 4 * (3 * i + g) + 2 * t;
      of[g] = make_float2(v[0], v[1]);
      if (a.bias) {
        const float *bias = a.bias + g * hidden + tile.slice * Tile::CHANNELS + at;
        of[g] = make_float2(of[g].x + bias[0], of[g].y + bias[1]);
      }
      of[g] = unpack2<T>(pack2<T>(of[g].x, of[g].y));
    }
    const uint32_t now = pack2<T>(of[0].x * of[2].x, of[0].y * of[2].y);
    float2 sum = make_float2(0.0f, 0.0f);
    uint32_t *columns[HELD];
#pragma unroll
    for (uint32_t j = 0; j < TG_CONV_TAPS; j++) {
      if (j < HELD) columns[j] = reinterpret_cast<uint32_t *>(&past.columns[j][r][at]);
      const uint32_t both = j < HELD ? *columns[j] : now;
      if (j > 0) *columns[j - 1] = both;
      const float2 u = unpack2<T>(both), tap = *reinterpret_cast<const float2 *>(&past.taps[j][at]);
      sum = make_float2(fmaf(tap.x, u.x, sum.x), fmaf(tap.y, u.y, sum.y));
    }
    *columns[HELD - 1] = now;
    if (a.taps_bias) {
      const float *bias = a.taps_bias + tile.slice * Tile::CHANNELS + at;
      sum = make_float2(sum.x + bias[0], sum.y + bias[1]);
    }
    *reinterpret_cast<uint32_t *>(&past.y[r][at]) = pack2<T>(of[1].x * sum.x, of[1].y * sum.y);
  }

  __device__ inline void store(const typename Tile::Acc &acc, char *, const PersistentProduct &, const PersistentWorkTile &tile) {
    constexpr uint32_t BYTES = Tile::CHANNELS * sizeof(T);
    const uint32_t lane = threadIdx.x % WARP, above = threadIdx.x / WARP * PERSISTENT_WARP_ROWS;
    barrier_wait(there, parity);
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
      const uint32_t r = above + lane / 4 + 8 * t;
#pragma unroll
      for (uint32_t i = 0; i < Tile::CHANNELS / 8; i++)
        if (r < tile.rows) convolve(acc, tile, i, t, r);
    }
    operands_written();
    __syncwarp();
    /* A row's columns and y. */
    static_assert(PERSISTENT_WARP_ROWS * 2 == WARP, "two lanes a row");
    const uint32_t r = above + lane / 2;
    if (r < tile.rows) {
      const uint32_t j = lane % 2, slot = past.rows[r].x;
      bulk_store(column(tile, slot, j), past.columns[j][r], BYTES);
      if (j == 0) {
        T *y = static_cast<T *>(a.y) + (size_t)(tile.first + r) * hidden + tile.slice * Tile::CHANNELS;
        bulk_store(y, past.y[r], BYTES);
      }
      bulk_commit();
    }
    bulk_read();
    release();
  }
};

template <class Tile>
__device__ inline void persistent_conv(const TensorMap *x_map, const TensorMap *w_map, const tg_conv_product_args &a, uint32_t most_rows,
                                       uint32_t hidden) {
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];
  PersistentProduct product = {};
  product.count = &a.step->rows, product.most_rows = most_rows, product.n_total = 3 * hidden, product.k_total = hidden;
  persistent<Tile>(x_map, w_map, product, PersistentConvolution<Tile>(a, hidden, persistent_shared));
}

/* Maps and launch as PERSISTENT_DENSE has them, but that rows of w come in groups of 8 of B, of C and of X. */
#define PERSISTENT_CONV(NAME, ...)                                                                                 \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                               \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                              \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                               \
           const __grid_constant__ tg_conv_product_args a, uint32_t most_rows, uint32_t hidden) {                  \
    persistent_conv<__VA_ARGS__>(&x, &w, a, most_rows, hidden);                                                    \
  }
