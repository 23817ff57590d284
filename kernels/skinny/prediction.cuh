/* guess.cuh: which experts a small step's rows will most likely go to, told before they are chosen.
 *
 * Between the last product before the router and the first weights of the experts lie a kernel's end, the choice and a memory
 * latency: some 5 us a layer in which the memory would be idle. The residual stream changes little in one mixer, so
 * what the router would choose if it saw the stream as it is before the mixer is nearly always among what it chooses behind
 * it. The kernel that begins a layer has blocks for this, beside those that stream its weights (skinny_make_guess): an expert a
 * warp, or two, for the first row alone, since two experts are as many as a ring has room for. Each leaves
 * its best two as words, and gate/up's producer (SkinnyGuessLook) takes the best two of all.
 *
 * A guess decides what is asked for early, and nothing else: the choice is made as without it, and what was asked for in
 * vain is not used. So results do not depend on it. They do on what else these blocks do where a row's experts are fused: they
 * leave unsaid what the blocks of these will hand to each other (skinny/fused.cuh).
 */
#ifndef TAILGRAPH_SKINNY_GUESS_CUH
#define TAILGRAPH_SKINNY_GUESS_CUH

#include "skinny/args.h"
#include "skinny/choice.cuh"

constexpr uint32_t SKINNY_NO_LAYER = 0xffffffffu;
constexpr uint32_t SKINNY_MOST_LOOKS = 64;  /* for a guess, before its kernel has ended */

/* Of a grid, the blocks that do what the kernel is there for come first, and behind them those that guess.
 *
 * These begin when the kernel before ends, and must have read their rows before the others have read their weights. With two
 * experts a warp in f32 they ended 2.5 us behind them; in bf16 they read as much as with one (profiles/log/few-rows-guess.md). */
__device__ inline uint32_t skinny_others(const tg_skinny_guess_args &guesser) { return gridDim.x - guesser.blocks; }

/* A word: the sign of its step and layer (which comes again, so that what is heard early may be another's), a score that sorts as an integer, and the expert, the lower the better. */
template <uint32_t WORDS>
struct SkinnyGuessWord {
  static constexpr uint32_t EXPERTS = WORDS * WARP;
  static constexpr uint32_t EXPERT_BITS = WORDS == 1 ? 5 : 6, SCORE_BITS = 32, SIGN_BITS = 64 - EXPERT_BITS - SCORE_BITS;
  static_assert(1u << EXPERT_BITS == EXPERTS, "an expert");

  static __device__ inline uint64_t sign(const tg_step *step, uint32_t layer) {
    const uint32_t number = uint32_t(__ldcg(reinterpret_cast<const unsigned long long *>(&step->number)));
    return uint64_t((number * 128 + layer + 1) & ((1u << SIGN_BITS) - 1)) << (64 - SIGN_BITS);
  }
  static __device__ inline uint64_t candidate(uint32_t key, uint32_t expert) {
    return uint64_t(key) << EXPERT_BITS | (EXPERTS - 1 - expert);
  }
  static __device__ inline uint32_t expert(uint64_t word) { return EXPERTS - 1 - uint32_t(word % EXPERTS); }
  static __device__ inline uint64_t sign_of(uint64_t word) { return word >> (64 - SIGN_BITS) << (64 - SIGN_BITS); }
};

/* A whole block of SKINNY_THREADS that is one of the last `guesser.blocks`; h[R,H]. It waits for earlier kernels, and leaves unsaid what
 * is handed over. */
template <uint32_t WORDS>
__device__ inline void skinny_make_guess(const tg_skinny_guess_args &guesser, const float *h, const tg_step *step, uint32_t bucket,
                                      uint32_t hidden, float eps) {
  constexpr uint32_t HELD = 16, STEP = 4 * WARP;  /* a lane has 4 columns in every STEP; so many of them before the wait */
  constexpr uint32_t EXPERTS = skinny_guess_experts(WORDS), EACH = EXPERTS / SKINNY_CONSUMER_WARPS;
  using Router = std::conditional_t<WORDS == 1, float, __nv_bfloat16>;
  using Held = std::conditional_t<WORDS == 1, float4, Raw4<Router>>;  /* bf16 stays as it is: registers are few */
  __shared__ uint64_t candidates[EXPERTS];
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, block = blockIdx.x - skinny_others(guesser);
  if (warp >= SKINNY_CONSUMER_WARPS) return;
  /* Read once: where a load stands behind a condition, the compiler reads the arguments again for each, and adds to them. */
  const Router *router = static_cast<const Router *>(guesser.router);
  const float *norm_weight = guesser.norm_weight, *all_bias = guesser.bias;
  const uint32_t expert_count = guesser.expert_count;
  const uint32_t first = block * EXPERTS + warp;  /* of this warp's experts, which lie a warp apart */
  auto expert = [&](uint32_t i) { return first + i * SKINNY_CONSUMER_WARPS; };
  auto there = [&](uint32_t i) { return expert(i) < expert_count; };
  auto weights = [&](uint32_t i) { return router + (size_t)(there(i) ? expert(i) : 0) * hidden; };
  auto asked = [&](const Router *of, uint32_t c) -> Held {
    if constexpr (WORDS > 1) return raw4_past_l1(of + c);
    else {
      const float4 g = load4(of + c), n = load4(norm_weight + c);
      return make_float4(g.x * n.x, g.y * n.y, g.z * n.z, g.w * n.w);
    }
  };
  auto as_f32 = [](const Held &held) {
    if constexpr (WORDS == 1) return held;
    else return load4(held);
  };
  Held with[EACH][HELD];
  float bias[EACH];
#pragma unroll
  for (uint32_t i = 0; i < EACH; i++) {
    const Router *of = weights(i);
#pragma unroll
    for (uint32_t held = 0; held < HELD; held++) {
      const uint32_t c = 4 * lane + held * STEP;
      with[i][held] = c < hidden ? asked(of, c) : Held{};
    }
    bias[i] = there(i) && all_bias ? all_bias[expert(i)] : 0.0f;
  }
  const uint64_t sign = SkinnyGuessWord<WORDS>::sign(step, guesser.layer);
  wait_for_earlier_kernels();
  float4 row[HELD];
#pragma unroll
  for (uint32_t held = 0; held < HELD; held++) {
    const uint32_t c = 4 * lane + held * STEP;
    row[held] = c < hidden ? load4(h + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __syncwarp();  /* all of them are asked for before any is used */
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
    for (uint32_t i = 0; i < EACH; i++) add(scores[i], v, as_f32(asked(weights(i), c)));
  }
  auto sum = [](float v) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
  };
  squares = sum(squares);
#pragma unroll
  for (uint32_t i = 0; i < EACH; i++) {
    const float score = 1.0f / (1.0f + expf(-sum(scores[i]) / sqrtf(squares / hidden + eps))) + bias[i];
    const uint64_t candidate = there(i) ? SkinnyGuessWord<WORDS>::candidate(sortable(score), expert(i)) : 0;
    if (lane == 0) candidates[i * SKINNY_CONSUMER_WARPS + warp] = candidate;
  }
  consumers_meet();
  for (uint32_t i = block * SKINNY_CONSUMERS + threadIdx.x; i < guesser.handed_pieces; i += guesser.blocks * SKINNY_CONSUMERS)
    guesser.handed[i] = make_uint4(SKINNY_UNSAID, SKINNY_UNSAID, SKINNY_UNSAID, SKINNY_UNSAID);
  if (threadIdx.x >= EXPERTS) return;
  /* a lane an expert: how many are better */
  const uint64_t mine = candidates[lane];
  uint32_t better = 0;
#pragma unroll
  for (uint32_t other = 0; other < EXPERTS; other++) better += candidates[other] > mine || (candidates[other] == mine && other < lane);
  uint64_t *words = SkinnyParts<WORDS>(guesser.parts, bucket, hidden).guessed + block * SKINNY_GUESS_BEST;
  if (better < SKINNY_GUESS_BEST) store_relaxed(words + better, sign | mine);
}

/* A warp's look at what was left. */
template <uint32_t WORDS>
struct SkinnyGuessLook {
  using Word = SkinnyGuessWord<WORDS>;
  using Parts = SkinnyParts<WORDS>;
  using Guess = SkinnyGuess<WORDS>;
  static constexpr uint32_t EXPERTS = skinny_guess_experts(WORDS);  /* of a block's words */
  uint64_t word, sign;
  bool mine;  /* this lane has a word */

  SkinnyGuessLook() = default;

  /* Of a layer that somebody guesses for. Nothing waits for what it asks for until it is used. */
  __device__ inline SkinnyGuessLook(const Parts &parts, const tg_step *step, uint32_t layer, uint32_t expert_count)
      : word(0), mine(threadIdx.x % WARP / SKINNY_GUESS_BEST < (expert_count + EXPERTS - 1) / EXPERTS) {
    again(parts);
    sign = Word::sign(step, layer);
  }
  __device__ inline void again(const Parts &parts) {
    if (mine) word = load_relaxed(parts.guessed + threadIdx.x % WARP);
  }

  /* Whether all is there that was left for this step and layer. It may be what a step of the same number left, where one is
   * launched again: only when the kernel that leaves it has ended do all blocks see the same. */
  __device__ inline bool heard() const { return __all_sync(0xffffffffu, !mine || Word::sign_of(word) == sign); }

  /* heard(), after some more looks if need be. */
  __device__ inline bool await(const Parts &parts) {
    bool there = heard();
#pragma unroll 1
    for (uint32_t more = SKINNY_MOST_LOOKS; !there && more > 0; more--) {
      again(parts);
      there = heard();
    }
    return there;
  }

  /* The best two experts, the second only where rows have two. */
  __device__ inline Guess guess(uint32_t k) const {
    const uint32_t expert = Word::expert(word);
    auto best = [&](bool of) {
      const uint32_t key = of ? uint32_t(word >> Word::EXPERT_BITS) : 0;
      const uint32_t most = __reduce_max_sync(0xffffffffu, key);
      const uint32_t who = __ballot_sync(0xffffffffu, of && key == most);
      return most ? __shfl_sync(0xffffffffu, expert, lowest(who)) : Guess::NONE;
    };
    Guess guess{best(mine), Guess::NONE};
    if (k > 1) guess.second = best(mine && expert != guess.first);
    return guess;
  }
};

#endif
