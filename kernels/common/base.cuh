/* base.cuh: what every kernel family needs: element types, 4-wide access, fixed-order reductions, and the tables behind a step descriptor.
 *
 * Every dimension a kernel walks in 4s is a multiple of 32 (checked before weights are read), and every array starts on 16 bytes.
 */
#pragma once

#include "abi.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

constexpr int WARP = 32;

/* ---- elements of 16 bits, in pairs ------------------------------------------------------------ */

template <typename T>
constexpr bool IS_HALF = std::is_same<T, __half>::value;

/* Two f32 values as a pair of T, `lo` in the lower half, rounded to nearest even; and back. */
template <typename T>
__device__ inline uint32_t pack2(float lo, float hi) {
  std::conditional_t<IS_HALF<T>, __half2, __nv_bfloat162> pair;
  if constexpr (IS_HALF<T>) pair = __floats2half2_rn(lo, hi);
  else pair = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<uint32_t *>(&pair);
}
template <typename T>
__device__ inline float2 unpack2(uint32_t both) {
  if constexpr (IS_HALF<T>) return __half22float2(*reinterpret_cast<const __half2 *>(&both));
  else return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&both));
}

/* ---- four elements at a time ---------------------------------------------------------------- */

__device__ inline float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }

template <typename T>
__device__ inline float4 load4(const T *p) {
  const uint2 raw = *reinterpret_cast<const uint2 *>(p);
  const float2 lo = unpack2<T>(raw.x), hi = unpack2<T>(raw.y);
  return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/* Four elements as they lie in memory: loaded now, and not waited for before they are used. */
template <typename T>
struct Raw4 {
  std::conditional_t<sizeof(T) == sizeof(float), uint4, uint2> bits;
};

template <typename T>
__device__ inline Raw4<T> raw4_past_l1(const T *p) {
  return {__ldcg(reinterpret_cast<const decltype(Raw4<T>::bits) *>(p))};
}

template <typename T>
__device__ inline float4 load4(const Raw4<T> &raw) {
  return load4(reinterpret_cast<const T *>(&raw.bits));
}

/* load4 past the first-level cache. */
template <typename T>
__device__ inline float4 load4_past_l1(const T *p) {
  return load4(raw4_past_l1(p));
}

/* Stores round to nearest even. */
__device__ inline void store4(float *p, float4 v) { *reinterpret_cast<float4 *>(p) = v; }

template <typename T>
__device__ inline void store4(T *p, float4 v) {
  *reinterpret_cast<uint2 *>(p) = make_uint2(pack2<T>(v.x, v.y), pack2<T>(v.z, v.w));
}

__device__ inline float4 product4(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ inline float4 sum4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

/* sum + a . b, in order. */
__device__ inline float dot4(float sum, float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* sum += weight v */
__device__ inline void add_weighed(float4 &sum, float weight, float4 v) {
  sum.x = fmaf(weight, v.x, sum.x), sum.y = fmaf(weight, v.y, sum.y);
  sum.z = fmaf(weight, v.z, sum.z), sum.w = fmaf(weight, v.w, sum.w);
}

/* ---- without branches ------------------------------------------------------------------------ */

/* 1 / v and 1 / sqrt(v), within an ulp or so, of v far from either end of f32's range: one step of Newton's method behind the hardware's
 * approximation. The exact ones are calls for those ends. 1 / sqrt(inf) is 0: a sum of squares may be past the end. */
__device__ inline float inverse(float v) {
  const float near = __fdividef(1.0f, v);
  return fmaf(near, fmaf(-v, near, 1.0f), near);
}

__device__ inline float inverse_sqrt(float v) {
  const float near = rsqrtf(v);
  return near == 0.0f ? 0.0f : fmaf(0.5f * near, fmaf(-v * near, near, 1.0f), near);
}

__device__ inline float silu(float v) { return v / (1.0f + expf(-v)); }

/* ---- order ----------------------------------------------------------------------------------- */

/* f32 as an integer that sorts the same way; both zeros are one. */
__device__ inline uint32_t sortable(float v) {
  uint32_t bits = __float_as_uint(v + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float from_sortable(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* ---- warps and reductions --------------------------------------------------------------------- */

/* A value that all lanes of a warp have, so that the compiler knows it: what follows from it is computed once for the warp, in the
 * registers that matrix instructions take their operands from. */
__device__ inline uint32_t of_warp(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }

/* The whole warp: the sum of v over this lane and those below it. */
template <typename T>
__device__ inline T sum_up_to_lane(T v) {
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const T below = __shfl_up_sync(0xffffffffu, v, offset);
    if (threadIdx.x % WARP >= offset) v += below;
  }
  return v;
}

/* The whole warp: the sum of v over the LANES lanes that this one is among, the same in each of them. */
template <int LANES = WARP>
__device__ inline float sum_over_lanes(float v) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

/* The whole warp: the highest v over all its lanes, the same in each of them. */
__device__ inline float highest_over_lanes(float v) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

/* The sum over the block, or over part `part` of its PARTS, in an order that THREADS alone fixes, the same in each of the threads. */
template <int THREADS, int PARTS = 1>
__device__ inline float block_sum(float v, uint32_t part = 0) {
  static_assert(THREADS % WARP == 0, "whole warps");
  __shared__ float partials[PARTS][THREADS / WARP];
  float *partial = partials[part];
  v = sum_over_lanes(v);
  const uint32_t thread = PARTS == 1 ? threadIdx.x : threadIdx.x % THREADS;
  if (threadIdx.x % WARP == 0) partial[thread / WARP] = v;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < THREADS / WARP; w++) sum += partial[w];
  return sum;
}

/* How many of `all` rows a block has that takes up to `most` from `first` on. */
__device__ inline uint32_t rows_from(uint32_t first, uint32_t all, uint32_t most) {
  return all > first ? min(all - first, most) : 0;
}

/* ---- behind a step descriptor ---------------------------------------------------------------- */

/* The table that starts `offset` bytes into the state block. */
template <typename T>
__device__ inline const T *table(const tg_state *state, uint64_t offset) {
  return reinterpret_cast<const T *>(reinterpret_cast<const char *>(state) + offset);
}

/* A row's token, wherever it is (tg_row.token), past the first-level cache: it may be loaded before the wait (common/pdl.cuh). Where the
 * step before has ended the row's sequence without one, any token will do: nothing reads the row. */
__device__ inline uint32_t row_token(const tg_state *state, const tg_step *step, const tg_row *at) {
  const int32_t token = __ldcg(&at->token);
  if (token >= 0) return token;
  const uint32_t slot = __ldcg(&at->slot);
  if (token == -1) return __ldcg(&table<tg_slot>(state, __ldcg(&state->slot_table))[slot].last_token);
  if (token == TG_TOKEN_KEPT) {
    const int32_t *kept = table<int32_t>(state, __ldcg(&state->kept_table)) + (size_t)slot * __ldcg(&state->config.max_context);
    return __ldcg(kept + __ldcg(&at->position));
  }
  return max(__ldcg(&table<tg_sampled>(state, __ldcg(&step->earlier_table))[-2 - token].token), 0);
}
