/* e4m3.cuh: weights in 8 bits (OCP 8-bit floating point, E4M3: a sign, 4 bits of exponent, 3 of mantissa), multiplied as bf16, which holds
 * each exactly; the bits that are not a number become 480. Skinny kernels of 1 or 2 bf16 rows multiply them as f16 (f16_of_e4m3), where those
 * bits stay not a number. A weight is such a number times the scale of its row, f32, which a product's sum is multiplied by.
 *
 * All matrices of them are packed (common/packed.cuh), and a row's 64 bytes of a block are in the order of what a lane multiplies: of
 * column 16 t + 8 h + 2 q + j, byte 16 q + 4 t + 2 h + j. So 16 bytes are what lane q of four has of four instructions (mma or wgmma of
 * K = 16), and word t of these is two registers: its pairs of columns 2 q, 2 q + 1 and 2 q + 8, 2 q + 9 of instruction t.
 */
#pragma once

#include "common/mma.cuh"

struct E4m3 {
  uint8_t bits;
};
template <typename W>
constexpr bool IS_E4M3 = std::is_same_v<W, E4m3>;

/* Moves bytes FIRST and FIRST + 1 of a word to the places of a pair of bf16, which are then 2^-120 of the values, also where these are subnormal. It
 * needs no instruction of sm_89 or later. The product with `sixteen` is a shift by 4. A caller that keeps the compiler from knowing `sixteen` gets a
 * multiplication, which another pipe executes than the other two integer instructions. */
template <uint32_t FIRST>
__device__ inline uint32_t small_bf16_of_e4m3(uint32_t word, uint32_t sixteen = 16) {
  return signed_bytes<FIRST>(word) * sixteen & 0x87f087f0u;
}

/* The same times 2^120, which is exact: the values themselves. */
template <uint32_t FIRST>
__device__ inline uint32_t bf16_of_e4m3(uint32_t word, uint32_t sixteen = 16) {
  const uint32_t bits = small_bf16_of_e4m3<FIRST>(word, sixteen);
  const __nv_bfloat162 power = __float2bfloat162_rn(0x1p120f);
  const __nv_bfloat162 pair = __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&bits), power);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

constexpr float E4M3_MOST = 448.0f;

/* The bits of the nearest such number, of two the even one; of what is larger than E4M3_MOST those of that. */
__device__ inline E4m3 e4m3_of(float value) {
  const uint32_t sign = __float_as_uint(value) >> 24 & 0x80;
  const float size = fabsf(value);
  /* Below the least normal number, 2^-6, all lie on multiples of 2^-9. */
  if (size < 0x1p-6f) return {uint8_t(sign | uint32_t(rintf(size * 0x1p9f)))};
  const uint32_t bits = __float_as_uint(fminf(size, E4M3_MOST)), rounded = bits + 0x7ffff + (bits >> 20 & 1);
  return {uint8_t(sign | ((rounded >> 20) - ((127 - 7) << 3)))};
}

/* Where column c of 64 lies in a row's 64 bytes of a block. */
__host__ __device__ constexpr uint32_t e4m3_at(uint32_t c) { return c % 8 / 2 * 16 + c / 16 * 4 + c % 16 / 8 * 2 + c % 2; }
