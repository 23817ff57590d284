/* few_norm.cu: RMSNorm and a product, for steps of few rows (few.cuh):
 *
 *   tg_few_project_*  y[r,:] = W rmsnorm(h[r,:]), in X's type: q, k and v; or the LM head, of the sampled rows: where each
 *                     one's best logit is (best.cuh), and in f32 the logits of those of which more is read
 *   tg_few_gate_up_*  y[r,:] = silu(W1 z) * W3 z, z = rmsnorm(h[r,:]): a dense feed-forward
 *   tg_few_expert_gate_up_*  likewise with the weights of each chosen expert, y[r K + i,:] of the i-th; it chooses them, and
 *                     says which to tg_few_down_* before that one may start (few_choice.cuh)
 *
 * Some of tg_few_project_*'s blocks may guess which experts the layer will have (few_guess.cuh), and
 * tg_few_expert_gate_up_* begins with those of the guess.
 *
 * z is rounded to X's type. A tile of gate/up is 8 rows of W1 and the same 8 of W3, so that one thread has both sums.
 *
 * Bound: memory, N K sizeof(W) bytes (for experts, of each that any row chose). The experts are known only once h is: until
 * then a block has asked for as many stages of a guess as its ring holds, and for one more to the second-level cache.
 * Measured on an H200 in bf16 at 1 row, from kernel to kernel (floor; how: profiles/README.md): gate and up of four experts of
 * 1792 15.3 us (12.9), 65536 outputs 61 us (59.1).
 *
 * Launch: block = FEW_THREADS, grid = at most as many blocks as there are tiles, and those that guess, shared as
 * FewNormBlock lays it out.
 */
#include "best.cuh"
#include "few.cuh"
#include "few_choice.cuh"
#include "few_guess.cuh"
#include "few_rows.cuh"

constexpr uint32_t GATE_OUTPUTS = FEW_STAGE_ROWS;
static_assert(2 * GATE_OUTPUTS == FEW_OUTPUTS, "a run of each matrix");

__device__ inline float silu_of(float v) { return v / (1.0f + expf(-v)); }

/* Shared memory, in this order: sums, the norm's weight, normed rows, choice, ring. */
template <class Math>
struct FewNormBlock {
  using S = typename Math::S;
  FewSums sums;
  float *norm;
  char *x;
  uint32_t x_pitch;
  FewChoice *choice;
  FewRing<Math> ring;

  __device__ inline FewNormBlock(uint4 *shared, uint64_t *barriers, uint32_t bucket, uint32_t hidden, bool choose,
                                 uint32_t stages)
      : sums{reinterpret_cast<float *>(shared), bucket},
        norm(reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + FewSums::bytes_of(bucket))),
        x(reinterpret_cast<char *>(norm + hidden)),
        x_pitch(few_pitch<S>(hidden)), choice(reinterpret_cast<FewChoice *>(x + Math::PARTS * bucket * x_pitch)),
        ring(reinterpret_cast<char *>(choice) + (choose ? sizeof(FewChoice) : 0), barriers, hidden, stages) {
    if (threadIdx.x == 0) ring.init();
  }

  /* All consumers: a tile's sums. */
  __device__ inline void consume(FewColumns<Math> &columns, const S *row, uint32_t inner) {
    sums.put(few_whole<Math>(ring.consume(columns, row, inner), sums.rows));
  }

  /* Of a tile of gate and up: what row r has of its output i. */
  __device__ inline float gated(uint32_t r, uint32_t i) const {
    return silu_of(sums.get(r, i)) * sums.get(r, i + GATE_OUTPUTS);
  }

  /* The row of `x` that this lane multiplies. */
  __device__ inline const S *row(uint32_t rows) const {
    return reinterpret_cast<const S *>(x + Math::lane_place(rows, sums.rows) * x_pitch);
  }
};

/* y[R,N], h[R,K], norm_weight[K], w[N,K]; guesser of a layer. Where there is best[S,gridDim.x], of the sampled rows, and y
 * f32[S,N] of those of which more is read than that. */
template <class Math>
__device__ inline void few_project(void *y, unsigned long long *best, const float *h, const float *norm_weight,
                                   const typename Math::W *w, const tg_state *state, const tg_step *step,
                                   const FewGuesser &guesser, uint32_t outputs, uint32_t hidden, uint32_t bucket,
                                   uint32_t stages, float eps) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * FEW_MOST_STAGES];
  __shared__ float scratch[FEW_CONSUMER_WARPS];
  let_next_kernel_start();
  const uint32_t blocks = guesser.others();
  if (blockIdx.x >= blocks) {
    few_make_guess(guesser, h, step, bucket, hidden, eps);
    return;
  }
  FewNormBlock<Math> block(shared, barriers, bucket, hidden, false, stages);
  __syncthreads();
  const uint32_t tiles = (outputs + FEW_OUTPUTS - 1) / FEW_OUTPUTS;
  if (threadIdx.x >= FEW_CONSUMERS) {
    const uint64_t policy = read_once();
    block.ring.one_by_one = FEW_ONE_BY_ONE;
    auto run = [&](uint32_t n) { return FewRows<W>::of(w, n, outputs, hidden); };
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks)
      block.ring.feed(run(tile * FEW_OUTPUTS), run(tile * FEW_OUTPUTS + FEW_STAGE_ROWS), hidden, policy);
    return;
  }
  few_norm_weight(block.norm, norm_weight, hidden);
  const bool sampled = best != nullptr;
  const uint32_t count = __ldcg(sampled ? &step->sample_rows : &step->rows), rows = min(max(count, 1u), bucket);
  const uint32_t *samples = table<uint32_t>(state, step->sample_table);
  const uint32_t r = threadIdx.x / FEW_OUTPUTS, i = threadIdx.x % FEW_OUTPUTS;
  const bool there = r < min(count, bucket), stores = there && !(sampled && needs_best_only(state, step, r));
  wait_for_earlier_kernels();
  few_norm<Math>(block.x, block.x_pitch, h, block.norm, scratch, rows, bucket, hidden, eps,
                 [&](uint32_t row) { return sampled && count > 0 ? samples[row] : row; });
  const auto *x_row = block.row(rows);
  FewColumns<Math> x_columns;
  x_columns.load(x_row, block.ring.k, true);
  unsigned long long word = BEST_NONE;
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += blocks) {
    block.consume(x_columns, x_row, hidden);
    const uint32_t n = tile * FEW_OUTPUTS + i;
    if (!there || n >= outputs) continue;
    const float v = block.sums.get(r, i);
    const size_t at = (size_t)r * outputs + n;
    if (sampled) {
      if (stores) static_cast<float *>(y)[at] = v;
      word = max(word, best_word(v, n));
    } else {
      static_cast<X *>(y)[at] = X(v);
    }
  }
  if (!sampled) return;
#pragma unroll
  for (uint32_t offset = FEW_OUTPUTS / 2; offset > 0; offset /= 2) word = max(word, __shfl_xor_sync(0xffffffffu, word, offset));
  if (there && i == 0) best[r * blocks + blockIdx.x] = word;
}

/* Tiles of experts' gate/up, expert by expert, those of a guess first: this block's in turn. */
struct FewExpertTiles {
  uint32_t left;  /* experts that are not done */
  uint32_t first, second;
  uint32_t tile, each;

  __device__ inline FewExpertTiles(uint32_t experts, const FewGuess &guess, uint32_t tiles_each)
      : left(experts), first(FewGuess::bit(guess.first)), second(FewGuess::bit(guess.second)), tile(blockIdx.x), each(tiles_each) {
    settle();
  }
  /* The tile's. */
  __device__ inline uint32_t expert() const { return lowest(left & first ? first : left & second ? second : left); }
  __device__ inline void next() {
    tile += gridDim.x;
    settle();
  }
  __device__ inline void settle() {
    for (; left && tile >= each; tile -= each) left &= ~(1u << expert());
  }
};

/* The weight rows of a tile, of w[N,H]. */
template <typename W>
__device__ inline FewRows<W> few_gate_rows(const W *w, uint32_t tile, uint32_t outputs, uint32_t hidden) {
  return FewRows<W>::of(w, tile * GATE_OUTPUTS, outputs, hidden);
}

/* y[R,N], h[R,H], norm_weight[H], gate[N,H] and up[N,H]. */
template <class Math>
__device__ inline void few_gate_up(typename Math::X *y, const float *h, const float *norm_weight, const typename Math::W *gate,
                                   const typename Math::W *up, const tg_step *step, uint32_t outputs, uint32_t hidden,
                                   uint32_t bucket, uint32_t stages, float eps) {
  using X = typename Math::X;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * FEW_MOST_STAGES];
  __shared__ float scratch[FEW_CONSUMER_WARPS];
  let_next_kernel_start();
  const uint32_t step_rows = load_now(&step->rows);
  FewNormBlock<Math> block(shared, barriers, bucket, hidden, false, stages);
  const uint32_t tiles = (outputs + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
  const uint32_t count = min(step_rows, bucket), rows = max(count, 1u);
  __syncthreads();
  if (threadIdx.x >= FEW_CONSUMERS) {
    const uint64_t policy = read_once();
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      block.ring.feed(few_gate_rows(gate, tile, outputs, hidden), few_gate_rows(up, tile, outputs, hidden), hidden, policy);
    return;
  }
  few_norm_weight(block.norm, norm_weight, hidden);
  wait_for_earlier_kernels();
  few_norm<Math>(block.x, block.x_pitch, h, block.norm, scratch, rows, bucket, hidden, eps, [](uint32_t r) { return r; });
  const auto *x_row = block.row(rows);
  FewColumns<Math> x_columns;
  x_columns.load(x_row, block.ring.k, true);
  const uint32_t r = threadIdx.x / GATE_OUTPUTS, i = threadIdx.x % GATE_OUTPUTS;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    block.consume(x_columns, x_row, hidden);
    const uint32_t n = tile * GATE_OUTPUTS + i;
    if (r < count && n < outputs) y[(size_t)r * outputs + n] = X(block.gated(r, i));
  }
}

/* Likewise y[R k,N] of each row's experts, whose gate and up lie `stride` elements after the one before; parts and bias[E] (or
 * null) as few_choice.cuh has them, and of `layer` what was guessed. Leaves experts[R,k] and weights[R,k]. */
template <class Math>
__device__ inline void few_expert_gate_up(typename Math::X *y, const float *h, const float *norm_weight,
                                          const typename Math::W *gate, const typename Math::W *up, uint64_t stride,
                                          uint32_t *experts, float *weights, void *parts, const float *bias,
                                          const tg_step *step, uint32_t outputs, uint32_t hidden, uint32_t expert_count,
                                          Weighing weighing, uint32_t layer, uint32_t bucket, uint32_t stages, float eps) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * FEW_MOST_STAGES];
  const uint32_t step_rows = load_now(&step->rows);
  FewNormBlock<Math> block(shared, barriers, bucket, hidden, true, stages);
  FewChoice &choice = *block.choice;
  const uint32_t lane = threadIdx.x % WARP, tiles = (outputs + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
  const uint32_t count = min(step_rows, bucket), rows = max(count, 1u);
  const uint32_t of_row = threadIdx.x / WARP / warps_of_row(bucket);
  const bool producer = threadIdx.x >= FEW_CONSUMERS;
  const FewParts all_parts(parts, bucket, hidden);
  const uint64_t policy = read_once();
  const uint32_t of_tile = block.ring.stages_of_tile(hidden);
  auto run = [&](const W *w, const FewExpertTiles &at) {
    return few_gate_rows(w + at.expert() * stride, at.tile, outputs, hidden);
  };
  auto feed = [&](const FewExpertTiles &at, uint32_t begin, uint32_t end) {
    block.ring.feed(run(gate, at), run(up, at), hidden, policy, begin, end);
  };
  FewRow row;
  const bool guessing = layer != FEW_NO_LAYER;
  FewGuess heard;
  if (producer && guessing) {
    FewGuessLook look(all_parts, step, layer, expert_count);
    if (look.await(all_parts)) heard = look.guess(weighing.k);
  }
  __syncthreads();
  if (producer) {
    /* as many stages as the ring has room for while nobody takes any, and the next one as near as may be */
    const FewExpertTiles first(heard.experts(), heard, tiles);
    uint32_t asked = 0;
#pragma unroll 1
    for (FewExpertTiles at = first; at.left && asked < block.ring.count; at.next()) asked += of_tile;
    asked = min(asked, block.ring.count);
    if (lane == 0) choice.heard = heard, choice.asked = asked;
    few_pass<GUESS_TOLD>();
    FewExpertTiles at = first;
    uint32_t left = asked;
#pragma unroll 1
    for (; left >= of_tile; left -= of_tile, at.next()) feed(at, 0, of_tile);
    if (at.left) {
      feed(at, 0, left);
      block.ring.bring_near(run(gate, at), run(up, at), hidden, policy, left);
    }
    few_wait_at<CHOICE_TOLD>();
  } else {
    few_norm_weight(block.norm, norm_weight, hidden);
    wait_for_earlier_kernels();
    /* asked for while the memory is idle */
    row = FewRow(h + (size_t)min(of_row, rows - 1) * hidden, hidden, bucket, true);
    FewGuessLook look;
    const bool looks = threadIdx.x >= FEW_CONSUMERS - WARP;
    if (looks && guessing) look = FewGuessLook(all_parts, step, layer, expert_count);
    few_choose(choice, all_parts, bias, rows, bucket, hidden, expert_count, weighing, eps, [&] {
      copy_wait<0>();
      if (!looks) return;
      FewGuess guess;
      if (guessing && look.heard()) guess = look.guess(weighing.k);
      if (lane == 0) choice.guess = guess;
    });
    if (blockIdx.x == 0 && threadIdx.x < bucket) all_parts.say(threadIdx.x, threadIdx.x < rows ? choice.chosen[threadIdx.x] : 0);
    let_next_kernel_start();
  }
  /* Experts that were guessed come first where they are all chosen. Stages that this block has asked for are those of its first
   * tiles, or are dropped. */
  const uint32_t those = choice.any(rows);
  FewGuess guess;
  if (!(choice.guess.experts() & ~those)) guess = choice.guess;
  const bool right = guess.is(choice.heard);
  FewExpertTiles at(those, guess, tiles);
  if (producer) {
    const uint32_t there = right ? choice.asked : 0;
    for (uint32_t i = there / of_tile; i > 0; i--) at.next();
#pragma unroll 1
    for (uint32_t begin = there % of_tile; at.left; at.next(), begin = 0) feed(at, begin, of_tile);
    return;
  }
  if (of_row < rows)
    row.store<Math>(block.x + of_row * block.x_pitch, bucket * block.x_pitch, choice.scale[of_row], block.norm);
  consumers_meet();
  const auto *x_row = block.row(rows);
  FewColumns<Math> x_columns;
  x_columns.load(x_row, block.ring.k, true);
  const uint32_t r = threadIdx.x / GATE_OUTPUTS, i = threadIdx.x % GATE_OUTPUTS;
  /* nobody ends while copies are on their way */
#pragma unroll 1
  for (uint32_t dropped = right ? 0 : choice.asked; dropped > 0; dropped--) block.ring.drop();
#pragma unroll 1
  while (at.left) {
    block.consume(x_columns, x_row, hidden);
    const uint32_t n = at.tile * GATE_OUTPUTS + i, e = at.expert();
    at.next();
    if (r >= count || n >= outputs || !choice.has(r, e)) continue;
    y[(size_t)(r * weighing.k + choice.index(r, e)) * outputs + n] = X(block.gated(r, i));
  }
  if (blockIdx.x != 0) return;
  const uint32_t of_warp = threadIdx.x / WARP;
  if (of_warp >= count || !choice.has(of_warp, lane)) return;
  const uint32_t pair = of_warp * weighing.k + choice.index(of_warp, lane);
  experts[pair] = lane;
  weights[pair] = few_weight(choice, of_warp, weighing);
}

#define FEW_NORM(SUFFIX, MATH)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) tg_few_project_##SUFFIX(                                \
      void *y, unsigned long long *best, const float *h, const float *norm_weight, const MATH::W *w,                            \
      const tg_state *state, const tg_step *step, FEW_GUESSER, uint32_t outputs, uint32_t hidden, uint32_t bucket,              \
      uint32_t stages, float eps) {                                                                                             \
    FEW_BODY(few_project<MATH>(y, best, h, norm_weight, w, state, step, FEW_GUESSER_OF, outputs, hidden, bucket, stages, eps);) \
  }                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) tg_few_gate_up_##SUFFIX(                                \
      MATH::X *y, const float *h, const float *norm_weight, const MATH::W *gate, const MATH::W *up,                             \
      const tg_step *step, uint32_t outputs, uint32_t hidden, uint32_t bucket, uint32_t stages, float eps) {                    \
    FEW_BODY(few_gate_up<MATH>(y, h, norm_weight, gate, up, step, outputs, hidden, bucket, stages, eps);)                       \
  }                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS) tg_few_expert_gate_up_##SUFFIX(                         \
      MATH::X *y, const float *h, const float *norm_weight, const MATH::W *gate, const MATH::W *up, uint64_t stride,            \
      uint32_t *experts, float *weights, void *parts, const float *bias, const tg_step *step,                                   \
      uint32_t outputs, uint32_t hidden, uint32_t expert_count, uint32_t k, uint32_t normalize, float scaling,                  \
      uint32_t layer, uint32_t bucket, uint32_t stages, float eps) {                                                            \
    FEW_BODY(few_expert_gate_up<MATH>(y, h, norm_weight, gate, up, stride, experts, weights, parts, bias, step, outputs,        \
                                      hidden, expert_count, Weighing{k, normalize != 0, scaling}, layer, bucket, stages, eps);) \
  }

FEW_NORM(bf16, FewHalf<__nv_bfloat16>)
FEW_NORM(f16, FewHalf<__half>)
FEW_NORM(f32, FewSplit)
FEW_NORM(f32_split, FewSplitRows)
