/* bf16x3.cuh: an f32 as the sum of three bf16, exactly where 2^-110 <= |v| < 2^127. Products of such rows are three passes of the
 * tensor cores in bf16, the smallest part's first. Any GPU.
 */
#ifndef TAILGRAPH_BF16X3_CUH
#define TAILGRAPH_BF16X3_CUH

#include "common/args.h"
#include "common/base.cuh"

/* The largest part of both; v is what is left of them. */
__device__ inline uint32_t take_bf16(float2 &v) {
  __nv_bfloat162 rounded = __float22bfloat162_rn(v);
  const float2 back = __bfloat1622float2(rounded);
  v = make_float2(v.x - back.x, v.y - back.y);
  return *reinterpret_cast<uint32_t *>(&rounded);
}

__device__ inline void bf16x3(float2 v, uint32_t (&parts)[TG_PARTS]) {
#pragma unroll
  for (uint32_t p = 0; p < TG_PARTS; p++) parts[p] = take_bf16(v);
}

#endif
