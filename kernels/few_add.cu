/* few_add.cu: products that add to the residual stream, for steps of few rows (few.cuh):
 *
 *   tg_few_out_*   h[r,:] += W x[r,:] + bias: out-projections, a dense feed-forward's down
 *   tg_few_down_*  h[r,:] += sum over i of weights[r,i] W_e y[r K + i,:], i and with it the expert e ascending
 *
 * With `partial` tg_few_out_* also leaves each tile's share of the router's scores (few_choice.cuh).
 *
 * The rows travel through the ring beside their weights; the ring's first weights are asked for before the wait, its
 * first rows behind it. tg_few_down_* chooses before its wait: the kernel before it, tg_few_expert_gate_up_*, lets it
 * start only once the scores are there.
 *
 * Bound: memory, N K sizeof(W) bytes (for experts, of each that any row chose).
 *
 * Launch: block = FEW_THREADS, grid = at most as many blocks as N has tiles, shared = few_add_shared.
 */
#include "few.cuh"
#include "few_choice.cuh"

/* Where the producer is: a stage of one expert's share of one tile. */
struct FewItem {
  uint32_t tile, expert, k;

  __device__ inline void next(uint32_t experts, uint32_t inner) {
    if ((k += FEW_K) < inner) return;
    k = 0;
    if (++expert < experts) return;
    expert = 0;
    tile += gridDim.x;
  }
};

/* The router's side of tg_few_out_*: gate[E,H], norm_weight[H] -> partial[R, H / FEW_OUTPUTS, score_columns(E)]. */
struct FewScores {
  float *partial;
  const float *gate, *norm_weight;
  uint32_t expert_count;
};

constexpr uint32_t SCORE_PITCH = FEW_OUTPUTS + 1;

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
  FewRing<Math> ring(after, barriers, bucket, stages);
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
    if (EXPERTS) count = step->rows, rows = min(max(count, 1u), bucket);
    auto users = [&](const FewItem &item) {  /* a bit for each row that goes to the expert */
      if (!EXPERTS) return (1u << rows) - 1;
      return __ballot_sync(0xffffffffu, lane < rows && choice.index[lane % FEW_ROWS][choice.list[item.expert]] != NOT_CHOSEN);
    };
    auto fill_w = [&](const FewItem &item, uint32_t rows_there) {
      const uint32_t n = item.tile * FEW_OUTPUTS + lane, k_here = min(FEW_K, inner - item.k);
      const W *from = w + (EXPERTS ? choice.list[item.expert] * stride : 0) + (size_t)n * inner + item.k;
      ring.fill(lane < FEW_OUTPUTS && n < outputs ? from : nullptr, k_here, rows_there * k_here * sizeof(X), policy);
    };
    auto fill_x = [&](const FewRing<Math> &to, const FewItem &item, uint32_t used) {
      if (!(used >> lane & 1)) return;
      const uint32_t row = EXPERTS ? lane * weighing.k + choice.index[lane][choice.list[item.expert]] : lane;
      bulk_copy(to.stage_x(lane), x + (size_t)row * inner + item.k, min(FEW_K, inner - item.k) * sizeof(X), to.full + to.at);
    };
    /* Rows that are not there yet: how many is known with EXPERTS; without, all of the bucket's are copied, whatever
     * those past the step's hold. */
    if (!EXPERTS) rows = bucket;
    FewItem item{blockIdx.x, 0, 0}, late = item;
    FewRing<Math> late_ring = ring;
    for (uint32_t s = 0; s < stages && item.tile < tiles; s++, item.next(experts, inner), ring.next())
      fill_w(item, __popc(users(item)));
    wait_for_earlier_kernels();
    for (uint32_t s = 0; s < stages && late.tile < tiles; s++, late.next(experts, inner), late_ring.next())
      fill_x(late_ring, late, users(late));
    for (; item.tile < tiles; item.next(experts, inner), ring.next()) {
      const uint32_t used = users(item);
      fill_w(item, __popc(used));
      fill_x(ring, item, used);
    }
    return;
  }

  if (!EXPERTS && scores.partial) {
    prefetch(scores.norm_weight + blockIdx.x * FEW_OUTPUTS, 4 * FEW_OUTPUTS, threadIdx.x, FEW_CONSUMERS);
    for (uint32_t e = threadIdx.x; e < scores.expert_count; e += FEW_CONSUMERS)
      prefetch_line(scores.gate + (size_t)e * outputs + blockIdx.x * FEW_OUTPUTS);
  }
  wait_for_earlier_kernels();
  if (!EXPERTS) count = step->rows;
  const uint32_t there = min(count, bucket);
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint32_t r = threadIdx.x / FEW_OUTPUTS, i = threadIdx.x % FEW_OUTPUTS, n = tile * FEW_OUTPUTS + i;
    const bool mine = r < there && n < outputs;
    /* asked for before it is needed */
    float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
    if (mine && bias) v += bias[n];
    if (!EXPERTS && scores.partial) {
      for (uint32_t g = threadIdx.x; g < scores.expert_count * FEW_OUTPUTS; g += FEW_CONSUMERS) {
        const uint32_t e = g / FEW_OUTPUTS, c = tile * FEW_OUTPUTS + g % FEW_OUTPUTS;
        tile_gate[e * SCORE_PITCH + g % FEW_OUTPUTS] = scores.gate[(size_t)e * outputs + c] * scores.norm_weight[c];
      }
    }
    float total[4] = {};
    for (uint32_t at = 0; at < experts; at++) {
      float acc[4] = {};
      for (uint32_t k = 0; k < inner; k += FEW_K, ring.next()) {
        ring.wait_full();
        ring.multiply(acc, min(FEW_K, inner - k), ring.stage_x(min(lane / 4, bucket - 1)));
        ring.release();
      }
#pragma unroll
      for (uint32_t c = 0; c < 2; c++) {
        const uint32_t row = lane % 4 * 2 + c, index = EXPERTS ? choice.index[row][choice.list[at]] : 0;
        if (index == NOT_CHOSEN) continue;  /* what is there is another row's, or nothing's */
        const float weight = EXPERTS ? choice.weight[row][index] : 1.0f;
        total[c] = EXPERTS ? fmaf(weight, acc[c], total[c]) : acc[c];
        total[c + 2] = EXPERTS ? fmaf(weight, acc[c + 2], total[c + 2]) : acc[c + 2];
      }
    }
    sums.put(total);
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
  }
}

#define FEW_ADD(SUFFIX, MATH)                                                                                           \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, 3) tg_few_out_##SUFFIX(                                     \
      float *h, const MATH::X *x, const MATH::W *w, const float *bias, float *partial, const float *gate,               \
      const float *norm_weight, const tg_step *step, uint32_t outputs, uint32_t inner, uint32_t expert_count,           \
      uint32_t bucket, uint32_t stages) {                                                                               \
    FEW_BODY(few_add<MATH, false>(h, x, w, 0, bias, nullptr, nullptr, FewScores{partial, gate, norm_weight, expert_count}, step, \
                         outputs, inner, 0, Weighing{}, bucket, stages, 0.0f);)                                         \
  }                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, 3) tg_few_down_##SUFFIX(                                    \
      float *h, const MATH::X *y, const MATH::W *w, uint64_t stride, const float *partial, const float *expert_bias,    \
      const tg_step *step, uint32_t outputs, uint32_t inner, uint32_t expert_count, uint32_t k, uint32_t normalize,     \
      float scaling, uint32_t bucket, uint32_t stages, float eps) {                                                     \
    FEW_BODY(few_add<MATH, true>(h, y, w, stride, nullptr, partial, expert_bias, FewScores{}, step, outputs, inner,     \
                        expert_count, Weighing{k, normalize != 0, scaling}, bucket, stages, eps);)                      \
  }

FEW_ADD(bf16, FewHalf<__nv_bfloat16>)
FEW_ADD(f16, FewHalf<__half>)
FEW_ADD(f32, FewSplit)
