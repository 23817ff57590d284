/* rmsnorm.cuh: RMSNorm of a row by one block, in parts, so that a kernel that has a row anyway norms it too.
 *
 *   x[:] = h[:] / sqrt(mean(h[:]^2) + eps) * weight
 *
 * f32 throughout, rounded once as x is stored. Thread t of a row's NORM_THREADS has elements 4t .. 4t+3 and every
 * 4 NORM_THREADS further; kernels that call these in that order get the same bits.
 */
#pragma once

#include "common/args.h"
#include "common/base.cuh"

constexpr int NORM_THREADS = TG_NORM_THREADS;

/* A thread's sum of squares so far, and four elements more. */
__device__ inline float add_squares(float squares, float4 v) {
  return squares + fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

/* What a row is multiplied with, from the sums of all threads; `row` is the row of the block's ROWS. (rsqrtf is an approximation.) */
template <int ROWS = 1>
__device__ inline float norm_scale(float squares, uint32_t hidden, float eps, uint32_t row = 0) {
  return 1.0f / sqrtf(block_sum<NORM_THREADS, ROWS>(squares, row) / hidden + eps);
}

__device__ inline float4 normed(float4 v, float scale, float4 w) {
  return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}
