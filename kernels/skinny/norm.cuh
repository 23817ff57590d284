/* norm.cuh: what the kernels share that norm their rows and multiply them (skinny/norm.cu, skinny/experts.cu): a block's shared memory,
 * and tiles of gate and up, which are 8 rows of W1 and the same 8 of W3, so that one thread has both sums.
 */
#pragma once

#include "skinny/choice.cuh"
#include "skinny/pipeline.cuh"
#include "skinny/rows.cuh"

constexpr uint32_t GATE_OUTPUTS = SKINNY_STAGE_ROWS;
static_assert(2 * GATE_OUTPUTS == SKINNY_OUTPUTS, "a run of each matrix");

/* Shared memory, in this order: sums, the norm's weight, normed rows, choice, `beside` bytes for the caller, pipeline. */
template <class Math, uint32_t WORDS = 1>
struct SkinnyNormBlock {
  using Choice = SkinnyChoice<WORDS>;
  using S = typename Math::S;
  SkinnySums sums;
  float *norm;
  char *x;
  uint32_t x_pitch;
  Choice *choice;
  SkinnyPipeline<Math> pipeline;

  __device__ inline SkinnyNormBlock(uint4 *shared, uint64_t *barriers, uint32_t bucket, uint32_t hidden, bool choose,
                                 uint32_t stages, uint32_t beside = 0, uint32_t later = 0)
      : sums{reinterpret_cast<float *>(shared), bucket},
        norm(reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + SkinnySums::bytes_of(bucket))),
        x(reinterpret_cast<char *>(norm + hidden)),
        x_pitch(skinny_pitch<S>(hidden)), choice(reinterpret_cast<Choice *>(x + Math::PARTS * bucket * x_pitch)),
        pipeline(reinterpret_cast<char *>(choice) + (choose ? sizeof(Choice) : 0) + beside, barriers, hidden, stages, later) {
    if (threadIdx.x == 0) pipeline.init();
  }

  /* All consumers: a tile's sums. */
  __device__ inline void consume(SkinnyColumns<Math> &columns, const S *row, uint32_t inner) {
    sums.put(skinny_whole<Math>(pipeline.consume(columns, row, inner), sums.rows));
  }

  /* Output i of a tile of gate and up, for row r. */
  __device__ inline float gated(uint32_t r, uint32_t i) const {
    return silu(sums.get(r, i)) * sums.get(r, i + GATE_OUTPUTS);
  }

  /* The row of `x` that this lane multiplies. */
  __device__ inline const S *row(uint32_t rows) const {
    return reinterpret_cast<const S *>(x + Math::lane_place(rows, sums.rows) * x_pitch);
  }
};

/* The weight rows of a tile, of w[N,H]. */
template <class Math>
__device__ inline SkinnyRows<Math> skinny_gate_rows(const typename Math::W *w, uint32_t tile, uint32_t outputs, uint32_t hidden) {
  return SkinnyRows<Math>::of(w, tile * GATE_OUTPUTS, outputs, hidden);
}
