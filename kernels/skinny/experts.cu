// build: sm_90a sm_100 types e4m3
/* experts.cu: a mixture of experts, for steps of few rows (skinny/skinny.cuh):
 *
 *   tg_skinny_expert_gate_up_*  y[r k + i,:] = silu(W1_e z) * W3_e z of each row's i-th expert e, z = rmsnorm(h[r,:]). It chooses
 *                     the experts, and publishes them for tg_skinny_down_* (skinny/add.cu), which may run already (skinny/choice.cuh)
 *   tg_skinny_experts_*  for one row, N at most SKINNY_K and a multiple of GATE_OUTPUTS: the same, and h += sum over i of
 *                     weights[i] W2_e y[i,:], in one kernel (skinny/fused.cuh)
 *
 * z and y are rounded to X's type.
 *
 *   warp         does                                           waits on                                signals
 *   producer     copies predicted experts' weights, then those  prediction; CHOICE_READY; as in         PREDICTION_READY; full
 *                of the chosen ones that are not there yet      skinny/pipeline.cuh                     barriers
 *   consumers    norm rows, choose experts, multiply            grid dependency; PREDICTION_READY,      CHOICE_READY; chosen words for
 *                                                               consumers_meet; full; fused: words of y down; empty barriers; words of y
 *
 * Bound: memory, N H sizeof(W) bytes for each matrix of each expert that any row chose. The experts are known only when h is, and the
 * memory must not stand idle until then. So a block copies weights of predicted experts (skinny/prediction.cuh): as many stages as its
 * pipeline holds, and one more into L2. Where the prediction was wrong it discards them.
 * Measured on an H200 in bf16 at 1 row, from kernel to kernel (floor), four experts of 1792: gate and up 15.3 us (12.9); gate, up and down
 * 21.6 us (19.4), where two kernels take 23. With weights in 8 bits, gate, up and down: 15.5 us (9.8).
 *
 * Launch: block = SKINNY_THREADS, grid = at most as many blocks as there are tiles, shared as SkinnyNormBlock lays it out.
 */
#include "common/launch.cuh"
#include "skinny/fused.cuh"
#include "skinny/prediction.cuh"

/* This block's tiles of gate and up, expert by expert. */
template <uint32_t WORDS>
struct SkinnyExpertTiles : SkinnyExpertOrder<WORDS> {
  using Order = SkinnyExpertOrder<WORDS>;
  uint32_t tile, each;

  __device__ inline SkinnyExpertTiles(ExpertBits<WORDS> experts, const SkinnyPrediction<WORDS> &prediction, uint32_t tiles_each)
      : Order(experts, prediction), tile(blockIdx.x), each(tiles_each) {
    settle();
  }
  __device__ inline void next() {
    tile += gridDim.x;
    settle();
  }
  __device__ inline void settle() {
    for (; any(Order::left) && tile >= each; tile -= each) Order::next();
  }
};

/* The producer before the choice, while no consumer takes a stage: it copies as many stages of the predicted experts' tiles, from `first` on,
 * as the pipeline holds, and prefetches the next one into L2. feed(tile, begin, end) copies stages of a tile. */
template <class Tiles, class Block, class Prediction, class Feed, class Prefetch>
__device__ inline void skinny_copy_predicted(Block &block, const Prediction &predicted, const Tiles &first, uint32_t of_tile, const Feed &feed,
                                             const Prefetch &prefetch) {
  auto &choice = *block.choice;
  uint32_t loaded = 0;
#pragma unroll 1
  for (Tiles at = first; any(at.left) && loaded < block.pipeline.count; at.next()) loaded += of_tile;
  loaded = min(loaded, block.pipeline.count);
  if (threadIdx.x % WARP == 0) choice.of_producer = predicted, choice.loaded = loaded;
  threads_arrive<SKINNY_THREADS, PREDICTION_READY>();
  Tiles at = first;
  uint32_t stages_left = loaded;
#pragma unroll 1
  for (; stages_left >= of_tile; stages_left -= of_tile, at.next()) feed(at, 0, of_tile);
  if (any(at.left)) {
    feed(at, 0, stages_left);
    prefetch(at, stages_left);
  }
  threads_meet<SKINNY_THREADS, CHOICE_READY>();
}

/* The producer after the choice: it copies the tiles from `at` on, of which `stages` stages are there already. */
template <class Tiles, class Feed>
__device__ inline void skinny_copy_chosen(Tiles &at, uint32_t stages, uint32_t of_tile, const Feed &feed) {
  for (uint32_t i = stages / of_tile; i > 0; i--) at.next();
#pragma unroll 1
  for (uint32_t begin = stages % of_tile; any(at.left); at.next(), begin = 0) feed(at, begin, of_tile);
}

/* The first block stores the experts and weights of `count` rows, each by a warp. */
template <uint32_t WORDS>
__device__ inline void skinny_store_choice(const tg_skinny_experts_args &a, const SkinnyChoice<WORDS> &choice, uint32_t count, Weighing weighing) {
  const uint32_t of_warp = threadIdx.x / WARP;
  if (blockIdx.x != 0 || of_warp >= count) return;
#pragma unroll 1
  for (uint32_t e = threadIdx.x % WARP; e < WORDS * WARP; e += WARP) {
    if (!choice.has(of_warp, e)) continue;
    const uint32_t pair = of_warp * weighing.k + choice.index(of_warp, e);
    a.experts[pair] = e;
    a.weights[pair] = skinny_weight(choice, of_warp, e, weighing);
  }
}

/* The consumers' mainloop multiplies the tiles from `at` on, and stores y of the `count` rows that there are, each row's of an expert where
 * y_of(r, e) says; with FUSED other blocks wait for it. */
template <bool FUSED, class Math, uint32_t WORDS, class YOf>
__device__ inline void skinny_gate_up_tiles(SkinnyNormBlock<Math, WORDS> &block, SkinnyExpertTiles<WORDS> &at, bool right, uint32_t rows,
                                            uint32_t count, uint32_t outputs, uint32_t hidden, const YOf &y_of) {
  using X = typename Math::X;
  const auto &choice = *block.choice;
  const auto *x_row = block.row(rows);
  SkinnyColumns<Math> x_columns;
  x_columns.load(x_row, block.pipeline.k, true);
  const uint32_t r = threadIdx.x / GATE_OUTPUTS, i = threadIdx.x % GATE_OUTPUTS;
  /* a block must not end while copies to its shared memory are on their way, so unwanted ones are waited for */
#pragma unroll 1
  for (uint32_t skipped = right ? 0 : choice.loaded; skipped > 0; skipped--) block.pipeline.discard();
  if constexpr (IS_E4M3<typename Math::W>) {
    struct To {
      X *y;
      uint32_t word;
      bool more, mine;
    };
    auto take = [&](uint32_t r) {
      To to{nullptr, 0, any(at.left), false};
      if (!to.more) return to;
      const uint32_t n = at.tile * GATE_OUTPUTS + i, e = at.expert();
      to.mine = r < count && n < outputs && (FUSED || choice.has(r, e));
      if (to.mine) {
        to.y = y_of(FUSED ? 0 : r, e) + n;
        /* loaded after h, as below. The word is looked at when the output is stored, since a tile takes no longer than this load */
        if (FUSED) to.word = skinny_word(to.y);
      }
      at.next();
      return to;
    };
    block.gate_up_tiles(x_columns, x_row, hidden, take, [&](const To &to, auto value) {
      if constexpr (!FUSED) {
        if (to.mine) *to.y = X(value());
      } else if (__any_sync(0xffffffffu, to.mine)) {
        skinny_publish<1>(to.y, to.mine ? X(value()) : X(0.0f), to.mine && to.word == SKINNY_MISSING);
      }
    });
  } else {
#pragma unroll 1
    while (any(at.left)) {
      if constexpr (FUSED) {
        const uint32_t n = at.tile * GATE_OUTPUTS + i;
        X *to = y_of(0, at.expert()) + n;
        const bool mine = r < count && n < outputs;
        /* loaded after h: a block so late that it read a new h finds no word of y missing (skinny/fused.cuh) */
        const bool missing = mine && skinny_word(to) == SKINNY_MISSING;
        block.consume(x_columns, x_row, hidden);
        at.next();
        skinny_publish<1>(to, mine ? X(block.gated(r, i)) : X(0.0f), missing);
      } else {
        block.consume(x_columns, x_row, hidden);
        const uint32_t n = at.tile * GATE_OUTPUTS + i, e = at.expert();
        at.next();
        if (r < count && n < outputs && choice.has(r, e)) y_of(r, e)[n] = X(block.gated(r, i));
      }
    }
  }
}

/* With FUSED there is one row, and its down is added to h. */
template <class Math, uint32_t WORDS, bool FUSED>
__device__ inline void skinny_experts(const tg_skinny_experts_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  using Tiles = SkinnyExpertTiles<WORDS>;
  using Look = SkinnyPredictionLook<WORDS>;
  using Prediction = SkinnyPrediction<WORDS>;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * TG_SKINNY_MOST_STAGES];
  X *y = static_cast<X *>(a.y);
  const W *gate = static_cast<const W *>(a.gate), *up = static_cast<const W *>(a.up);
  float *h = a.h;
  const tg_step *step = a.step;
  const uint64_t stride = a.stride;
  const uint32_t outputs = a.outputs, hidden = a.hidden, expert_count = a.expert_count, layer = a.layer, bucket = a.bucket;
  const Weighing weighing{a.k, a.normalize != 0, a.scaling};
  const uint32_t step_rows = load_now(&step->rows);
  SkinnyNormBlock<Math, WORDS> block(shared, barriers, bucket, hidden, true, a.stages, FUSED ? SkinnyHandOver<Math>::bytes_of(weighing.k) : 0,
                           FUSED ? outputs : 0);
  SkinnyChoice<WORDS> &choice = *block.choice;
  const uint32_t lane = threadIdx.x % WARP, tiles = (outputs + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
  const uint32_t count = min(step_rows, bucket), rows = max(count, 1u);
  const uint32_t of_row = threadIdx.x / WARP / warps_of_row(bucket);
  const bool producer = threadIdx.x >= SKINNY_CONSUMERS;
  const SkinnyRouting<WORDS> routing(a.routing, bucket, hidden);
  const uint64_t policy = read_once();
  const uint32_t of_tile = block.pipeline.stages_of_tile(hidden);
  auto run = [&](const W *w, const float *scales, const Tiles &at) {
    return SkinnyRows<Math>::of(w + at.expert() * stride, scales + at.expert() * outputs, at.tile * GATE_OUTPUTS, outputs, hidden);
  };
  auto feed = [&](const Tiles &at, uint32_t begin, uint32_t end) {
    block.pipeline.load(run(gate, a.gate_scale, at), run(up, a.up_scale, at), hidden, policy, begin, end);
  };
  const SkinnyDown<Math, WORDS> down{static_cast<const W *>(a.down), a.down_scale, a.down_stride, outputs, hidden};
  SkinnyRow row;
  const bool predicts = layer != SKINNY_NO_LAYER;
  Prediction predicted;
  /* Mostly the words are there: the layer's first kernel published them. Else consumers wait with the producer, who until the kernel
   * ahead ends have only the norm's weight to load. */
  if (producer && predicts) {
    Look look(routing, step, layer, expert_count);
    if (look.wait(routing)) predicted = look.prediction(weighing.k);
  }
  __syncthreads();
  if (producer) {
    skinny_copy_predicted(block, predicted, Tiles(predicted.experts(), predicted, tiles), of_tile, feed, [&](const Tiles &at, uint32_t from) {
      block.pipeline.prefetch(run(gate, a.gate_scale, at), run(up, a.up_scale, at), hidden, policy, from);
    });
  } else {
    block.load_weight(a.norm_weight, hidden);
    wait_for_earlier_kernels();
    /* h is loaded now, while the memory is idle */
    row = SkinnyRow(h + (size_t)min(of_row, rows - 1) * hidden, hidden, bucket, true);
    Look look;
    const bool looks = threadIdx.x >= SKINNY_CONSUMERS - WARP;
    if (looks && predicts) look = Look(routing, step, layer, expert_count);
    skinny_choose(choice, routing, a.bias, rows, bucket, hidden, expert_count, weighing, a.eps, [&] {
      copy_wait<0>();
      if (!looks) return;
      Prediction found;
      if (predicts && look.ready()) found = look.prediction(weighing.k);
      if (lane == 0) choice.prediction = found;
    });
    if (!FUSED && blockIdx.x == 0 && threadIdx.x < bucket * WORDS)
      routing.publish(threadIdx.x, threadIdx.x < rows * WORDS ? choice.chosen[threadIdx.x] : 0);
    let_next_kernel_start();
  }
  /* Where all predicted experts are chosen they come first. Then the stages that this block has copied are those of its first tiles. Else
   * they are discarded. */
  const ExpertBits<WORDS> those = choice.any(rows);
  const Prediction prediction = choice.prediction_within(those);
  const bool right = prediction.is(choice.of_producer);
  Tiles at(those, prediction, tiles);
  if (producer) {
    skinny_copy_chosen(at, right ? choice.loaded : 0, of_tile, feed);
    if constexpr (FUSED) down.load(block.pipeline, choice, policy);
    return;
  }
  if (of_row < rows)
    row.store<Math>(block.x + of_row * block.x_pitch, bucket * block.x_pitch, choice.scale[of_row], block.norm);
  consumers_meet();
  auto y_of = [&](uint32_t r, uint32_t e) { return y + (size_t)(r * weighing.k + choice.index(r, e)) * outputs; };
  skinny_gate_up_tiles<FUSED>(block, at, right, rows, count, outputs, hidden, y_of);
  skinny_store_choice(a, choice, count, weighing);
  if constexpr (FUSED)
    down.add(h, block.pipeline, block.sums, SkinnyHandOver<Math>(block.choice + 1, weighing.k), choice, count, weighing,
             [&](uint32_t e) { return y_of(0, e); },
             [&](uint32_t e) {
               const SkinnyExpert<Math> expert{gate + e * stride, up + e * stride, a.gate_scale + e * outputs, a.up_scale + e * outputs};
               skinny_make_missing<Math>(y_of(0, e), expert, block.row(1), outputs, hidden);
             });
}

#define SKINNY_EXPERTS(NAME, MATH, WORDS, FUSED) \
  SKINNY_KERNEL(NAME, tg_skinny_experts_args, skinny_experts<SkinnyPacked<MATH>, WORDS, FUSED>(a);)

/* For up to 32 and 64 experts. Fused f32 rows exist for up to 32 only: with more there are too few registers.
 * Fused kernels of weights in 8 bits exist with rows in parts only, since they have one row. */
#define SKINNY_EXPERT_GATE_UP(SUFFIX, MATH)                \
  SKINNY_EXPERTS(expert_gate_up_##SUFFIX, MATH, 1, false)  \
  SKINNY_EXPERTS(expert_gate_up_##SUFFIX##_e64, MATH, 2, false)
#define SKINNY_FUSED(SUFFIX, T)                             \
  SKINNY_EXPERTS(experts_##SUFFIX, SkinnyHalf<T>, 1, true)  \
  SKINNY_EXPERTS(experts_##SUFFIX##_e64, SkinnyHalf<T>, 2, true)
FOR_SKINNY_TYPES(SKINNY_EXPERT_GATE_UP)
OF_BF16_E4M3(SKINNY_EXPERT_GATE_UP(bf16_e4m3_f16x2, SkinnyE4m3<SkinnyF16x2Rows>))
FOR_HALF_TYPES(SKINNY_FUSED)
OF_F32(SKINNY_EXPERTS(experts_f32_bf16x3, SkinnyBf16x3Rows, 1, true))
OF_BF16_E4M3(SKINNY_EXPERTS(experts_bf16_e4m3_f16x2, SkinnyE4m3<SkinnyF16x2Rows>, 1, true))
OF_BF16_E4M3(SKINNY_EXPERTS(experts_bf16_e4m3_f16x2_e64, SkinnyE4m3<SkinnyF16x2Rows>, 2, true))
OF_F32_E4M3(SKINNY_EXPERTS(experts_f32_e4m3_bf16x3, SkinnyE4m3<SkinnyBf16x3Rows>, 1, true))
