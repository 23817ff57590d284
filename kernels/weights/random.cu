/* random.cu: the weights of a random preset, made where they are needed.
 *
 *   element(i) = offset + (sum(philox(i)) - mean) scale     src/model/philox.rs has the formula, and these are its bits
 *
 * A tensor is w[rows,columns], row after row or packed (common/packed.cuh), then with zeros for the columns that fill it up. Its
 * elements are rounded to the published type first, and then to the type that the model runs in.
 *
 * Bound: arithmetic, some 70 instructions an element, of which 20 are multiplications of 32 bits that an SM begins 64 of in a
 * cycle. 24 billion elements on an H100 (132 SMs at 1.7 GHz): 0.12 s. From the host it was 12 s and 48 GB of its memory.
 *
 * Launch: a block for each row, block = RANDOM_THREADS.
 */
#include "common/base.cuh"
#include "common/packed.cuh"
#include "common/philox.cuh"

constexpr int RANDOM_THREADS = 256;

constexpr int SUM_MEAN = 4 * 65535 / 2;  /* of four uniform 16-bit integers */

/* How a tensor's elements are made; its first is element `first` of the stream. `keeps_f32`: published in f32, else in bf16. */
struct RandomTensor {
  uint32_t key_low, key_high, seed_high;
  float scale, offset;
  uint64_t first;
  uint32_t columns, packed, keeps_f32;

  __device__ inline float element(uint64_t index) const {
    const uint4 counter = make_uint4(uint32_t(index), uint32_t(index >> 32), seed_high, 0);
    const uint4 words = philox4x32_10(counter, make_uint2(key_low, key_high));
    const uint32_t sum = (words.x & 0xffff) + (words.x >> 16) + (words.y & 0xffff) + (words.y >> 16);
    /* Two roundings, as on the host: no fused multiplication. */
    const float v = __fadd_rn(offset, __fmul_rn(float(int(sum) - SUM_MEAN), scale));
    return keeps_f32 ? v : __bfloat162float(__float2bfloat16_rn(v));
  }
};

/* w[rows,columns] */
template <typename W>
__device__ inline void make_random(W *w, const RandomTensor &tensor) {
  const uint32_t row = blockIdx.x, columns = tensor.packed ? packed_columns(tensor.columns) : tensor.columns;
  W *to = w + (tensor.packed ? packed_row(row, tensor.columns) : (uint64_t)row * tensor.columns);
  const uint64_t first = tensor.first + (uint64_t)row * tensor.columns;
  for (uint32_t c = threadIdx.x; c < columns; c += RANDOM_THREADS)
    to[tensor.packed ? packed_along(c) : c] = W(c < tensor.columns ? tensor.element(first + c) : 0.0f);
}

#define RANDOM(SUFFIX, W)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(RANDOM_THREADS) tg_random_##SUFFIX(                                          \
      W *w, uint32_t key_low, uint32_t key_high, uint32_t seed_high, float scale, float offset, uint64_t first,             \
      uint32_t columns, uint32_t packed, uint32_t keeps_f32) {                                                              \
    make_random<W>(w, RandomTensor{key_low, key_high, seed_high, scale, offset, first, columns, packed, keeps_f32});        \
  }

RANDOM(bf16, __nv_bfloat16)
RANDOM(f16, __half)
RANDOM(f32, float)
