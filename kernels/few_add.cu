/* few_add.cu: products that add to the residual stream, for steps of few rows (few.cuh):
 *
 *   tg_few_out_*   h[r,:] += W x[r,:] + bias: out-projections, a dense feed-forward's down
 *   tg_few_down_*  h[r,:] += sum over i of weights[r,i] W_e y[r K + i,:], i and with it the expert e ascending
 *
 * With `partial` tg_few_out_* also leaves each tile's share of the router's scores (few_choice.cuh).
 *
 * Each column of a row is wanted by one warp alone, so that a warp brings its own to shared memory. tg_few_down_* chooses before its wait: the kernel before it, tg_few_expert_gate_up_*, lets it
 * start only once the scores are there.
 *
 * Bound: memory, N K sizeof(W) bytes (for experts, of each that any row chose).
 *
 * Launch: block = FEW_THREADS, grid = at most as many blocks as N has tiles, shared = few_add_shared.
 */
#include "few.cuh"
#include "few_choice.cuh"

/* The router's side of tg_few_out_*: gate[E,H], norm_weight[H] -> partial[R, H / FEW_OUTPUTS, score_columns(E)]. */
struct FewScores {
  float *partial;
  const float *gate, *norm_weight;
  uint32_t expert_count;
};

constexpr uint32_t SCORE_PITCH = FEW_OUTPUTS + 1;

/* A consumer warp: the sums of a run of weight rows with this lane's batch row, `from` in global memory if it is `there`.
 * Its columns of all rows go to `x`, [bucket, pitch bytes] in shared memory, unless those of the whole run are there still
 * (`fetch` is false). */
template <class Math>
__device__ inline float2 few_consume(FewRing<Math> &ring, char *x, uint32_t pitch, const typename Math::X *from, bool there,
                                     uint32_t inner, uint32_t bucket, bool fetch) {
  using X = typename Math::X;
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = warp * FEW_UNIT + lane % 4 * 8;
  X *to = reinterpret_cast<X *>(x + lane / 4 * pitch) + column;
  const X *mine = reinterpret_cast<const X *>(x + few_lane_row(bucket) * pitch) + column;
  constexpr uint32_t STEP = FEW_CONSUMER_WARPS * FEW_UNIT;
  float2 acc = make_float2(0.0f, 0.0f);
  for (uint32_t first = 0; first < inner; first += ring.k) {
    const uint32_t k_here = min(ring.k, inner - first);
    if (fetch) {
      if (lane / 4 < bucket) {
#pragma unroll
        for (uint32_t u = 0; u < FEW_UNITS; u++) {
          if (warp * FEW_UNIT + u * STEP >= k_here) break;
#pragma unroll
          for (uint32_t i = 0; i < 8; i += 16 / sizeof(X))
            copy16_async(to + u * STEP + i, from + (there ? first + column + u * STEP + i : 0), there);
        }
      }
      copy_commit();
      copy_wait<0>();
      __syncwarp();
    }
    ring.take(acc, k_here, [&](uint32_t u) { return Math::piece(mine + u * STEP); });
  }
  return acc;
}

/* h[R,N]; w[N,K], of each expert `stride` elements after the one before; x[R,K], or x[R k,K] with EXPERTS;
 * bias[N] or null. */
template <class Math, bool EXPERTS>
__device__ inline void few_add(float *h, const typename Math::X *x, const typename Math::W *w, uint64_t stride,
                               const float *bias, const float *partial, const float *expert_bias, FewScores scores,
                               const tg_step *step, uint32_t outputs, uint32_t inner, uint32_t expert_count,
                               Weighing weighing, uint32_t bucket, uint32_t stages, float eps) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * FEW_MOST_STAGES];
  let_next_kernel_start();
  FewSums sums{reinterpret_cast<float *>(shared), bucket};
  char *after = reinterpret_cast<char *>(shared) + FewSums::bytes_of(bucket);
  FewChoice &choice = *reinterpret_cast<FewChoice *>(after);
  /* a tile of h, [bucket, SCORE_PITCH], and of gate times norm, [E, SCORE_PITCH] */
  float *tile_h = reinterpret_cast<float *>(after), *tile_gate = tile_h + bucket * SCORE_PITCH;
  const uint32_t scores_bytes = (bucket + scores.expert_count) * SCORE_PITCH * sizeof(float);
  after += EXPERTS ? sizeof(FewChoice) : scores.partial ? (scores_bytes + 15) / 16 * 16 : 0;
  /* a stage's columns of each row */
  char *x_here = after;
  const uint32_t x_pitch = few_pitch<X>(few_stage_k(inner));
  FewRing<Math> ring(after + bucket * x_pitch, barriers, inner, stages);
  if (threadIdx.x == 0) ring.init();
  const bool producer = threadIdx.x >= FEW_CONSUMERS;
  const uint32_t tiles = (outputs + FEW_OUTPUTS - 1) / FEW_OUTPUTS, lane = threadIdx.x % WARP;
  uint32_t count = 0, rows = 1;
  if (EXPERTS) {
    if (!producer) {
      count = step->rows, rows = min(max(count, 1u), bucket);
      FewChoiceScratch &choosing = *reinterpret_cast<FewChoiceScratch *>(ring.stages);
      few_choose(choice, choosing, partial, expert_bias, rows, bucket, outputs, expert_count, weighing, eps);
    }
  }
  __syncthreads();
  const uint32_t experts = EXPERTS ? choice.count : 1;

  if (producer) {
    const uint64_t policy = read_once();
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      for (uint32_t at = 0; at < experts; at++)
        for (uint32_t n = tile * FEW_OUTPUTS + lane, half = 0; half < 2; half++, n += FEW_STAGE_ROWS) {
          const W *from = w + (EXPERTS ? choice.list[at] * stride : 0) + (size_t)n * inner;
          ring.feed(lane < FEW_STAGE_ROWS && n < outputs ? from : nullptr, inner, policy);
        }
    return;
  }

  auto weigh_gate = [&](uint32_t tile) {
    for (uint32_t g = threadIdx.x; g < scores.expert_count * FEW_OUTPUTS; g += FEW_CONSUMERS) {
      const uint32_t e = g / FEW_OUTPUTS, c = tile * FEW_OUTPUTS + g % FEW_OUTPUTS;
      tile_gate[e * SCORE_PITCH + g % FEW_OUTPUTS] = scores.gate[(size_t)e * outputs + c] * scores.norm_weight[c];
    }
  };
  if (!EXPERTS && scores.partial && blockIdx.x < tiles) weigh_gate(blockIdx.x);
  wait_for_earlier_kernels();
  if (!EXPERTS) count = step->rows;
  const uint32_t there = min(count, bucket);
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint32_t r = threadIdx.x / FEW_OUTPUTS, i = threadIdx.x % FEW_OUTPUTS, n = tile * FEW_OUTPUTS + i;
    const bool mine = r < there && n < outputs;
    /* asked for before it is needed */
    float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
    if (mine && bias) v += bias[n];
    float2 low = make_float2(0.0f, 0.0f), high = low;
    const uint32_t row = lane / 4;
    for (uint32_t at = 0; at < experts; at++) {
      const uint32_t index = EXPERTS ? choice.index[row][choice.list[at]] : row < there ? 0 : NOT_CHOSEN;
      const X *from = x + (size_t)(EXPERTS && index != NOT_CHOSEN ? row * weighing.k + index : row) * inner;
      const float2 first = few_consume(ring, x_here, x_pitch, from, index != NOT_CHOSEN, inner, bucket, true);
      const float2 second = few_consume(ring, x_here, x_pitch, from, index != NOT_CHOSEN, inner, bucket, inner > ring.k);
      if (!EXPERTS) {
        low = first, high = second;
      } else if (index != NOT_CHOSEN) {
        const float weight = choice.weight[row][index];
        low = make_float2(fmaf(weight, first.x, low.x), fmaf(weight, first.y, low.y));
        high = make_float2(fmaf(weight, second.x, high.x), fmaf(weight, second.y, high.y));
      }
    }
    sums.put(low, high);
    if (mine) {
      v += sums.get(r, i);
      h[(size_t)r * outputs + n] = v;
    }
    if (EXPERTS || !scores.partial) continue;
    if (r < bucket) tile_h[r * SCORE_PITCH + i] = v;
    consumers_meet();
    const uint32_t columns = score_columns(scores.expert_count);
    for (uint32_t s = threadIdx.x; s < there * (scores.expert_count + 1); s += FEW_CONSUMERS) {
      const uint32_t row = s / (scores.expert_count + 1), e = s % (scores.expert_count + 1);
      const float *of_h = tile_h + row * SCORE_PITCH;
      const float *with = e < scores.expert_count ? tile_gate + e * SCORE_PITCH : of_h;
      float sum = 0.0f;
#pragma unroll
      for (uint32_t c = 0; c < FEW_OUTPUTS; c++) sum = fmaf(of_h[c], with[c], sum);
      scores.partial[((size_t)row * tiles + tile) * columns + e] = sum;
    }
    consumers_meet();
    if (tile + gridDim.x < tiles) weigh_gate(tile + gridDim.x);
  }
}

#define FEW_ADD(SUFFIX, MATH)                                                                                           \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) tg_few_out_##SUFFIX(                                     \
      float *h, const MATH::X *x, const MATH::W *w, const float *bias, float *partial, const float *gate,               \
      const float *norm_weight, const tg_step *step, uint32_t outputs, uint32_t inner, uint32_t expert_count,           \
      uint32_t bucket, uint32_t stages) {                                                                               \
    FEW_BODY(few_add<MATH, false>(h, x, w, 0, bias, nullptr, nullptr, FewScores{partial, gate, norm_weight, expert_count}, step, \
                         outputs, inner, 0, Weighing{}, bucket, stages, 0.0f);)                                         \
  }                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) tg_few_down_##SUFFIX(                                    \
      float *h, const MATH::X *y, const MATH::W *w, uint64_t stride, const float *partial, const float *expert_bias,    \
      const tg_step *step, uint32_t outputs, uint32_t inner, uint32_t expert_count, uint32_t k, uint32_t normalize,     \
      float scaling, uint32_t bucket, uint32_t stages, float eps) {                                                     \
    FEW_BODY(few_add<MATH, true>(h, y, w, stride, nullptr, partial, expert_bias, FewScores{}, step, outputs, inner,     \
                        expert_count, Weighing{k, normalize != 0, scaling}, bucket, stages, eps);)                      \
  }

FEW_ADD(bf16, FewHalf<__nv_bfloat16>)
FEW_ADD(f16, FewHalf<__half>)
FEW_ADD(f32, FewSplit)
