/* choice.cuh: which experts the rows of a small step go to, found by every block of gate/up for itself.
 *
 * The product before the router's norm (skinny/add.cuh) leaves, for each of its tiles of SKINNY_OUTPUTS channels, what they add
 * to every expert's score and to the row's sum of squares: scores are linear in h but for the row's one scale. So no
 * kernel stands between: the blocks of gate/up add the parts up, in an order that the bucket alone fixes, and choose as
 * common/experts.cuh does. A lane has an expert: skinny kernels take at most SKINNY_EXPERTS.
 *
 * Where down is a kernel of its own, gate/up's first block says what was chosen as soon as it knows, so that down's blocks,
 * which may come onto an SM long before gate/up has ended, ask for those experts' weights at once. Gate/up's own blocks ask for
 * some before that, by a guess (skinny/guess.cuh).
 */
#ifndef TAILGRAPH_SKINNY_CHOICE_CUH
#define TAILGRAPH_SKINNY_CHOICE_CUH

#include "common/experts.cuh"
#include "skinny/rows.cuh"

constexpr uint32_t SKINNY_EXPERTS = WARP;

constexpr uint32_t SKINNY_GUESS_WORDS = 8;

constexpr uint32_t SKINNY_UNSAID = 0xffffffffu;  /* of what is its own sign: a word that is not written yet (skinny/fused.cuh) */

/* A row's experts, chosen[SKINNY_ROWS]; what skinny/guess.cuh leaves, guessed[SKINNY_GUESS_WORDS]; parts of scores,
 * [bucket, H / SKINNY_OUTPUTS, SKINNY_EXPERTS]; and parts of squares, [bucket, H / SKINNY_OUTPUTS]. */
struct SkinnyParts {
  static constexpr uint64_t CHOSEN = 1ull << 32;  /* with a bit for each expert below it; 0 until they are chosen */

  uint64_t *chosen, *guessed;
  float *scores, *squares;
  uint32_t tiles;

  __device__ inline SkinnyParts(void *parts, uint32_t bucket, uint32_t hidden)
      : chosen(static_cast<uint64_t *>(parts)), guessed(chosen + SKINNY_ROWS),
        scores(reinterpret_cast<float *>(guessed + SKINNY_GUESS_WORDS)),
        squares(scores + (size_t)bucket * (hidden / SKINNY_OUTPUTS) * SKINNY_EXPERTS), tiles(hidden / SKINNY_OUTPUTS) {}

  /* Before the kernel that chooses. */
  __device__ inline void forget(uint32_t r) const { chosen[r] = 0; }

  __device__ inline void say(uint32_t r, uint32_t experts) const {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(chosen + r), "l"(CHOSEN | experts) : "memory");
  }

  /* A first look at what was said of row r, for hear(): nothing waits for it until then. */
  __device__ inline uint64_t listen(uint32_t r) const {
    uint64_t said;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(said) : "l"(chosen + r) : "memory");
    return said;
  }

  /* What was said of row r, by a kernel that runs or has run; `said` is a first look. For one that is launched behind it, but need
   * not have waited for it: in place of a fence, what is said is one word, and is read until it is there. */
  __device__ inline uint32_t hear(uint32_t r, uint64_t said) const {
    while (!said) said = listen(r);
    return uint32_t(said);
  }
};

__device__ inline uint32_t lowest(uint32_t bits) { return __ffs(bits) - 1; }

/* Experts that come before the others. */
struct SkinnyGuess {
  static constexpr uint32_t NONE = SKINNY_EXPERTS;

  uint32_t first = NONE, second = NONE;

  __device__ inline uint32_t experts() const { return bit(first) | bit(second); }
  __device__ inline bool is(const SkinnyGuess &other) const { return first == other.first && second == other.second; }

  static __device__ inline uint32_t bit(uint32_t expert) { return expert < SKINNY_EXPERTS ? 1u << expert : 0; }
};

/* Experts in the order in which their weights are asked for: those of a guess first, the others ascending. */
struct SkinnyExpertOrder {
  uint32_t left;  /* experts that are not done */
  uint32_t first, second;

  __device__ inline SkinnyExpertOrder(uint32_t experts, const SkinnyGuess &guess)
      : left(experts), first(SkinnyGuess::bit(guess.first)), second(SkinnyGuess::bit(guess.second)) {}
  __device__ inline uint32_t expert() const { return lowest(left & first ? first : left & second ? second : left); }
  __device__ inline void next() { left &= ~(1u << expert()); }
};

struct alignas(16) SkinnyChoice {
  float score[SKINNY_ROWS][SKINNY_EXPERTS];
  float scale[SKINNY_ROWS];              /* of its norm */
  uint32_t chosen[SKINNY_ROWS];          /* a bit for each of its experts */
  float scores[SKINNY_CONSUMER_WARPS][SKINNY_EXPERTS], squares[SKINNY_CONSUMER_WARPS];  /* of each warp's tiles */
  SkinnyGuess guess;                     /* the same in all blocks: how they share the tiles follows from it */
  SkinnyGuess heard;                     /* what this block's producer took it for, and so many stages it has asked for */
  uint32_t asked;

  /* Experts that any of the rows has. */
  __device__ inline uint32_t any(uint32_t rows) const {
    uint32_t those = 0;
#pragma unroll 1
    for (uint32_t r = 0; r < rows; r++) those |= chosen[r];
    return those;
  }
  /* The guess, if all of those have been chosen. */
  __device__ inline SkinnyGuess guess_of(uint32_t those) const { return guess.experts() & ~those ? SkinnyGuess{} : guess; }
  __device__ inline bool has(uint32_t r, uint32_t e) const { return chosen[r] >> e & 1; }
  /* Which of the row's experts that is. */
  __device__ inline uint32_t index(uint32_t r, uint32_t e) const { return __popc(chosen[r] & ((1u << e) - 1)); }
};

static_assert(sizeof(SkinnyChoice) == 2176, "the launcher leaves room for it");

/* All consumers, who find what the producer heard in `choice` too: it has passed GUESS_TOLD, and waits at CHOICE_TOLD. `rows` of a
 * bucket of `bucket`; beside() is what else a warp does before all meet. */
template <class Beside>
__device__ inline void skinny_choose(SkinnyChoice &choice, SkinnyParts parts, const float *bias, uint32_t rows, uint32_t bucket,
                                  uint32_t hidden, uint32_t expert_count, Weighing weighing, float eps, Beside beside) {
  constexpr uint32_t AT_ONCE = 8, TILES = 4;  /* a warp's load is of 4 tiles: a lane has 4 experts of one */
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t warps = warps_of_row(bucket), r = warp / warps, part = warp % warps, step = warps * TILES;
  const float of_bias = bias && lane < expert_count ? bias[lane] : 0.0f;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float squares = 0.0f;
  if (r < rows) {
    /* past the first-level cache: it is read once */
    const float4 *from = reinterpret_cast<const float4 *>(parts.scores + (size_t)r * parts.tiles * SKINNY_EXPERTS) + lane;
#pragma unroll 1
    for (uint32_t first = part * TILES; first < parts.tiles; first += AT_ONCE * step) {
      float4 v[AT_ONCE];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        const uint32_t tile = first + i * step;
        v[i] = tile + lane / 8 < parts.tiles ? __ldcg(from + tile * (SKINNY_EXPERTS / 4)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
        sum = make_float4(sum.x + v[i].x, sum.y + v[i].y, sum.z + v[i].z, sum.w + v[i].w);
    }
#pragma unroll 4
    for (uint32_t tile = part * WARP + lane; tile < parts.tiles; tile += warps * WARP)
      squares += __ldcg(parts.squares + (size_t)r * parts.tiles + tile);
  }
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (offset < 8) continue;  /* lanes 0 .. 7 are a tile's */
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, offset);
  }
  if (lane < 8) store4(choice.scores[warp] + 4 * lane, sum);
  if (lane == 0) choice.squares[warp] = squares;
  beside();
  skinny_wait_at<GUESS_TOLD>();
  if (warp < rows) {  /* a warp a row, a lane an expert */
    float score = 0.0f;
    squares = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < SKINNY_CONSUMER_WARPS; w++)
      if (w < warps) score += choice.scores[warp * warps + w][lane], squares += choice.squares[warp * warps + w];
    const float scale = 1.0f / sqrtf(squares / hidden + eps);
    score = 1.0f / (1.0f + expf(-(scale * score)));
    const uint32_t key = sortable(score + of_bias);
    bool left = lane < expert_count;
#pragma unroll 1
    for (uint32_t i = 0; i < weighing.k; i++) {  /* the best that is left, of several the lowest */
      const uint32_t best = __reduce_max_sync(0xffffffffu, left ? key : 0);
      if (lane == lowest(__ballot_sync(0xffffffffu, left && key == best))) left = false;
    }
    const uint32_t chosen = __ballot_sync(0xffffffffu, lane < expert_count && !left);
    choice.score[warp][lane] = score;
    if (lane == 0) choice.chosen[warp] = chosen, choice.scale[warp] = scale;
  }
  skinny_pass<CHOICE_TOLD>();
  consumers_meet();
}

/* A warp, a lane an expert: the weight of row r's expert `lane`, if it is one of them. */
__device__ inline float skinny_weight(const SkinnyChoice &choice, uint32_t r, Weighing weighing) {
  const uint32_t lane = threadIdx.x % WARP;
  float total = 0.0f;
#pragma unroll 1
  for (uint32_t those = choice.chosen[r]; those; those &= those - 1) total += choice.score[r][lowest(those)];
  return (weighing.normalize ? choice.score[r][lane] / (total + 1e-6f) : choice.score[r][lane]) * weighing.scaling;
}

#endif
