/* epilogue.cuh: how a tile's sums are stored: through shared memory, by a bulk copy a row, or for the residual stream a bulk addition,
 * which the copy engine does while the next tile is multiplied. */
#pragma once

#include "common/bulk.cuh"
#include "persistent/tile.cuh"
#include "wgmma/mainloop.cuh"

/* Rows of y that do not start on 16 bytes: this one of THREADS threads stores its share of persistent_leave(), an element at a time. */
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

/* A lane a row: COLUMNS columns of type V, of rows that lie PITCH bytes apart in `out`, to y[0 ..][n ..]. What lies at or past `rows` or
 * n_total stays here. */
template <uint32_t COLUMNS, uint32_t PITCH, typename V>
__device__ inline void persistent_leave(const char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds) {
  const uint32_t thread = threadIdx.x % WARP;
  const uint32_t columns = n < n_total ? min(COLUMNS, n_total - n) : 0;
  if (n_total % (16 / sizeof(V)) == 0) {
    if (thread < rows && columns > 0) {
      V *at = y + (size_t)thread * n_total + n;
      const char *from = out + thread * PITCH;
      if (sizeof(V) == 4 && adds) {
        bulk_add(reinterpret_cast<float *>(at), from, columns * sizeof(V));
      } else {
        bulk_store(at, from, columns * sizeof(V));
      }
      bulk_commit();
    }
    return;
  }
  persistent_leave_singly<PITCH, WARP>(out, y, rows, columns, n, n_total, adds);
}

/* A warp: COLUMNS columns of its rows, of type V, to y[0 ..][n ..]. `pair(i, half)` is this thread's i-th pair of neighbours
 * (columns 8 i + 2 q, of its row g or g + 8). */
template <uint32_t COLUMNS, typename V, class Pair>
__device__ inline void persistent_store(char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds, Pair pair) {
  constexpr uint32_t PITCH = COLUMNS * sizeof(V) + 16;
  constexpr bool IS_F32 = sizeof(V) == 4;
  const uint32_t lane = threadIdx.x % WARP;
  bulk_read();
  __syncwarp();
  char *to = out + lane / 4 * PITCH + lane % 4 * 2 * sizeof(V);
#pragma unroll
  for (uint32_t i = 0; i < COLUMNS / 8; i++)
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const float2 v = pair(i, half);
      char *at = to + half * 8 * PITCH + i * 8 * sizeof(V);
      if constexpr (IS_F32) {
        *reinterpret_cast<float2 *>(at) = v;
      } else {
        *reinterpret_cast<uint32_t *>(at) = pack2<V>(v.x, v.y);
      }
    }
  operands_written();
  __syncwarp();
  persistent_leave<COLUMNS, PITCH>(out, y, rows, n, n_total, adds);
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
      using W = typename Tile::W;
      W *y = static_cast<W *>(product.y) + row;
      /* Part `part` of bf16x3 is what is left of those before it. */
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        persistent_store<OUTPUTS>(out, y + (size_t)part * product.y_plane * product.n_total, rows, tile.slice * OUTPUTS, product.n_total,
                                  false,
                                  [&](uint32_t i, uint32_t half) {
                                    const uint32_t at = 8 * i + 2 * half;
                                    const float2 a = make_float2(acc[at], acc[at + 1]), b = make_float2(acc[at + 4], acc[at + 5]);
                                    float2 v = silu_mul(product.is_up_first ? b : a, product.is_up_first ? a : b);
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
