/* rope.cuh: norm and rotation of one head by one warp (rope.cu has the formula). */
#ifndef TAILGRAPH_ROPE_CUH
#define TAILGRAPH_ROPE_CUH

#include "common.cuh"

/* Of head[D], lane l has elements l, l+32, ... This is what it needs to know beforehand: the weights, and sines and cosines
 * of the position. */
template <int D>
struct HeadRotation {
  static constexpr int PER_LANE = D / WARP, HALF = PER_LANE / 2;
  float weight[PER_LANE], sine[HALF], cosine[HALF];

  __device__ inline HeadRotation(const float *weights, const float *inverse_frequencies, uint32_t position, int lane) {
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) weight[i] = weights[lane + i * WARP];
#pragma unroll
    for (int i = 0; i < HALF; i++) sincosf(inverse_frequencies[lane + i * WARP] * (float)position, &sine[i], &cosine[i]);
  }

  /* v -> normed and rotated */
  __device__ inline void apply(float (&v)[PER_LANE], float eps) const {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) squares = fmaf(v[i], v[i], squares);
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    const float scale = 1.0f / sqrtf(squares / D + eps);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) v[i] = v[i] * scale * weight[i];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      const float a = v[i], b = v[i + HALF];
      v[i] = a * cosine[i] - b * sine[i];
      v[i + HALF] = b * cosine[i] + a * sine[i];
    }
  }
};

#endif
