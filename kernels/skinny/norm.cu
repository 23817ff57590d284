// build: sm_90a sm_100 types e4m3
/* norm.cu: RMSNorm and a product, for steps of few rows (skinny/skinny.cuh):
 *
 *   tg_skinny_project_*  y[r,:] = W rmsnorm(h[r,:]), in X's type: q, k and v; or the LM head, of the sampled rows: where each
 *                     one's best logit is (common/argmax.cuh), and in f32 the logits of those of which more is read
 *   tg_skinny_gate_up_*  y[r,:] = silu(W1 z) * W3 z, z = rmsnorm(h[r,:]): a dense feed-forward
 *
 * The last blocks of tg_skinny_project_* may predict the layer's experts (skinny/prediction.cuh). z is rounded to X's type.
 *
 *   warp       does                                    waits on                           signals
 *   producer   copies rows of W into the pipeline      as in skinny/pipeline.cuh          full barriers
 *   consumers  norm rows, multiply, store              grid dependency, full, consumers_meet  empty barriers
 *
 * Bound: memory, N K sizeof(W) bytes. Measured on an H200 in bf16 at 1 row, from kernel to kernel (floor): 65536 outputs 61 us (59.1).
 *
 * Launch: block = SKINNY_THREADS, grid = at most as many blocks as tiles, and those that predict, shared as SkinnyNormBlock has it.
 */
#include "common/argmax.cuh"
#include "skinny/prediction.cuh"
#include "skinny/norm.cuh"

template <class Math, uint32_t WORDS>
__device__ inline void skinny_project(const tg_skinny_norm_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * TG_SKINNY_MOST_STAGES];
  let_next_kernel_start();
  const uint32_t outputs = a.outputs, hidden = a.hidden, bucket = a.bucket, blocks = skinny_product_blocks(a.prediction);
  if (blockIdx.x >= blocks) {
    skinny_predict<WORDS>(a.prediction, a.h, a.step, hidden, a.eps);
    return;
  }
  const W *w = static_cast<const W *>(a.w);
  unsigned long long *best = a.best;
  const tg_step *step = a.step;
  SkinnyNormBlock<Math> block(shared, barriers, bucket, hidden, false, a.stages);
  __syncthreads();
  const uint32_t tiles = (outputs + SKINNY_OUTPUTS - 1) / SKINNY_OUTPUTS;
  if (threadIdx.x >= SKINNY_CONSUMERS) {
    const uint64_t policy = read_once();
    block.pipeline.begin_one_by_one();
    auto run = [&](uint32_t n) { return SkinnyRows<Math>::of(w, a.scale, n, outputs, hidden); };
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks)
      block.pipeline.load(run(tile * SKINNY_OUTPUTS), run(tile * SKINNY_OUTPUTS + SKINNY_STAGE_ROWS), hidden, policy);
    return;
  }
  block.load_weight(a.norm_weight, hidden);
  const bool sampled = best != nullptr;
  const uint32_t count = __ldcg(sampled ? &step->sample_rows : &step->rows), rows = min(max(count, 1u), bucket);
  const uint32_t *samples = table<uint32_t>(a.state, step->sample_table);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
  const bool there = r < min(count, bucket), stores = there && !(sampled && needs_best_only(a.state, step, r));
  wait_for_earlier_kernels();
  block.norm_rows(a.h, rows, hidden, a.eps, [&](uint32_t row) { return sampled && count > 0 ? samples[row] : row; });
  const auto *x_row = block.row(rows);
  SkinnyColumns<Math> x_columns;
  x_columns.load(x_row, block.pipeline.k, true);
  unsigned long long word = BEST_NONE;
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks) {
    block.consume(x_columns, x_row, hidden);
    const uint32_t n = tile * SKINNY_OUTPUTS + i;
    if (!there || n >= outputs) continue;
    block.sums.wait();
    const float v = block.sums.get(r, i);
    const size_t at = (size_t)r * outputs + n;
    if (sampled) {
      if (stores) static_cast<float *>(a.y)[at] = v;
      word = max(word, best_word(v, n));
    } else {
      static_cast<X *>(a.y)[at] = X(v);
    }
  }
  if (!sampled) return;
#pragma unroll
  for (uint32_t offset = SKINNY_OUTPUTS / 2; offset > 0; offset /= 2) word = max(word, __shfl_xor_sync(0xffffffffu, word, offset));
  if (there && i == 0) best[r * blocks + blockIdx.x] = word;
}

template <class Math>
__device__ inline void skinny_gate_up(const tg_skinny_norm_args &a) {
  using X = typename Math::X;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * TG_SKINNY_MOST_STAGES];
  let_next_kernel_start();
  const uint32_t outputs = a.outputs, hidden = a.hidden, bucket = a.bucket;
  const auto *gate = static_cast<const typename Math::W *>(a.w), *up = static_cast<const typename Math::W *>(a.up);
  const uint32_t step_rows = load_now(&a.step->rows);
  SkinnyNormBlock<Math> block(shared, barriers, bucket, hidden, false, a.stages);
  const uint32_t tiles = (outputs + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
  const uint32_t count = min(step_rows, bucket), rows = max(count, 1u);
  __syncthreads();
  if (threadIdx.x >= SKINNY_CONSUMERS) {
    const uint64_t policy = read_once();
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      block.pipeline.load(SkinnyRows<Math>::of(gate, a.scale, tile * GATE_OUTPUTS, outputs, hidden),
                          SkinnyRows<Math>::of(up, a.up_scale, tile * GATE_OUTPUTS, outputs, hidden), hidden, policy);
    return;
  }
  block.load_weight(a.norm_weight, hidden);
  wait_for_earlier_kernels();
  block.norm_rows(a.h, rows, hidden, a.eps, [](uint32_t row) { return row; });
  const auto *x_row = block.row(rows);
  SkinnyColumns<Math> x_columns;
  x_columns.load(x_row, block.pipeline.k, true);
  X *y = static_cast<X *>(a.y);
  const uint32_t r = threadIdx.x / GATE_OUTPUTS, i = threadIdx.x % GATE_OUTPUTS;
  if constexpr (IS_E4M3<typename Math::W>) {
    struct To {
      X *y;
      bool more, mine;
    };
    uint32_t tile = blockIdx.x;
    auto take = [&](uint32_t r) {
      const uint32_t n = tile * GATE_OUTPUTS + i;
      const bool more = tile < tiles;
      tile += gridDim.x;
      return To{y + (size_t)r * outputs + n, more, r < count && n < outputs};
    };
    block.gate_up_tiles(x_columns, x_row, hidden, take, [](const To &to, auto value) {
      if (to.mine) *to.y = X(value());
    });
  } else {
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      block.consume(x_columns, x_row, hidden);
      const uint32_t n = tile * GATE_OUTPUTS + i;
      if (r < count && n < outputs) y[(size_t)r * outputs + n] = X(block.gated(r, i));
    }
  }
}

/* tg_skinny_project_* predicts up to 32 experts, and up to 64. */
#define SKINNY_NORM(SUFFIX, MATH)                                                         \
  SKINNY_KERNEL(project_##SUFFIX, tg_skinny_norm_args, skinny_project<MATH, 1>(a);)       \
  SKINNY_KERNEL(project_##SUFFIX##_e64, tg_skinny_norm_args, skinny_project<MATH, 2>(a);) \
  SKINNY_KERNEL(gate_up_##SUFFIX, tg_skinny_norm_args, skinny_gate_up<MATH>(a);)
FOR_SKINNY_TYPES(SKINNY_NORM)
OF_BF16_E4M3(SKINNY_NORM(bf16_e4m3_f16x2, SkinnyE4m3<SkinnyF16x2Rows>))
