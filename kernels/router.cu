/* router.cu: which experts a row goes to, and with what weight. f32 throughout, from the residual stream.
 *
 *   z = rmsnorm(h[r]) (not rounded, unlike the experts' operand)
 *   s = sigmoid(gate z)                      gate[E,H]
 *   chosen = the K largest of s + bias       ties to the lower index; the bias chooses, it does not weigh
 *   weight = s, over (sum of the chosen s + 1e-6) with norm_topk_prob, times routed_scaling_factor
 *
 * experts[R,K] ascending in each row, weights[R,K] beside them.
 *
 * Bound: memory, 4H bytes of each row; the gate's 4EH are read from L2 once a block, so blocks take four
 * rows where there are many. The sums of a row are the same either way.
 *
 * Launch: grid = rows of the bucket / ROWS, block = ROUTER_THREADS, shared = 4 ROWS (H + 2 MAX_EXPERTS).
 * Rows at or past the step's get no experts: the token sort does not look at them.
 */
#include "common.cuh"
#include "experts.cuh"
#include "pdl.cuh"

constexpr int ROUTER_THREADS = 256;
constexpr int ROUTER_WARPS = ROUTER_THREADS / WARP;

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ inline float dot4(float sum, float4 a, float4 b) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

/* One warp chooses for one row from scores[E] and chosen_by[E] = score + bias, in shared memory. */
__device__ inline void choose(uint32_t *experts, float *weights, const float *scores, const float *chosen_by,
                              uint32_t expert_count, uint32_t k, bool normalize, float scaling, int lane) {
  constexpr int PER_LANE = MAX_EXPERTS / WARP;
  uint32_t taken = 0;  /* bit i: this lane's expert lane + 32 i is chosen */
  for (uint32_t round = 0; round < k; round++) {
    float best = -INFINITY;
    uint32_t best_expert = MAX_EXPERTS;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      uint32_t e = lane + i * WARP;
      if (e < expert_count && !(taken >> i & 1) && (best_expert == MAX_EXPERTS || chosen_by[e] > best)) {
        best = chosen_by[e];
        best_expert = e;
      }
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
      float other = __shfl_xor_sync(0xffffffffu, best, offset);
      uint32_t other_expert = __shfl_xor_sync(0xffffffffu, best_expert, offset);
      if (other_expert != MAX_EXPERTS &&
          (best_expert == MAX_EXPERTS || other > best || (other == best && other_expert < best_expert))) {
        best = other;
        best_expert = other_expert;
      }
    }
    best_expert = __shfl_sync(0xffffffffu, best_expert, 0);  /* one answer, even where a score is not a number */
    if (best_expert % WARP == lane) taken |= 1u << (best_expert / WARP);
  }
  float sum = 0.0f;
  uint32_t before = 0;  /* chosen experts below 32 i */
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    bool mine = taken >> i & 1;
    uint32_t everyone = __ballot_sync(0xffffffffu, mine);
    uint32_t place = before + __popc(everyone & ((1u << lane) - 1));
    if (mine) {
      experts[place] = lane + i * WARP;
      weights[place] = scores[lane + i * WARP];
    }
    before += __popc(everyone);
    while (everyone) {  /* ascending, the same in every lane */
      sum += scores[__ffs(everyone) - 1 + i * WARP];
      everyone &= everyone - 1;
    }
  }
  __syncwarp();
  if (lane < k) {
    float w = weights[lane];
    weights[lane] = (normalize ? w / (sum + 1e-6f) : w) * scaling;
  }
}

/* h[R,H], norm_weight[H], gate[E,H], bias[E] or null */
template <int ROWS>
__device__ inline void route(uint32_t *experts, float *weights, const float *h, const float *norm_weight,
                             const float *gate, const float *bias, const tg_step *step, uint32_t hidden,
                             uint32_t expert_count, uint32_t k, uint32_t normalize, float scaling, float eps) {
  extern __shared__ float4 shared[];
  float *z = reinterpret_cast<float *>(shared);         /* [ROWS, H] */
  float *scores = z + ROWS * hidden;                    /* [ROWS, MAX_EXPERTS] */
  float *chosen_by = scores + ROWS * MAX_EXPERTS;       /* [ROWS, MAX_EXPERTS] */
  begin_kernel();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t first = blockIdx.x * ROWS;
  if (first >= step->rows) return;
  const uint32_t rows = min((uint32_t)ROWS, step->rows - first);

#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float *from = h + (size_t)(first + min(i, (int)rows - 1)) * hidden;
    float squares = 0.0f;
    for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * ROUTER_THREADS) {
      float4 v = load4(from + c);
      squares = dot4(squares, v, v);
    }
    float scale = 1.0f / sqrtf(block_sum<ROUTER_THREADS>(squares) / hidden + eps);
    for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * ROUTER_THREADS) {
      float4 v = load4(from + c), w = load4(norm_weight + c);
      store4(z + i * hidden + c, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
    __syncthreads();  /* also: block_sum's shared memory is free again */
  }

  for (uint32_t e = warp; e < expert_count; e += ROUTER_WARPS) {
    float sums[ROWS] = {};
    for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
      float4 g = load4(gate + (size_t)e * hidden + c);
#pragma unroll
      for (int i = 0; i < ROWS; i++) sums[i] = dot4(sums[i], g, load4(z + i * hidden + c));
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float score = 1.0f / (1.0f + expf(-warp_sum(sums[i])));
      if (lane == 0) {
        scores[i * MAX_EXPERTS + e] = score;
        chosen_by[i * MAX_EXPERTS + e] = bias ? score + bias[e] : score;
      }
    }
  }
  __syncthreads();
  if (warp < rows)
    choose(experts + (size_t)(first + warp) * k, weights + (size_t)(first + warp) * k, scores + warp * MAX_EXPERTS,
           chosen_by + warp * MAX_EXPERTS, expert_count, k, normalize, scaling, lane);
}

#define ROUTER(ROWS)                                                                                                \
  extern "C" __global__ void __launch_bounds__(ROUTER_THREADS) tg_router_##ROWS(                                    \
      uint32_t *experts, float *weights, const float *h, const float *norm_weight, const float *gate,               \
      const float *bias, const tg_step *step, uint32_t hidden, uint32_t expert_count, uint32_t k,                   \
      uint32_t normalize, float scaling, float eps) {                                                               \
    route<ROWS>(experts, weights, h, norm_weight, gate, bias, step, hidden, expert_count, k, normalize, scaling, eps); \
  }

ROUTER(1)
ROUTER(4)
