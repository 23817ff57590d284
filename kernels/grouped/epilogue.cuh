/* epilogue.cuh: how a consumer warp of grouped/grouped.cuh stores gate and up's outputs of tall tiles and, where the instance ROUNDS, down's
 * sums; the rest is stored as it lies, by by_row in grouped.cuh. Sums lie as common/wgmma.cuh has D: a lane has two rows' sums of one
 * weight row, and of the one 8 further. Stored as they lie, each instruction would store a part of every sector that it writes to. So the
 * rows change places with the outputs. */
#pragma once

#include "common/base.cuh"
#include "common/wgmma.cuh"

constexpr int GROUPED_AT_ONCE = 2;  /* times eight rows, whose waits overlap; not tuned */

/* Half as many outputs as a warp has weight rows, of `rows` rows, as T: gated(sum of the first, sum of the one 8 further). at(r): where row
 * r's outputs begin; it is called for rows that are there alone. Of eight rows at a time, a lane stores two neighbouring outputs of one. */
template <typename T, int SUMS, class Gated, class At>
__device__ inline void grouped_store_gated(const float (&sums)[SUMS], uint32_t rows, Gated gated, At at) {
  static_assert(SUMS % (4 * GROUPED_AT_ONCE) == 0, "no row is left over");
  const uint32_t lane = threadIdx.x % WARP, first = lane % 4 * 2;
#pragma unroll
  for (int base = 0; base < SUMS; base += 4 * GROUPED_AT_ONCE) {
    if (base * 2 >= rows) break;
#pragma unroll
    for (int i = base; i < base + 4 * GROUPED_AT_ONCE; i += 4) {
      const uint32_t both = transposed(pack2<T>(gated(sums[i], sums[i + 2]), gated(sums[i + 1], sums[i + 3]))), r = i * 2 + lane / 4;
      /* Not behind a branch, where each row would wait for its place anew. */
      T *to = kept(at(min(r, rows - 1)) + first);
      if (r < rows) *reinterpret_cast<uint32_t *>(to) = both;
    }
  }
}

/* A warp's sums of all its weight rows, of `rows` rows, rounded to T; at(r) as above. A lane stores four neighbouring outputs at a time. */
template <typename T, int SUMS, class At>
__device__ inline void grouped_store_rounded(const float (&sums)[SUMS], uint32_t rows, At at) {
  static_assert(SUMS % (4 * GROUPED_AT_ONCE) == 0, "no row is left over");
  const uint32_t lane = threadIdx.x % WARP;
  const bool odd = lane % 2 != 0;
  const uint32_t first = lane % 4 / 2 * 4 + (odd ? 8 : 0);  /* of this lane's outputs */
#pragma unroll
  for (int base = 0; base < SUMS; base += 4 * GROUPED_AT_ONCE) {
    if (base * 2 >= rows) break;
#pragma unroll
    for (int i = base; i < base + 4 * GROUPED_AT_ONCE; i += 4) {
      /* These are outputs lane % 4 * 2 and the next of row r, and the two 8 further: an even lane takes its neighbour's of the first, and
       * gives its own of the others. */
      const uint32_t low = transposed(pack2<T>(sums[i], sums[i + 1])), high = transposed(pack2<T>(sums[i + 2], sums[i + 3]));
      const uint32_t taken = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1), r = i * 2 + lane / 4;
      T *to = kept(at(min(r, rows - 1)) + first);
      if (r < rows) __stcg(reinterpret_cast<uint2 *>(to), odd ? make_uint2(taken, high) : make_uint2(low, taken));
    }
  }
}
