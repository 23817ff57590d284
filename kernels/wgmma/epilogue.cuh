/* epilogue.cuh: what becomes of accumulators. Of a fragment, 8 columns of D, a thread has four sums: of row lane / 4 columns
 * lane % 4 * 2 and the next, and the same of the row 8 further (common/wgmma.cuh).
 */
#pragma once

#include "common/operands.cuh"

template <int N>
__device__ inline float4 fragment(const float (&acc)[N], uint32_t i) {
  return make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
}

__device__ inline float2 silu_mul(float2 gate, float2 up) { return make_float2(gmma_silu(gate.x) * up.x, gmma_silu(gate.y) * up.y); }
__device__ inline float4 silu_mul(float4 gate, float4 up) {
  return make_float4(gmma_silu(gate.x) * up.x, gmma_silu(gate.y) * up.y, gmma_silu(gate.z) * up.z, gmma_silu(gate.w) * up.w);
}
