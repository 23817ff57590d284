/* router.cu: which experts a row goes to, and with what weight. f32 throughout, from the residual stream.
 *
 *   z = rmsnorm(h[r])
 *   x[r] = z, rounded to the operand type: what the experts multiply with
 *   s = sigmoid(gate z), of z as it is        gate[E,H]
 *   chosen = the K largest of s + bias        ties to the lower index; the bias chooses, it does not weigh
 *   weight = s, over (sum of the chosen s + 1e-6) with norm_topk_prob, times routed_scaling_factor
 *
 * tg_scores_* stores s in scores[R,E], and the token sort chooses (router/sort_combine.cu): for buckets that its one block
 * is soon done with. tg_router_* chooses itself: experts[R,K] ascending in each row, weights[R,K] beside them.
 *
 * Bound: memory, (4 + sizeof(x)) H bytes of each row. The gate's 4EH are read from L2 once a block (a block of tg_scores_* has
 * SCORE_EXPERTS of the experts), so blocks of tg_scores_* take four rows where there are many, and those of tg_router_many_* eight, of
 * which a warp reads each for MANY_EXPERTS experts at once. For few rows latency is what counts: more blocks, each with less of the gate,
 * which is prefetched before the wait.
 *
 * Where there are clusters, router/norm_router.cu and norm_router_many.cu serve up to 64 experts and H up to 2048 instead.
 *
 * tg_router_many_* by hand, 7,296 rows, H = 2048, 32 experts, an H100: 90 MB of rows 30 us, 239 MB of the gate from L2 some 45 us,
 * 0.5 GFMA 16 us, which three blocks an SM were to overlap. Measured in the model 102 us at 7,189 rows, and 32 at 512: a warp has one
 * load of the gate for each of its experts under way, and waits for L2 (profiles/log/prompts.md).
 *
 * Launch: block = NORM_THREADS; tg_router_1_*: grid = rows of the bucket, shared = 4 (H + 2 MAX_EXPERTS); tg_scores_ROWS_*: grid = (E /
 * SCORE_EXPERTS, rows of the bucket / ROWS), shared = 4 ROWS H; tg_router_many_*: block = MANY_THREADS, grid = rows of the bucket / 8,
 * shared = 32 (H + 2 MAX_EXPERTS). Rows at or past the step's get no experts: the token sort does not look at them.
 */
#include "common/base.cuh"
#include "common/experts.cuh"
#include "common/launch.cuh"
#include "common/rmsnorm.cuh"
#include "common/pdl.cuh"
#include "router/args.h"

constexpr int ROUTER_WARPS = NORM_THREADS / WARP;
constexpr int SCORE_EXPERTS = TG_SCORE_EXPERTS;  /* a warp each */
constexpr int MANY_ROWS = TG_ROUTER_MANY_ROWS, MANY_THREADS = MANY_ROWS * WARP;  /* a warp norms a row, and chooses for it */
constexpr int MANY_EXPERTS = 4, MANY_AT_ONCE = 8;  /* whose weights a warp has for so many of the rows */
/* Blocks of them on an SM, so that some norm while others multiply; on sm_80 three would spill. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr int MANY_BLOCKS = 3;
#else
constexpr int MANY_BLOCKS = 2;
#endif

/* z[ROWS,H] in shared memory, and x[rows,H] unless null, from h[rows,H]; rows past `rows` repeat the last. */
template <int ROWS, typename X>
__device__ inline void norm_rows(float *z, X *x, const float *h, const float *weight, uint32_t rows, uint32_t hidden,
                                 float eps) {
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float *from = h + (size_t)min(i, (int)rows - 1) * hidden;
    float squares = 0.0f;
    for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * NORM_THREADS) squares = add_squares(squares, load4(from + c));
    float scale = norm_scale(squares, hidden, eps);
    for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * NORM_THREADS) {
      float4 v = normed(load4(from + c), scale, load4(weight + c));
      store4(z + i * hidden + c, v);
      if (x && i < rows) store4(x + (size_t)i * hidden + c, v);
    }
    __syncthreads();  /* also: block_sum's shared memory is free again */
  }
}

/* One warp: sigmoid(gate z[i]) for each of ROWS rows, in every lane; gate[H] is one expert's. */
template <int ROWS>
__device__ inline void scores_of(float (&scores)[ROWS], const float *gate, const float *z, uint32_t hidden, int lane) {
  float sums[ROWS] = {};
#pragma unroll 8
  for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
    float4 g = load4(gate + c);
#pragma unroll
    for (int i = 0; i < ROWS; i++) sums[i] = dot4(sums[i], g, load4(z + i * hidden + c));
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++) scores[i] = 1.0f / (1.0f + expf(-sum_over_lanes(sums[i])));
}

template <int ROWS, typename X>
__device__ inline void score(const tg_scores_args &a) {
  extern __shared__ float4 shared[];
  float *z = reinterpret_cast<float *>(shared);  /* [ROWS, H] */
  const int lane = threadIdx.x % WARP;
  const uint32_t expert = blockIdx.x * SCORE_EXPERTS + threadIdx.x / WARP, first = blockIdx.y * ROWS;
  const uint32_t hidden = a.hidden, expert_count = a.expert_count;
  const float *norm_weight = a.norm_weight, *gate = a.gate;
  const tg_step *step = a.step;
  let_next_kernel_start();
  prefetch(norm_weight, 4 * hidden, threadIdx.x, NORM_THREADS);
  if (expert < expert_count) prefetch(gate + (size_t)expert * hidden, 4 * hidden, lane, WARP);
  wait_for_earlier_kernels();
  if (first >= step->rows) return;
  const uint32_t rows = min((uint32_t)ROWS, step->rows - first);

  X *normed_rows = blockIdx.x == 0 ? static_cast<X *>(a.x) + (size_t)first * hidden : nullptr;
  norm_rows<ROWS>(z, normed_rows, a.h + (size_t)first * hidden, norm_weight, rows, hidden, a.eps);
  if (expert >= expert_count) return;
  float found[ROWS];
  scores_of(found, gate + (size_t)expert * hidden, z, hidden, lane);
#pragma unroll
  for (int i = 0; i < ROWS; i++)
    if (lane == i && i < rows) a.scores[(size_t)(first + i) * expert_count + expert] = found[i];
}

/* One warp: experts[R,K] and weights[R,K] of row r, from its scores[E]. */
__device__ inline void choose_for_row(const tg_choosing_args &arrays, const tg_router_args &a, const float *scores, uint32_t r) {
  const size_t to = (size_t)r * a.k;
  const Weighing weighing{a.k, a.normalize != 0, a.scaling};
  auto store = [&](uint32_t index, uint32_t expert, float weight) {
    arrays.experts[to + index] = expert;
    arrays.weights[to + index] = weight;
  };
  choose_experts(scores, arrays.bias, a.expert_count, weighing, store);
}

template <typename X>
__device__ inline void route(const tg_choosing_args &arrays, const tg_router_args &a) {
  const uint32_t hidden = a.hidden, expert_count = a.expert_count;
  const tg_step *step = arrays.step;
  extern __shared__ float4 shared[];
  float *z = reinterpret_cast<float *>(shared);  /* [H] */
  float *scores = z + hidden;                    /* [MAX_EXPERTS] */
  begin_kernel();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t r = blockIdx.x;
  if (r >= step->rows) return;

  norm_rows<1>(z, static_cast<X *>(arrays.x) + (size_t)r * hidden, arrays.h + (size_t)r * hidden, arrays.norm_weight, 1, hidden, a.eps);
  for (uint32_t e = warp; e < expert_count; e += ROUTER_WARPS) {
    float found[1];
    scores_of(found, arrays.gate + (size_t)e * hidden, z, hidden, lane);
    if (lane == 0) scores[e] = found[0];
  }
  __syncthreads();
  if (warp == 0) choose_for_row(arrays, a, scores, r);
}

/* One warp: z[H] and x[H] unless null, from h[H], to the bits that the threads of a block of NORM_THREADS make of it. */
template <typename X>
__device__ inline void norm_row(float *z, X *x, const float *h, const float *weight, uint32_t hidden, float eps) {
  const uint32_t lane = threadIdx.x % WARP;
  constexpr int PARTS = NORM_THREADS / WARP;
  float squares[PARTS] = {}, sum = 0.0f;
  for (uint32_t first = 4 * lane; first < hidden; first += 4 * NORM_THREADS) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const uint32_t c = first + part * 4 * WARP;
      if (c < hidden) squares[part] = add_squares(squares[part], load4(h + c));
    }
  }
#pragma unroll
  for (int part = 0; part < PARTS; part++) sum += sum_over_lanes(squares[part]);
  const float scale = 1.0f / sqrtf(sum / hidden + eps);
#pragma unroll 4
  for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
    const float4 v = normed(load4(h + c), scale, load4(weight + c));
    store4(z + c, v);
    if (x) store4(x + c, v);
  }
}

/* The same for MANY_ROWS rows a block. */
template <typename X>
__device__ inline void route_many(const tg_choosing_args &arrays, const tg_router_args &a) {
  const uint32_t hidden = a.hidden, expert_count = a.expert_count;
  const float *h = arrays.h, *gate = arrays.gate;
  const tg_step *step = arrays.step;
  X *x = static_cast<X *>(arrays.x);
  extern __shared__ float4 shared[];
  float *z = reinterpret_cast<float *>(shared);  /* [MANY_ROWS, H] */
  float *scores = z + MANY_ROWS * hidden;        /* [MANY_ROWS, MAX_EXPERTS] */
  begin_kernel();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t first = blockIdx.x * MANY_ROWS;
  if (first >= step->rows) return;
  const uint32_t rows = min((uint32_t)MANY_ROWS, step->rows - first), row = min((uint32_t)warp, rows - 1);
  norm_row(z + warp * hidden, warp < rows ? x + (size_t)(first + row) * hidden : nullptr, h + (size_t)(first + row) * hidden,
           arrays.norm_weight, hidden, a.eps);
  __syncthreads();
  constexpr int SETS = MANY_ROWS / MANY_AT_ONCE;  /* of rows, whose warps take the same experts */
  const int first_row = warp % SETS * MANY_AT_ONCE;
  const float *rows_here = z + first_row * hidden;
  for (uint32_t e = warp / SETS * MANY_EXPERTS; e < expert_count; e += MANY_ROWS / SETS * MANY_EXPERTS) {
    float sums[MANY_EXPERTS][MANY_AT_ONCE] = {};
    const float *of[MANY_EXPERTS];
#pragma unroll
    for (int k = 0; k < MANY_EXPERTS; k++) of[k] = gate + (size_t)min(e + k, expert_count - 1) * hidden;
#pragma unroll 1
    for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
      float4 g[MANY_EXPERTS];
#pragma unroll
      for (int k = 0; k < MANY_EXPERTS; k++) g[k] = load4(of[k] + c);
#pragma unroll
      for (int i = 0; i < MANY_AT_ONCE; i++) {
        const float4 v = load4(rows_here + i * hidden + c);
#pragma unroll
        for (int k = 0; k < MANY_EXPERTS; k++) sums[k][i] = dot4(sums[k][i], g[k], v);
      }
    }
#pragma unroll
    for (int k = 0; k < MANY_EXPERTS; k++)
#pragma unroll
      for (int i = 0; i < MANY_AT_ONCE; i++) {
        const float sum = sum_over_lanes(sums[k][i]);
        if (lane == i && e + k < expert_count) scores[(first_row + i) * MAX_EXPERTS + e + k] = 1.0f / (1.0f + expf(-sum));
      }
  }
  __syncthreads();
  if (warp < rows) choose_for_row(arrays, a, scores + warp * MAX_EXPERTS, first + warp);
}

#define SCORES(SUFFIX, ROWS, X)                                                           \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) tg_scores_##ROWS##_##SUFFIX( \
      const tg_scores_args a) {                                                           \
    score<ROWS, X>(a);                                                                    \
  }
#define ROUTER(NAME, BODY, ...)                                   \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) NAME( \
      const tg_choosing_args arrays, const tg_router_args a) {    \
    BODY(arrays, a);                                              \
  }
#define ROUTERS(SUFFIX, X)                                        \
  SCORES(SUFFIX, 1, X)                                            \
  SCORES(SUFFIX, 4, X)                                            \
  ROUTER(tg_router_1_##SUFFIX, route<X>, NORM_THREADS)            \
  ROUTER(tg_router_many_##SUFFIX, route_many<X>, MANY_THREADS, MANY_BLOCKS)
FOR_TYPES(ROUTERS)
