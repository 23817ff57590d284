/* choice.cuh: which experts the rows of a small step go to. Every block of gate/up chooses for itself, since a router kernel before it
 * would cost a start and a wait.
 *
 * Scores are linear in h, but for the norm's one scale a row. So the kernel that makes h (skinny/add.cu) stores shares: for each of its
 * tiles, what these channels add to every expert's score and to the row's sum of squares. The blocks of gate/up add the shares up, in an
 * order that follows from the bucket alone, and choose by choose_best (common/bits.cuh).
 *
 * Experts are bits of words (common/bits.cuh), a lane for each bit of a word. Arrays by expert have room for 32 WORDS.
 *
 * Where down is a kernel of its own, its blocks may have an SM long before gate/up has ended. So gate/up's first block publishes what was
 * chosen as soon as it knows, and down's blocks load those experts' weights at once.
 */
#pragma once

#include "common/bits.cuh"
#include "common/experts.cuh"
#include "skinny/skinny.cuh"

/* How many experts a block that predicts scores for each word of bits (skinny/prediction.cuh), how many it publishes, and of how many in all. */
constexpr uint32_t SKINNY_PREDICTION_EXPERTS = TG_SKINNY_PREDICTION_EXPERTS, SKINNY_PREDICTION_BEST = TG_SKINNY_PREDICTION_BEST;
constexpr uint32_t SKINNY_MOST_EXPERTS = TG_MOST_BIT_WORDS * WARP;
constexpr uint32_t SKINNY_PREDICTION_WORDS = SKINNY_PREDICTION_BEST * WARP / SKINNY_PREDICTION_EXPERTS;
static_assert(SKINNY_PREDICTION_WORDS <= WARP, "a lane looks at each");

constexpr uint32_t SKINNY_MISSING = 0xffffffffu;  /* a word of y that is not stored yet (skinny/fused.cuh) */

/* What kernels hand to each other in global memory, in this order: what skinny/prediction.cuh publishes,
 * predicted[SKINNY_PREDICTION_WORDS]; each row's experts, chosen[SKINNY_ROWS][WORDS]; the shares of scores,
 * [bucket, H / SKINNY_OUTPUTS, EXPERTS]; the shares of squares, [bucket, H / SKINNY_OUTPUTS]. */
template <uint32_t WORDS>
struct SkinnyRouting {
  static constexpr uint32_t EXPERTS = WORDS * WARP;
  static constexpr uint64_t CHOSEN = 1ull << 32;  /* the mark of a word that is there; experts are the bits below; 0 until then */

  uint64_t *predicted, *chosen;
  float *scores, *squares;
  uint32_t tiles;

  __device__ inline SkinnyRouting(void *routing, uint32_t bucket, uint32_t hidden)
      : predicted(static_cast<uint64_t *>(routing)), chosen(predicted + SKINNY_PREDICTION_WORDS),
        scores(reinterpret_cast<float *>(chosen + SKINNY_ROWS * WORDS)),
        squares(scores + (size_t)bucket * (hidden / SKINNY_OUTPUTS) * EXPERTS), tiles(hidden / SKINNY_OUTPUTS) {}

  /* Clears word i of chosen, a thread a word. tg_skinny_out_* or tg_skinny_held_out_* does it after its wait, when the last
   * layer's down has ended. */
  __device__ inline void clear(uint32_t i) const { chosen[i] = 0; }

  __device__ inline void publish(uint32_t i, uint32_t experts) const { store_relaxed(chosen + i, CHOSEN | experts); }

  /* Loads word i, for wait(): the load is on its way while the caller does other things. */
  __device__ inline uint64_t load(uint32_t i) const { return load_relaxed(chosen + i); }

  /* The experts of word i, of which load() found `loaded`. The kernel that publishes them may still be running. So that no fence is
   * needed, each word is marked when it is there, and is read until it is. */
  __device__ inline uint32_t wait(uint32_t i, uint64_t loaded) const {
    while (!loaded) loaded = load(i);
    return uint32_t(loaded);
  }
};

/* Up to two experts that are predicted: their weights are loaded before the others'. */
template <uint32_t WORDS>
struct SkinnyPrediction {
  using Bits = ExpertBits<WORDS>;
  static constexpr uint32_t NONE = WORDS * WARP;

  uint32_t first = NONE, second = NONE;

  __device__ inline Bits experts() const { return bit_of<WORDS>(first) | bit_of<WORDS>(second); }
  __device__ inline bool is(const SkinnyPrediction &other) const { return first == other.first && second == other.second; }
};

/* Experts in the order in which their weights are loaded: those predicted first, the others ascending. */
template <uint32_t WORDS>
struct SkinnyExpertOrder {
  static constexpr uint32_t SECOND = 0x100;  /* both predicted experts are in one register, since registers are few */
  ExpertBits<WORDS> left;  /* experts that are not done */
  uint32_t predicted;

  __device__ inline SkinnyExpertOrder(const ExpertBits<WORDS> &experts, const SkinnyPrediction<WORDS> &of)
      : left(experts), predicted(of.first + of.second * SECOND) {}
  __device__ inline uint32_t expert() const {
    const uint32_t first = predicted % SECOND, second = predicted / SECOND;
    return has(left, first) ? first : has(left, second) ? second : lowest(left);
  }
  __device__ inline void next() { left = without(left, bit_of<WORDS>(expert())); }
};

/* With one word the predicted experts are bits too. */
template <>
struct SkinnyExpertOrder<1> {
  uint32_t left, first, second;

  __device__ inline SkinnyExpertOrder(uint32_t experts, const SkinnyPrediction<1> &of)
      : left(experts), first(bit_of<1>(of.first)), second(bit_of<1>(of.second)) {}
  __device__ inline uint32_t expert() const { return lowest(left & first ? first : left & second ? second : left); }
  __device__ inline void next() { left &= ~(1u << expert()); }
};

template <uint32_t WORDS>
struct alignas(16) SkinnyChoice {
  using Bits = ExpertBits<WORDS>;
  static constexpr uint32_t EXPERTS = WORDS * WARP;

  float score[SKINNY_ROWS][EXPERTS];     /* after the sigmoid, without bias */
  float scale[SKINNY_ROWS];              /* of its norm */
  uint32_t chosen[SKINNY_ROWS * WORDS];  /* [rows][WORDS]: a bit for each of a row's experts */
  float warp_sums[SKINNY_CONSUMER_WARPS][EXPERTS], squares[SKINNY_CONSUMER_WARPS];  /* sums over each warp's tiles */
  SkinnyPrediction<WORDS> prediction;    /* read after the wait by the last consumer warp: the same in all blocks */
  SkinnyPrediction<WORDS> of_producer;   /* read before it, perhaps stale, used only if equal; and the stages loaded by it */
  uint32_t loaded;

  /* The experts that any of the rows has. */
  __device__ inline Bits any(uint32_t rows) const {
    Bits those{};
#pragma unroll 1
    for (uint32_t r = 0; r < rows; r++) those = those | bits_at<WORDS>(chosen, r);
    return those;
  }
  /* The prediction if `those`, which have been chosen, hold all of it; else none. */
  __device__ inline SkinnyPrediction<WORDS> prediction_within(Bits those) const {
    return ::any(without(prediction.experts(), those)) ? SkinnyPrediction<WORDS>{} : prediction;
  }
  __device__ inline bool has(uint32_t r, uint32_t e) const { return has_at<WORDS>(chosen, r, e); }
  /* The index of expert e among the row's experts, which ascend. */
  __device__ inline uint32_t index(uint32_t r, uint32_t e) const { return count_before(bits_at<WORDS>(chosen, r), e); }
};

static_assert(sizeof(SkinnyChoice<1>) == TG_SKINNY_CHOICE_BYTES && sizeof(SkinnyChoice<2>) == TG_SKINNY_CHOICE_BYTES_2,
              "the launcher leaves room for it");

/* All consumers fill `choice`. First warps add up shares of scores, then a warp a row chooses. In between they wait for the producer at
 * PREDICTION_READY, so `choice` also has what it found; the producer waits for them at CHOICE_READY. There are `rows` rows in a bucket of
 * `bucket`. beside() is other work of a warp, done before that wait. */
template <uint32_t WORDS, class Beside>
__device__ inline void skinny_choose(SkinnyChoice<WORDS> &choice, SkinnyRouting<WORDS> routing, const float *bias, uint32_t rows,
                                  uint32_t bucket, uint32_t hidden, uint32_t expert_count, Weighing weighing, float eps, Beside beside) {
  constexpr uint32_t EXPERTS = WORDS * WARP;
  constexpr uint32_t AT_ONCE = 8, LANES = EXPERTS / 4, TILES = WARP / LANES;  /* loads under way; lanes of a tile, 4 experts each; tiles a load */
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t warps = warps_of_row(bucket), r = warp / warps, part = warp % warps, step = warps * TILES;
  float of_bias[WORDS];
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) of_bias[w] = bias && lane + w * WARP < expert_count ? bias[lane + w * WARP] : 0.0f;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float squares = 0.0f;
  if (r < rows) {
    /* The first share of squares is loaded ahead of those of scores: behind them it would be one more wait for all weights under way. */
    const float *of_squares = routing.squares + (size_t)r * routing.tiles;
    uint32_t of_lane = part * WARP + lane;
    const float first_squares = of_lane < routing.tiles ? __ldcg(of_squares + of_lane) : 0.0f;
    /* past the first-level cache, since it is read once */
    const float4 *from = reinterpret_cast<const float4 *>(routing.scores + (size_t)r * routing.tiles * EXPERTS) + lane;
#pragma unroll 1
    for (uint32_t first = part * TILES; first < routing.tiles; first += AT_ONCE * step) {
      float4 v[AT_ONCE];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        const uint32_t tile = first + i * step;
        v[i] = tile + lane / LANES < routing.tiles ? __ldcg(from + tile * LANES) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
        sum = make_float4(sum.x + v[i].x, sum.y + v[i].y, sum.z + v[i].z, sum.w + v[i].w);
    }
    squares = first_squares;
#pragma unroll 4
    for (of_lane += warps * WARP; of_lane < routing.tiles; of_lane += warps * WARP) squares += __ldcg(of_squares + of_lane);
  }
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (offset < LANES) continue;  /* these lanes have different experts of one tile */
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, offset);
  }
  if (lane < LANES) store4(choice.warp_sums[warp] + 4 * lane, sum);
  if (lane == 0) choice.squares[warp] = squares;
  beside();
  threads_meet<SKINNY_THREADS, PREDICTION_READY>();
  if (warp < rows) {  /* each warp has a row, each lane one expert of every word */
    float score[WORDS] = {};
    squares = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < SKINNY_CONSUMER_WARPS; w++) {
      if (w < warps) squares += choice.squares[warp * warps + w];
#pragma unroll
      for (uint32_t i = 0; i < WORDS; i++)
        if (w < warps) score[i] += choice.warp_sums[warp * warps + w][lane + i * WARP];
    }
    const float scale = 1.0f / sqrtf(squares / hidden + eps);
    uint32_t chosen[WORDS];
    choose_best(chosen, score, scale, of_bias, expert_count, weighing.k);
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) {
      choice.score[warp][lane + i * WARP] = score[i];
      if (lane == 0) choice.chosen[warp * WORDS + i] = chosen[i];
    }
    if (lane == 0) choice.scale[warp] = scale;
  }
  threads_arrive<SKINNY_THREADS, CHOICE_READY>();
  consumers_meet();
}

/* A warp computes the weight of row r's expert e, which may differ by lane. It means nothing for an expert that the row does not have. */
template <uint32_t WORDS>
__device__ inline float skinny_weight(const SkinnyChoice<WORDS> &choice, uint32_t r, uint32_t e, Weighing weighing) {
  float total = 0.0f;
#pragma unroll 1
  for (ExpertBits<WORDS> those = bits_at<WORDS>(choice.chosen, r); any(those); those = without_lowest(those))
    total += choice.score[r][lowest(those)];
  /* 1e-6 as in router/choice.cuh */
  return (weighing.normalize ? choice.score[r][e] / (total + 1e-6f) : choice.score[r][e]) * weighing.scaling;
}
