/* norm.cu: RMSNorm over the hidden dimension (common/rmsnorm.cuh has the formula), where no kernel before or after has the
 * rows: the router norms for its layer's experts, the experts' combination for the layer after it.
 *
 * Bound: memory, 4H bytes in and sizeof(x) H out for a row, and for decode buckets latency: so a row has a block to itself and the second
 * pass finds it in L1. 8,192 rows of 2048 in bf16: 31.4 us on an H200, 71% of the bound; 509 rows: 4.4
 * (profiles/results/kernels-prompts-h200-2026-11-28.txt, kernels-heads-h200-2026-11-28.txt).
 *
 * Launch: grid = rows of the bucket (or most sampled rows), block = NORM_THREADS. Blocks past the step's own count leave x alone.
 */
#include "common/base.cuh"
#include "common/launch.cuh"
#include "common/rmsnorm.cuh"
#include "common/pdl.cuh"

/* x[H], h[H], weight[H] */
template <typename T>
__device__ inline void normalize_row(T *x, const float *h, const float *weight, uint32_t hidden, float eps) {
  float squares = 0.0f;
  for (uint32_t i = 4 * threadIdx.x; i < hidden; i += 4 * NORM_THREADS) squares = add_squares(squares, load4(h + i));
  float scale = norm_scale(squares, hidden, eps);
  for (uint32_t i = 4 * threadIdx.x; i < hidden; i += 4 * NORM_THREADS)
    store4(x + i, normed(load4(h + i), scale, load4(weight + i)));
}

/* x[R,H] from h[R,H]: every row of the step */
template <typename T>
__device__ inline void rmsnorm(T *x, const float *h, const float *weight, const tg_step *step, uint32_t hidden, float eps) {
  begin_kernel();
  uint32_t row = blockIdx.x;
  if (row >= step->rows) return;
  normalize_row(x + (size_t)row * hidden, h + (size_t)row * hidden, weight, hidden, eps);
}

/* x[S,H] from h[R,H]: the sampled rows, gathered */
template <typename T>
__device__ inline void rmsnorm_sampled(T *x, const float *h, const float *weight, const tg_state *state,
                                       const tg_step *step, uint32_t hidden, float eps) {
  /* Before the LM head may start: its many weights would stand before these. */
  prefetch(weight, hidden * sizeof(float), threadIdx.x, NORM_THREADS);
  let_next_kernel_start();
  /* The step's tables were there before it began. */
  const uint32_t sample = blockIdx.x, samples = __ldcg(&step->sample_rows);
  const uint32_t row = sample < samples ? __ldcg(table<uint32_t>(state, __ldcg(&step->sample_table)) + sample) : 0;
  wait_for_earlier_kernels();
  if (sample >= samples) return;
  normalize_row(x + (size_t)sample * hidden, h + (size_t)row * hidden, weight, hidden, eps);
}

#define RMSNORM(SUFFIX, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) tg_rmsnorm_##SUFFIX(                                \
      T *x, const float *h, const float *weight, const tg_step *step, uint32_t hidden, float eps) {              \
    rmsnorm<T>(x, h, weight, step, hidden, eps);                                                                 \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) tg_rmsnorm_sampled_##SUFFIX(                        \
      T *x, const float *h, const float *weight, const tg_state *state, const tg_step *step, uint32_t hidden,    \
      float eps) {                                                                                               \
    rmsnorm_sampled<T>(x, h, weight, state, step, hidden, eps);                                                  \
  }
FOR_TYPES(RMSNORM)
