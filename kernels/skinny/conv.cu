// build: sm_90a sm_100 types e4m3
/* conv.cu: a conv layer up to its out-projection, for steps of few rows (skinny/skinny.cuh), decode steps alone:
 *
 *   (B, C, X) = W rmsnorm(h[r,:]) + bias                             rounded to the operand type
 *   u = B X                                                          rounded to it too
 *   x[r,:] = C (sum_j taps[:,j] u[p-(L-1)+j,:] + taps_bias)          and u becomes the state's newest column
 *
 * conv/conv.cu has the rest of the formula. A block takes SKINNY_OUTPUTS channels, that is rows c, H + c and 2H + c of W, and one thread
 * all that a row has of a channel, its state too. The last blocks may predict the layer's experts (skinny/prediction.cuh).
 *
 *   warp       does                                                  waits on                           signals
 *   producer   copies rows of W into the pipeline                    as in skinny/pipeline.cuh          full barriers
 *   consumers  norm rows, multiply, convolve, move the state on      grid dependency, full, consumers_meet  empty barriers
 *
 * Bound: memory, 3 H^2 sizeof(W) bytes. Measured on an H200 in bf16, H = 2048, from kernel to kernel (floor): 7.7 us (5.5) at 1 row; with
 * weights in 8 bits 5.8 us (2.8).
 *
 * Launch: block = SKINNY_THREADS, grid = at most H / SKINNY_OUTPUTS, and those that predict, shared as SkinnyNormBlock has it.
 */
#include "skinny/prediction.cuh"
#include "skinny/norm.cuh"

/* A channel's columns from before the step, and what the taps make of them. The newest ones are loaded long before they are used: nothing
 * waits for them until sum(). */
template <typename X>
struct SkinnyPast {
  static constexpr uint32_t HELD = 2;
  float older, taps[HELD];
  X held[HELD];

  /* columns[L-1,H], taps[H,L]; channel c of a row at `position`. */
  __device__ inline void load(const X *columns, const float *taps_, uint32_t position, uint32_t c, uint32_t hidden, uint32_t length) {
    const float *from = taps_ + (size_t)c * length;
    older = 0.0f;
#pragma unroll 1
    for (uint32_t j = 0; j + 1 + HELD < length; j++)
      if (length - 1 - j <= position) older = fmaf(from[j], float(load_now(columns + (size_t)j * hidden + c)), older);
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) {  /* the column i + 1 before the step */
      const bool there = i + 1 < length && i + 1 <= position;
      const uint32_t j = there ? length - 2 - i : 0;
      taps[i] = there ? from[j] : 0.0f;
      held[i] = there ? load_now(columns + (size_t)j * hidden + c) : X(0.0f);
    }
  }

  __device__ inline float sum() const {
    float sum = older;
#pragma unroll
    for (uint32_t i = HELD; i-- > 0;) sum = fmaf(taps[i], float(held[i]), sum);
    return sum;
  }

  /* Moves all columns one further back, `now` the newest; before position 0 there was nothing. */
  __device__ inline void move_on(X *columns, uint32_t position, X now, uint32_t c, uint32_t hidden, uint32_t length) const {
#pragma unroll 1
    for (uint32_t j = 1; j + 1 + HELD < length; j++)
      columns[(size_t)(j - 1) * hidden + c] = length - 1 - j <= position ? columns[(size_t)j * hidden + c] : X(0.0f);
#pragma unroll
    for (uint32_t i = HELD; i-- > 0;)
      if (i + 2 < length) columns[(size_t)(length - 3 - i) * hidden + c] = held[i];
    if (length > 1) columns[(size_t)(length - 2) * hidden + c] = now;
  }
};

template <class Math, uint32_t WORDS>
__device__ inline void skinny_conv(const tg_skinny_conv_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * TG_SKINNY_MOST_STAGES];
  let_next_kernel_start();
  const uint32_t hidden = a.hidden, length = a.length, bucket = a.bucket, blocks = skinny_product_blocks(a.prediction);
  if (blockIdx.x >= blocks) {
    skinny_predict<WORDS>(a.prediction, a.h, a.step, hidden, a.eps);
    return;
  }
  const W *w = static_cast<const W *>(a.w);
  const float *bias = a.bias, *taps = a.taps, *taps_bias = a.taps_bias;
  const uint32_t step_rows = load_now(&a.step->rows);
  const tg_row *row_table = table<tg_row>(a.state, a.step->row_table);
  SkinnyNormBlock<Math> block(shared, barriers, bucket, hidden, false, a.stages);
  if (threadIdx.x < SKINNY_CONSUMERS) block.load_weight(a.norm_weight, hidden);
  __syncthreads();
  const uint32_t tiles = hidden / SKINNY_OUTPUTS;
  if (threadIdx.x >= SKINNY_CONSUMERS) {
    const uint64_t policy = read_once();
    block.pipeline.begin_one_by_one();
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks)
#pragma unroll 1
      for (uint32_t third = 0; third < 3; third++) {
        auto run = [&](uint32_t n) { return SkinnyRows<Math>::of(w, a.scale, third * hidden + n, 3 * hidden, hidden); };
        block.pipeline.load(run(tile * SKINNY_OUTPUTS), run(tile * SKINNY_OUTPUTS + SKINNY_STAGE_ROWS), hidden, policy);
      }
    return;
  }
  const uint32_t count = min(step_rows, bucket), rows = max(count, 1u);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
  const bool mine = r < count;
  const tg_row *row = row_table + (mine ? r : 0);
  const uint32_t position = load_now(&row->position), slot = load_now(&row->slot);
  wait_for_earlier_kernels();
  block.norm_rows(a.h, rows, hidden, a.eps, [](uint32_t row) { return row; });
  /* loaded after h, which is needed first */
  X *state_of_row = static_cast<X *>(a.columns) + (size_t)slot * (length - 1) * hidden;
  SkinnyPast<X> past;
  if (mine && blockIdx.x < tiles) past.load(state_of_row, taps, position, blockIdx.x * SKINNY_OUTPUTS + i, hidden, length);
  const auto *x_row = block.row(rows);
  SkinnyColumns<Math> x_columns;
  x_columns.load(x_row, block.pipeline.k, true);
  constexpr uint32_t LATE = IS_E4M3<W>;  /* how many thirds later sums are read (SkinnySums) */
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks) {
    const uint32_t c = tile * SKINNY_OUTPUTS + i;
    if (mine && tile != blockIdx.x) past.load(state_of_row, taps, position, c, hidden, length);
    float of_b = 0.0f, of_c = 0.0f, of_x = 0.0f;
#pragma unroll 1
    for (uint32_t third = 0; third < 3 + LATE; third++) {
      if (!LATE || third < 3) block.consume(x_columns, x_row, hidden);
      if (!mine || (LATE && third == 0)) continue;
      if (third == 3) block.sums.wait();
      float v = block.sums.get(r, i, LATE && third < 3);
      if (bias) v += bias[(third - LATE) * hidden + c];
      of_b = of_c, of_c = of_x, of_x = float(X(v));  /* rounded to the operand type */
    }
    if (!mine) continue;
    const float now = float(X(of_b * of_x));
    float sum = fmaf(taps[(size_t)c * length + length - 1], now, past.sum());
    if (taps_bias) sum += taps_bias[c];
    static_cast<X *>(a.x)[(size_t)r * hidden + c] = X(of_c * sum);
    past.move_on(state_of_row, position, X(now), c, hidden, length);
  }
}

/* Kernels that predict up to 32 experts, and up to 64. */
#define SKINNY_CONV(SUFFIX, MATH)                                              \
  SKINNY_KERNEL(conv_##SUFFIX, tg_skinny_conv_args, skinny_conv<MATH, 1>(a);)  \
  SKINNY_KERNEL(conv_##SUFFIX##_e64, tg_skinny_conv_args, skinny_conv<MATH, 2>(a);)
FOR_SKINNY_TYPES(SKINNY_CONV)
OF_BF16_E4M3(SKINNY_CONV(bf16_e4m3_f16x2, SkinnyE4m3<SkinnyF16x2Rows>))
