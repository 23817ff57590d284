/* prediction.cuh: which experts a small step's rows will most likely go to, published before they are chosen.
 *
 * Between the last product before the router and the first weights of the experts the memory would be idle for some 5 us a layer. The
 * residual stream changes little in a layer's attention or convolution, so what the router would choose before it is nearly always among
 * what it chooses after it. The kernel that begins a layer has blocks for this beside those that stream its weights (skinny_predict), for
 * the first row alone. A warp scores one expert, or two of more than 32, and a block publishes its best two as words. Gate/up's producer
 * (SkinnyPredictionLook) takes the best two of all, which are as many as a pipeline has room for.
 *
 * A prediction decides which weights are loaded first, and nothing else: weights that were loaded in vain are not used, and results do not
 * depend on it. Where a row's experts are fused, the same blocks also mark y as missing (skinny/fused.cuh), on which results do depend.
 */
#pragma once

#include "common/rmsnorm.cuh"
#include "skinny/choice.cuh"

constexpr uint32_t SKINNY_NO_LAYER = 0xffffffffu;
constexpr uint32_t SKINNY_MOST_LOOKS = 64;  /* for a prediction, before its kernel has ended */

/* Blocks of a grid that compute its product; after them come those that predict.
 *
 * The latter begin when the kernel before ends, and should be done with their experts' router rows before the others are done, or they
 * prolong the kernel. With two experts a warp in f32 they ended 2.5 us after them, so they read bf16
 * (profiles/log/few-rows-guess.md). An H100 has room for only 4 such blocks beside the 128 tiles of a hidden size of 2048. */
__device__ inline uint32_t skinny_product_blocks(const tg_skinny_prediction_args &predictor) { return gridDim.x - predictor.blocks; }

/* A word: the mark of its step and layer (which comes again after 2^19 steps, so that a word found before the grid
 * dependency wait may be another's), a score that sorts as an integer, and the expert, the lower the better. */
struct SkinnyPredictionWord {
  static constexpr uint32_t EXPERTS = SKINNY_MOST_EXPERTS;
  static constexpr uint32_t EXPERT_BITS = 6, SCORE_BITS = 32, MARK_BITS = 64 - EXPERT_BITS - SCORE_BITS;
  static_assert(1u << EXPERT_BITS == EXPERTS, "an expert");

  static constexpr uint32_t MOST_LAYERS = 128;

  /* + 1: cleared memory is no mark. */
  static __device__ inline uint64_t mark(const tg_step *step, uint32_t layer) {
    const uint32_t number = uint32_t(__ldcg(reinterpret_cast<const unsigned long long *>(&step->number)));
    return uint64_t((number * MOST_LAYERS + layer + 1) & ((1u << MARK_BITS) - 1)) << (64 - MARK_BITS);
  }
  static __device__ inline uint64_t candidate(uint32_t key, uint32_t expert) { return uint64_t(key) << EXPERT_BITS | (EXPERTS - 1 - expert); }
  static __device__ inline uint32_t expert(uint64_t word) { return EXPERTS - 1 - uint32_t(word % EXPERTS); }
  static __device__ inline uint64_t mark_of(uint64_t word) { return word >> (64 - MARK_BITS) << (64 - MARK_BITS); }
};

/* A whole block of SKINNY_THREADS, one of the last `predictor.blocks`, predicts; h[R,H]. It waits for earlier kernels, and marks the words
 * that fused experts hand over as missing. */
template <uint32_t WORDS>
__device__ inline void skinny_predict(const tg_skinny_prediction_args &predictor, const float *h, const tg_step *step, uint32_t hidden,
                                      float eps) {
  constexpr uint32_t HELD = 16, STEP = 4 * WARP;  /* a lane has 4 columns in every STEP; so many of them before the wait */
  constexpr uint32_t EACH = WORDS, EXPERTS = EACH * SKINNY_PREDICTION_EXPERTS;
  using Router = __nv_bfloat16;
  /* One expert's row is f32 before the wait, so that less is left to do after it. Registers are too few for two. */
  using Held = std::conditional_t<EACH == 1, float4, Raw4<Router>>;
  auto load_held = [](const Router *from) -> Held {
    if constexpr (EACH == 1) return load4(raw4_past_l1(from));
    else return raw4_past_l1(from);
  };
  auto as_f32 = [](const Held &held) {
    if constexpr (EACH == 1) return held;
    else return load4(held);
  };
  __shared__ uint64_t candidates[EXPERTS];
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, block = blockIdx.x - skinny_product_blocks(predictor);
  if (warp >= SKINNY_CONSUMER_WARPS) return;
  /* Copies, since behind a condition the compiler reads an argument again for each load, and adds to it. */
  const Router *router = static_cast<const Router *>(predictor.router);
  const float *all_bias = predictor.bias;
  const uint32_t expert_count = predictor.expert_count;
  const uint32_t first = block * EXPERTS + warp;  /* of this warp's experts, which lie a warp apart */
  auto expert = [&](uint32_t i) { return first + i * SKINNY_CONSUMER_WARPS; };
  auto there = [&](uint32_t i) { return expert(i) < expert_count; };
  auto weights = [&](uint32_t i) { return router + (size_t)(there(i) ? expert(i) : 0) * hidden; };
  Held with[EACH][HELD];
  float bias[EACH];
#pragma unroll
  for (uint32_t i = 0; i < EACH; i++) {
    const Router *of = weights(i);
#pragma unroll
    for (uint32_t held = 0; held < HELD; held++) {
      const uint32_t c = 4 * lane + held * STEP;
      with[i][held] = c < hidden ? load_held(of + c) : Held{};
    }
    bias[i] = there(i) && all_bias ? all_bias[expert(i)] : 0.0f;
  }
  const uint64_t mark = SkinnyPredictionWord::mark(step, predictor.layer);
  wait_for_earlier_kernels();
  float4 row[HELD];
#pragma unroll
  for (uint32_t held = 0; held < HELD; held++) {
    const uint32_t c = 4 * lane + held * STEP;
    row[held] = c < hidden ? load4(h + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __syncwarp();  /* all loads are issued before any value is used */
  float scores[EACH] = {}, squares = 0.0f;
  auto add = [](float &score, float4 v, float4 w) { score += fmaf(v.w, w.w, fmaf(v.z, w.z, fmaf(v.y, w.y, v.x * w.x))); };
#pragma unroll
  for (uint32_t held = 0; held < HELD; held++) {
    squares = add_squares(squares, row[held]);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) add(scores[i], row[held], as_f32(with[i][held]));
  }
#pragma unroll 1
  for (uint32_t c = 4 * lane + HELD * STEP; c < hidden; c += STEP) {
    const float4 v = load4(h + c);
    squares = add_squares(squares, v);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) add(scores[i], v, load4(raw4_past_l1(weights(i) + c)));
  }
  squares = sum_over_lanes(squares);
#pragma unroll
  for (uint32_t i = 0; i < EACH; i++) {
    const float score = 1.0f / (1.0f + expf(-sum_over_lanes(scores[i]) / sqrtf(squares / hidden + eps))) + bias[i];
    const uint64_t candidate = there(i) ? SkinnyPredictionWord::candidate(sortable(score), expert(i)) : 0;
    if (lane == 0) candidates[i * SKINNY_CONSUMER_WARPS + warp] = candidate;
  }
  consumers_meet();
  for (uint32_t i = block * SKINNY_CONSUMERS + threadIdx.x; i < predictor.fused_y_pieces; i += predictor.blocks * SKINNY_CONSUMERS)
    predictor.fused_y[i] = make_uint4(SKINNY_MISSING, SKINNY_MISSING, SKINNY_MISSING, SKINNY_MISSING);
  if (threadIdx.x >= EXPERTS) return;
  /* A lane counts the experts that are better than its own. */
  const uint64_t mine = candidates[lane];
  uint32_t better = 0;
#pragma unroll
  for (uint32_t other = 0; other < EXPERTS; other++) better += candidates[other] > mine || (candidates[other] == mine && other < lane);
  uint64_t *words = static_cast<uint64_t *>(predictor.routing) + block * SKINNY_PREDICTION_BEST;
  if (better < SKINNY_PREDICTION_BEST) store_relaxed(words + better, mark | mine);
}

/* A warp's look at the published words. */
template <uint32_t WORDS>
struct SkinnyPredictionLook {
  using Word = SkinnyPredictionWord;
  using Routing = SkinnyRouting<WORDS>;
  using Prediction = SkinnyPrediction<WORDS>;
  static constexpr uint32_t EXPERTS = WORDS * SKINNY_PREDICTION_EXPERTS;  /* of a block's words */
  uint64_t word, mark;
  bool mine;  /* this lane has a word */

  SkinnyPredictionLook() = default;

  /* For a layer that is predicted. Nothing waits for the loads until their values are used. */
  __device__ inline SkinnyPredictionLook(const Routing &routing, const tg_step *step, uint32_t layer, uint32_t expert_count)
      : word(0), mine(threadIdx.x % WARP / SKINNY_PREDICTION_BEST < (expert_count + EXPERTS - 1) / EXPERTS) {
    reload(routing);
    mark = Word::mark(step, layer);
  }
  __device__ inline void reload(const Routing &routing) {
    if (mine) word = load_relaxed(routing.predicted + threadIdx.x % WARP);
  }

  /* Whether all words of this step and layer are there. They may be of an earlier run of a step of the same number: all blocks see the
   * same only once the kernel that publishes them has ended. */
  __device__ inline bool ready() const { return __all_sync(0xffffffffu, !mine || Word::mark_of(word) == mark); }

  /* ready(), after some more looks if need be. */
  __device__ inline bool wait(const Routing &routing) {
    bool there = ready();
#pragma unroll 1
    for (uint32_t more = SKINNY_MOST_LOOKS; !there && more > 0; more--) {
      reload(routing);
      there = ready();
    }
    return there;
  }

  /* The best two experts, the second only where rows have two. */
  __device__ inline Prediction prediction(uint32_t k) const {
    const uint32_t expert = Word::expert(word);
    auto best = [&](bool of) {
      const uint32_t key = of ? uint32_t(word >> Word::EXPERT_BITS) : 0;
      const uint32_t most = __reduce_max_sync(0xffffffffu, key);
      const uint32_t who = __ballot_sync(0xffffffffu, of && key == most);
      return most ? __shfl_sync(0xffffffffu, expert, lowest(who)) : Prediction::NONE;
    };
    Prediction found{best(mine), Prediction::NONE};
    if (k > 1) found.second = best(mine && expert != found.first);
    return found;
  }
};
