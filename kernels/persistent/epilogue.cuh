/* epilogue.cuh: how a tile's sums are stored, or added to the residual stream: through shared memory, so that a thread has 16 bytes of a row at a
 * time. A bulk copy a row would be an instruction a row, one after the other: by a profile of an H200 a tenth of an out-projection's time. */
#pragma once

#include "common/bulk.cuh"
#include "persistent/e4m3_rows.cuh"
#include "wgmma/mainloop.cuh"

/* THREADS threads do what persistent_leave() does, an element at a time, where rows of y do not start on 16 bytes. */
template <uint32_t PITCH, uint32_t THREADS, typename V>
__device__ inline void persistent_leave_singly(const char *out, V *y, uint32_t rows, uint32_t columns, uint32_t n, uint32_t n_total, bool adds) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x % THREADS; i < rows * columns; i += THREADS) {
    const uint32_t r = i / columns, c = i % columns;
    const V v = *reinterpret_cast<const V *>(out + r * PITCH + c * sizeof(V));
    V *at = y + (size_t)r * n_total + n + c;
    if constexpr (sizeof(V) == 4) {
      *at = adds ? *at + v : v;
    } else {
      *at = v;
    }
  }
}

/* THREADS threads store COLUMNS columns of type V of up to ROWS rows, which lie PITCH bytes apart in `out`, to y[0 ..][n ..], or with `adds` add
 * them, if they are f32. What lies at or past `rows` or n_total stays here. The caller has them meet before, and before `out` is written again. */
template <uint32_t THREADS, uint32_t ROWS, uint32_t COLUMNS, uint32_t PITCH, typename V>
__device__ inline void persistent_leave(const char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds) {
  constexpr uint32_t ELEMENTS = 16 / sizeof(V), PIECES = COLUMNS / ELEMENTS, COUNT = ROWS * PIECES / THREADS;
  static_assert(ROWS * PIECES % THREADS == 0 && COLUMNS % ELEMENTS == 0 && PITCH % 16 == 0, "as many pieces a thread, on 16 bytes");
  const uint32_t columns = n < n_total ? min(COLUMNS, n_total - n) : 0, thread = threadIdx.x % THREADS;
  if (n_total % ELEMENTS > 0) return persistent_leave_singly<PITCH, THREADS>(out, y, rows, columns, n, n_total, adds);
  constexpr bool ONE_COLUMN = THREADS % PIECES == 0;  /* for all of a thread's pieces */
  auto row = [&](uint32_t i) { return ONE_COLUMN ? thread / PIECES + i * (THREADS / PIECES) : (thread + i * THREADS) / PIECES; };
  auto column = [&](uint32_t i) { return (ONE_COLUMN ? thread : thread + i * THREADS) % PIECES * ELEMENTS; };
  uint4 piece[COUNT];
#pragma unroll
  for (uint32_t i = 0; i < COUNT; i++) piece[i] = *reinterpret_cast<const uint4 *>(out + row(i) * PITCH + column(i) * sizeof(V));
  auto each = [&](auto leave) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
      if (row(i) < rows && column(i) < columns) leave(reinterpret_cast<uint4 *>(y + (size_t)row(i) * n_total + n + column(i)), piece[i]);
  };
  if (sizeof(V) == 4 && adds) {
    each([](uint4 *at, uint4 v) { add4(at, v); });
  } else {
    each([](uint4 *at, uint4 v) { __stcg(at, v); });
  }
}

/* A warp stores COLUMNS columns of its rows, of type V, to y[0 ..][n ..], or with `adds` adds them. `pair(i, half)` is this thread's i-th pair of
 * neighbours (columns 8 i + 2 q, of its row g or g + 8). */
template <uint32_t COLUMNS, typename V, class Pair>
__device__ inline void persistent_store(char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds, Pair pair) {
  constexpr uint32_t PITCH = COLUMNS * sizeof(V) + 16;
  constexpr bool IS_F32 = sizeof(V) == 4;
  const uint32_t lane = threadIdx.x % WARP;
  __syncwarp();
  if constexpr (IS_F32) {
    char *to = out + lane / 4 * PITCH + lane % 4 * 2 * sizeof(V);
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS / 8; i++)
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) *reinterpret_cast<float2 *>(to + half * 8 * PITCH + i * 8 * sizeof(V)) = pair(i, half);
  } else {
    char *to = out + lane % 16 * PITCH + lane / 16 * 8 * sizeof(V);
    auto both = [&](uint32_t i, uint32_t half) {
      const float2 v = pair(i, half);
      return pack2<V>(v.x, v.y);
    };
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS / 8; i += 2)
      store_matrix_x4<false>(to + i * 8 * sizeof(V), {both(i, 0), both(i, 1), both(i + 1, 0), both(i + 1, 1)});
  }
  __syncwarp();
  persistent_leave<WARP, PERSISTENT_WARP_ROWS, COLUMNS, PITCH>(out, y, rows, n, n_total, adds);
}

/* The epilogue of a kernel: begin() and store(), by the warps that have a tile's sums, and skip(), by those whose group has no rows of it. Where it
 * LOADS, the third group's warps that produce nothing load() what these need beside the sums. */
template <class Tile>
struct PersistentEpilogue {
  static constexpr bool LOADS = false;
  __device__ inline void init() const {}  /* one thread, before anything else */
  __device__ inline void load(const PersistentWorkTile &) const {}
  __device__ inline void skip() const {}
  __device__ inline void begin(const PersistentProduct &, const PersistentWorkTile &) const {}  /* before the mainloop */

  /* Stores or adds, as product.epilogue says. */
  __device__ inline void store(const typename Tile::Acc &acc, char *out, const PersistentProduct &product,
                               const PersistentWorkTile &tile) const {
    using T = typename Tile::T;
    const uint32_t above = of_warp(threadIdx.x / WARP) * PERSISTENT_WARP_ROWS, rows = rows_from(above, tile.rows, PERSISTENT_WARP_ROWS);
    const size_t row = (size_t)(tile.first + above) * product.n_total;
    const uint32_t column = threadIdx.x % 4 * 2;
    if (product.epilogue == TILED_SILU_MUL) {
      constexpr uint32_t OUTPUTS = Tile::WIDTH / 2;
      auto of = [&](uint32_t i, uint32_t half) {
        const uint32_t at = 8 * i + 2 * half;
        const float2 a = make_float2(acc[at], acc[at + 1]), b = make_float2(acc[at + 4], acc[at + 5]);
        return silu_mul(product.is_up_first ? b : a, product.is_up_first ? a : b);
      };
      if constexpr (Tile::E4M3_ROWS) {
        persistent_store_e4m3(product, tile.first + above, rows, tile.slice * OUTPUTS, of);
        return;
      }
      using W = typename Tile::W;
      W *y = static_cast<W *>(product.y) + row;
      /* Part `part` of bf16x3 is what is left of those before it. */
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        persistent_store<OUTPUTS>(out, y + (size_t)part * product.y_plane * product.n_total, rows, tile.slice * OUTPUTS, product.n_total,
                                  false,
                                  [&](uint32_t i, uint32_t half) {
                                    float2 v = of(i, half);
#pragma unroll
                                    for (uint32_t p = 0; p < part; p++) take_bf16(v);
                                    return v;
                                  });
      return;
    }
    const uint32_t n = tile.slice * Tile::WIDTH;
    auto of = [&](uint32_t i, uint32_t half) {
      float2 v = make_float2(acc[4 * i + 2 * half], acc[4 * i + 2 * half + 1]);
      const uint32_t c = n + 8 * i + column;
      if (product.bias) {
        if (c < product.n_total) v.x += product.bias[c];
        if (c + 1 < product.n_total) v.y += product.bias[c + 1];
      }
      return v;
    };
    auto store = [&](auto *y, bool adds) {
      constexpr uint32_t ROOM = Tile::OUT_COLUMNS * sizeof(float) / sizeof *y, COLUMNS = ROOM < Tile::WIDTH ? ROOM : Tile::WIDTH;
#pragma unroll
      for (uint32_t part = 0; part < Tile::WIDTH / COLUMNS; part++)
        persistent_store<COLUMNS>(out, y + row, rows, n + part * COLUMNS, product.n_total, adds,
                                  [&](uint32_t i, uint32_t half) { return of(part * (COLUMNS / 8) + i, half); });
    };
    if (product.epilogue == TILED_STORE) {
      store(static_cast<T *>(product.y), false);
    } else {
      store(static_cast<float *>(product.y), product.epilogue == TILED_ADD);
    }
  }
};
