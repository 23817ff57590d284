/* rope.cuh: norm and rotation of heads (attention/rope.cu has the formula), HEAD_LANES lanes a head. Lane j of a head has a run of its
 * lower half and the same run of its upper half: what is rotated together lies in one lane. */
#pragma once

#include "common/base.cuh"
#include "common/rmsnorm.cuh"

constexpr int HEAD_LANES = 8;
constexpr int WARP_HEADS = WARP / HEAD_LANES;

/* A lane's part of a head[D]: four elements at a time, elements LANE_RUN j + 4i .. of either half. */
template <int D>
struct HeadPart {
  static constexpr int LANE_RUN = D / 2 / HEAD_LANES, FOURS = LANE_RUN / 4;
  float4 low[FOURS], high[FOURS];

  /* Where the i-th four of a half lie. */
  __device__ static inline uint32_t at(int i) { return threadIdx.x % HEAD_LANES * LANE_RUN + 4 * i; }

  __device__ inline void load(const float *head) {
#pragma unroll
    for (int i = 0; i < FOURS; i++) low[i] = load4(head + at(i)), high[i] = load4(head + D / 2 + at(i));
  }
};

/* A lane's part of a head with its values as they lie in memory: loaded now, past the first-level cache, and not waited for before they are
 * used. */
template <typename T, int D>
struct RawHeadPart {
  static constexpr int FOURS = HeadPart<D>::FOURS;
  Raw4<T> low[FOURS], high[FOURS];

  __device__ inline void load(const T *head) {
#pragma unroll
    for (int i = 0; i < FOURS; i++)
      low[i] = raw4_past_l1(head + HeadPart<D>::at(i)), high[i] = raw4_past_l1(head + D / 2 + HeadPart<D>::at(i));
  }

  __device__ inline HeadPart<D> value() const {
    HeadPart<D> part;
#pragma unroll
    for (int i = 0; i < FOURS; i++) part.low[i] = load4(low[i]), part.high[i] = load4(high[i]);
    return part;
  }
};

/* head[D] as it is stored, from one lane's part. */
template <typename T, int D>
__device__ inline void store_head(T *head, const HeadPart<D> &part) {
#pragma unroll
  for (int i = 0; i < part.FOURS; i++) store4(head + part.at(i), part.low[i]), store4(head + D / 2 + part.at(i), part.high[i]);
}

/* Sines and cosines of a position, the same for all lanes of the warp. */
template <int D>
struct HeadRotation {
  static constexpr int LANE_RUN = HeadPart<D>::LANE_RUN, ANGLES = D / 2 / WARP;
  float sine[LANE_RUN], cosine[LANE_RUN];

  /* Lane l works out angles l, l + 32, ... */
  __device__ inline HeadRotation(const float *inverse_frequencies, uint32_t position) {
    const uint32_t lane = threadIdx.x % WARP;
    float of_lane[2][ANGLES];
#pragma unroll
    for (int i = 0; i < ANGLES; i++) sincosf(inverse_frequencies[lane + i * WARP] * (float)position, &of_lane[0][i], &of_lane[1][i]);
    auto from_lanes = [&](const float(&of)[ANGLES], uint32_t angle) {
      float found = __shfl_sync(0xffffffffu, of[0], angle % WARP);
#pragma unroll
      for (int i = 1; i < ANGLES; i++) {
        const float other = __shfl_sync(0xffffffffu, of[i], angle % WARP);
        if (angle / WARP == i) found = other;
      }
      return found;
    };
#pragma unroll
    for (int i = 0; i < LANE_RUN; i++) {
      const uint32_t angle = lane % HEAD_LANES * LANE_RUN + i;
      sine[i] = from_lanes(of_lane[0], angle), cosine[i] = from_lanes(of_lane[1], angle);
    }
  }

  /* The whole warp norms and rotates x, four heads at once. */
  __device__ inline void apply(HeadPart<D> &x, const HeadPart<D> &weight, float eps) const {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < x.FOURS; i++) squares = add_squares(add_squares(squares, x.low[i]), x.high[i]);
    const float scale = inverse_sqrt(sum_over_lanes<HEAD_LANES>(squares) * (1.0f / D) + eps);
#pragma unroll
    for (int i = 0; i < x.FOURS; i++) {
      float *low = &x.low[i].x, *high = &x.high[i].x;
      const float *low_weight = &weight.low[i].x, *high_weight = &weight.high[i].x;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float a = low[j] * scale * low_weight[j], b = high[j] * scale * high_weight[j];
        low[j] = a * cosine[4 * i + j] - b * sine[4 * i + j];
        high[j] = b * cosine[4 * i + j] + a * sine[4 * i + j];
      }
    }
  }
};
