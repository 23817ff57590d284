/* random.cu: the weights of a random preset, made where they are needed.
 *
 *   element(i) = offset + (sum(philox(i)) - mean) scale     src/model/philox.rs has the formula, and these are its bits
 *
 * A tensor is w[rows,columns], row after row or packed (common/packed.cuh), then with zeros for the columns that fill it up. Its
 * elements are rounded to the published type first, and then to the type that the model runs in. In 8 bits a row is
 * scaled so that its largest element becomes E4M3_MOST (src/model/e4m3.rs), so its elements are made twice.
 *
 * Bound: arithmetic, some 70 instructions an element, of which 20 are multiplications of 32 bits that an SM begins 64 of in a cycle. The 8.3
 * billion of LFM2-8B-A1B take 52 ms on an H200, memory asked for included (`startup_load_ms` of profiles/results/decode-h200-2026-11-28.json).
 *
 * Launch: a block for each row, block = TG_RANDOM_THREADS.
 */
#include "common/base.cuh"
#include "common/e4m3.cuh"
#include "common/launch.cuh"
#include "common/packed.cuh"
#include "common/philox.cuh"
#include "weights/args.h"

constexpr int SUM_MEAN = 4 * 65535 / 2;  /* of four uniform 16-bit integers */

__device__ inline float element(const tg_random_args &a, uint64_t index) {
  const uint4 counter = make_uint4(uint32_t(index), uint32_t(index >> 32), a.seed_high, 0);
  const uint4 words = philox4x32_10(counter, make_uint2(a.key_low, a.key_high));
  const uint32_t sum = (words.x & 0xffff) + (words.x >> 16) + (words.y & 0xffff) + (words.y >> 16);
  /* Two roundings, as on the host: no fused multiplication. */
  const float v = __fadd_rn(a.offset, __fmul_rn(float(int(sum) - SUM_MEAN), a.scale));
  return a.keeps_f32 ? v : __bfloat162float(__float2bfloat16_rn(v));
}

/* What the row's elements are divided by, for the whole block. */
__device__ inline float row_scale(const tg_random_args &a, uint64_t first) {
  __shared__ float largest[TG_RANDOM_THREADS / WARP];
  float most = 0.0f;
  for (uint32_t c = threadIdx.x; c < a.columns; c += TG_RANDOM_THREADS) most = fmaxf(most, fabsf(element(a, first + c)));
  for (int lanes = WARP / 2; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  if (threadIdx.x % WARP == 0) largest[threadIdx.x / WARP] = most;
  __syncthreads();
  for (uint32_t w = 0; w < TG_RANDOM_THREADS / WARP; w++) most = fmaxf(most, largest[w]);
  const float scale = __fdiv_rn(most, E4M3_MOST);
  return scale > 0.0f ? scale : 1.0f;
}

template <typename W>
__device__ inline void make_random(const tg_random_args &a) {
  const uint32_t row = blockIdx.x, columns = a.packed ? packed_columns(a.columns) : a.columns;
  W *to = static_cast<W *>(a.w) + (a.packed ? packed_row(row, a.columns) : (uint64_t)row * a.columns);
  const uint64_t first = a.first + (uint64_t)row * a.columns;
  if constexpr (IS_E4M3<W>) {
    const float scale = row_scale(a, first);
    for (uint32_t c = threadIdx.x; c < columns; c += TG_RANDOM_THREADS)
      to[packed_along(c / PACKED_COLUMNS * PACKED_COLUMNS) + e4m3_at(c % PACKED_COLUMNS)] =
          e4m3_of(c < a.columns ? __fdiv_rn(element(a, first + c), scale) : 0.0f);
    if (threadIdx.x == 0) a.row_scales[row] = scale;
  } else {
    for (uint32_t c = threadIdx.x; c < columns; c += TG_RANDOM_THREADS)
      to[a.packed ? packed_along(c) : c] = W(c < a.columns ? element(a, first + c) : 0.0f);
  }
}

#define RANDOM(SUFFIX, W)                                                                                      \
  extern "C" __global__ void __launch_bounds__(TG_RANDOM_THREADS) tg_random_##SUFFIX(const tg_random_args a) { \
    make_random<W>(a);                                                                                         \
  }
FOR_TYPES(RANDOM)
RANDOM(e4m3, E4m3)
