// build: sm_90a sm_100
/* add.cu: products that add to the residual stream, for steps of few rows (skinny/skinny.cuh):
 *
 *   tg_skinny_out_*   h[r,:] += W x[r,:] + bias: of rows beyond SKINNY_K; skinny/out.cu has the others
 *   tg_skinny_down_*  h[r,:] += sum over i of weights[r,i] W_e y[r K + i,:], i and with it the expert e ascending
 *
 * With `parts` tg_skinny_out_* also stores each tile's share of the router's scores (skinny/choice.cuh).
 *
 *   warp       does                                                  waits on                                signals
 *   producer   copies the tiles' weights into the pipeline           empty barriers; down: chosen experts    full barriers
 *   consumers  load their columns of x, multiply, add to h           grid dependency, full barriers          empty barriers
 *
 * Each column of a batch row is needed by one warp alone. So a warp loads its own columns, to registers or (f32) to shared memory, and
 * waits for no other warp. tg_skinny_down_* loads the chosen experts' weights before the grid dependency wait. The kernel before it,
 * tg_skinny_expert_gate_up_*, lets it start only once it has published which experts were chosen.
 *
 * Bound: memory, N K sizeof(W) bytes (for experts, of each that any row chose).
 * Measured on an H200 in bf16 at 1 row, from kernel to kernel (floor; how: profiles/README.md): 2048 x 7168 8.5 us (6.5), down
 * of four experts of 1792 8.1 us (6.5).
 *
 * Launch: block = SKINNY_THREADS, grid = at most as many blocks as N has tiles, shared: sums, a tile of h and
 * of the gate, a stage's columns of the rows, pipeline.
 */
#include "skinny/add.cuh"
#include "skinny/pipeline.cuh"

/* A consumer warp's sums of a tile. Where a row fits one stage, `columns` are loaded already; else they are loaded here for each
 * stage in turn. */
template <class Math>
__device__ inline SkinnyTileSums skinny_consume(SkinnyPipeline<Math> &pipeline, SkinnyColumns<Math> &columns, char *x, uint32_t pitch,
                                     const typename Math::X *from, bool there, uint32_t inner, uint32_t bucket) {
  SkinnyTileSums acc;
#pragma unroll 1
  for (uint32_t first = 0; first < inner; first += pipeline.k) {
    const uint32_t k_here = min(pipeline.k, inner - first);
    if (inner > pipeline.k) skinny_fetch(columns, x, pitch, from + (there ? first : 0), k_here, bucket, there);
    pipeline.multiply(acc, k_here, columns);
  }
  return skinny_whole<Math>(acc, bucket);
}

/* Args is tg_skinny_down_args with EXPERTS, else tg_skinny_out_args. With EXPERTS x has a row for each expert of each batch row. */
template <class Math, bool EXPERTS, uint32_t WORDS, class Args>
__device__ inline void skinny_add(const Args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  using Bits = ExpertBits<WORDS>;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * SKINNY_MOST_STAGES];
  __shared__ uint32_t chosen[SKINNY_ROWS * WORDS];  /* a bit for each of a row's experts, [rows][WORDS] */
  let_next_kernel_start();
  float *h = a.h;
  const X *x;
  const float *bias = nullptr, *weights = nullptr;
  uint64_t stride = 0;
  uint32_t k = 0;
  SkinnyScores scores{};
  if constexpr (EXPERTS) {
    x = static_cast<const X *>(a.y), weights = a.weights, stride = a.stride, k = a.k;
  } else {
    x = static_cast<const X *>(a.x), bias = a.bias, scores = SkinnyScores{a.gate, a.norm_weight, a.expert_count};
  }
  const W *w = static_cast<const W *>(a.w);
  const uint32_t outputs = a.outputs, inner = a.inner, bucket = a.bucket;
  const SkinnyParts<WORDS> parts(a.parts, bucket, outputs);
  const uint64_t loaded = EXPERTS && threadIdx.x < bucket * WORDS ? parts.load(threadIdx.x) : 0;
  const uint32_t step_rows = load_now(&a.step->rows);
  SkinnySums sums{reinterpret_cast<float *>(shared), bucket};
  char *after = reinterpret_cast<char *>(shared) + SkinnySums::bytes_of(bucket);
  const bool scoring = !EXPERTS && a.parts;
  SkinnyTileScores<WORDS> tile_scores(after, scores, bucket);
  if (scoring) after += SkinnyTileScores<WORDS>::bytes_of(bucket, scores.expert_count);
  /* a stage's columns of each row */
  char *x_here = after;
  const uint32_t x_pitch = skinny_pitch<typename Math::S>(skinny_stage_k(inner));
  SkinnyPipeline<Math> pipeline(after + Math::PARTS * bucket * x_pitch, barriers, inner, a.stages);
  if (threadIdx.x == 0) pipeline.init();
  const bool producer = threadIdx.x >= SKINNY_CONSUMERS;
  const uint32_t tiles = (outputs + SKINNY_OUTPUTS - 1) / SKINNY_OUTPUTS;
  if (EXPERTS && threadIdx.x < bucket * WORDS) chosen[threadIdx.x] = parts.wait(threadIdx.x, loaded);
  __syncthreads();
  Bits experts = EXPERTS ? Bits{} : bit_of<WORDS>(0);  /* that any row has */
  if (EXPERTS) {
#pragma unroll 1
    for (uint32_t r = 0; r < bucket; r++)
      experts = experts | bits_at<WORDS>(chosen, r);
  }

  if (producer) {
    const uint64_t policy = read_once();
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
#pragma unroll 1
      for (Bits left = experts; any(left); left = without_lowest(left)) {
        auto run = [&](uint32_t n) { return SkinnyRows<Math>::of(w + lowest(left) * stride, n, outputs, inner); };
        pipeline.load(run(tile * SKINNY_OUTPUTS), run(tile * SKINNY_OUTPUTS + SKINNY_STAGE_ROWS), inner, policy);
      }
    return;
  }

  const uint32_t count = min(step_rows, bucket);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
  const uint32_t row = Math::lane_row(bucket), sum_row = skinny_sum_row();
  if (scoring && blockIdx.x < tiles) tile_scores.load(blockIdx.x, outputs);
  wait_for_earlier_kernels();
  if (scoring && blockIdx.x == 0 && threadIdx.x < SKINNY_ROWS * WORDS) parts.clear(threadIdx.x);
  /* A row's experts are read where they lie: several words of them would take too many registers. */
  auto has_row = [&](uint32_t r, uint32_t e) { return !EXPERTS || r < count && has_at<WORDS>(chosen, r, e); };
  auto pair_of = [&](uint32_t r, uint32_t e) { return r * k + count_before(bits_at<WORDS>(chosen, r), e); };
#pragma unroll 1
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint32_t n = tile * SKINNY_OUTPUTS + i;
    const bool mine = r < count && n < outputs;
    /* loaded long before it is used */
    float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
    if (mine && bias) v += bias[n];
    SkinnyTileSums total;
#pragma unroll 1
    for (Bits left = experts; any(left); left = without_lowest(left)) {
      const uint32_t e = lowest(left);
      const bool there = row < count && has_row(row, e), first = has_row(sum_row, e), second = has_row(sum_row + 1, e);
      auto weight_of = [&](uint32_t r, bool has) { return !EXPERTS ? 1.0f : has ? weights[pair_of(r, e)] : 0.0f; };
      const uint32_t pair = EXPERTS && there ? pair_of(row, e) : row;
      const float2 weight = make_float2(weight_of(sum_row, first), weight_of(sum_row + 1, second));
      const X *from = x + (there ? (size_t)pair * inner : 0);
      SkinnyColumns<Math> columns;
      if (inner <= pipeline.k) skinny_fetch(columns, x_here, x_pitch, from, inner, bucket, there);
      const SkinnyTileSums sum = skinny_consume(pipeline, columns, x_here, x_pitch, from, there, inner, bucket);
#pragma unroll
      for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
        if (first) total.run[run].x = fmaf(weight.x, sum.run[run].x, total.run[run].x);
        if (second) total.run[run].y = fmaf(weight.y, sum.run[run].y, total.run[run].y);
      }
    }
    sums.put(total);
    if (mine) {
      v += sums.get(r, i);
      h[(size_t)r * outputs + n] = v;
    }
    if (!scoring) continue;
    tile_scores.store(parts, tile, v, count, bucket);
    if (tile + gridDim.x >= tiles) break;
    consumers_meet();
    tile_scores.load(tile + gridDim.x, outputs);
  }
}

#define SKINNY_ADD(SUFFIX, MATH, WORDS)                                                         \
  SKINNY_KERNEL(out_##SUFFIX, tg_skinny_out_args, skinny_add<MATH, false, WORDS>(a);)           \
  SKINNY_KERNEL(down_##SUFFIX, tg_skinny_down_args, skinny_add<SkinnyPacked<MATH>, true, WORDS>(a);)
/* For up to 32 and 64 experts. */
#define SKINNY_ADD_OF(SUFFIX, MATH) \
  SKINNY_ADD(SUFFIX, MATH, 1)       \
  SKINNY_ADD(SUFFIX##_e64, MATH, 2)
FOR_SKINNY_TYPES(SKINNY_ADD_OF)
