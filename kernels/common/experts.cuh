/* experts.cuh: what the router, the token sort and the grouped matrix products agree on. */
#pragma once

#include "common/bits.cuh"

constexpr int MAX_EXPERTS = TG_MAX_EXPERTS;
constexpr int MAX_TOP_K = TG_MAX_TOP_K;

/* Rows that one block multiplies with one expert's weights: places `first .. first + rows` of the token sort. */
struct alignas(16) ExpertTile {
  uint32_t expert;
  uint32_t first;
  uint32_t rows;
};
static_assert(sizeof(ExpertTile) == TG_EXPERT_TILE_BYTES, "the launcher leaves room for them");

/* Whether no other tile of an expert's, which follow each other, reads the weights of that at `at`. */
__device__ inline bool is_only_tile(const ExpertTile *tiles, uint32_t count, uint32_t at, uint32_t expert) {
  return (at == 0 || tiles[at - 1].expert != expert) && (at + 1 >= count || tiles[at + 1].expert != expert);
}

/* Words behind the address of the tiles' count, which is the first. The others are what grouped/scheduler.cuh counts up. */
constexpr uint32_t EXPERT_COUNTS = TG_EXPERT_COUNTS;

/* All threads of a block. */
__device__ inline void clear_counts(uint32_t *tile_count) {
  for (uint32_t i = 1 + threadIdx.x; i < EXPERT_COUNTS; i += blockDim.x) tile_count[i] = 0;
}

/* How scores become weights. */
struct Weighing {
  uint32_t k;
  bool normalize;
  float scaling;
};

/* One warp chooses for one row: the K largest of score + bias, ties to the lower index, and calls take(index 0 .. K-1, expert, weight) for
 * each, experts ascending. scores[E] and bias[E] (or null) are anywhere. */
template <class Take>
__device__ inline void choose_experts(const float *scores, const float *bias, uint32_t expert_count, Weighing weighing, Take take) {
  constexpr int WORDS = MAX_EXPERTS / WARP;
  const uint32_t lane = threadIdx.x % WARP;
  float score[WORDS];
  uint32_t key[WORDS], chosen[WORDS];
  bool left[WORDS];
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const uint32_t e = lane + w * WARP;
    left[w] = e < expert_count;
    score[w] = left[w] ? scores[e] : 0.0f;
    key[w] = sortable(left[w] && bias ? score[w] + bias[e] : score[w]);
  }
  choose_by_keys(chosen, key, left, expert_count, weighing.k);
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WORDS; w++)
    for (uint32_t those = chosen[w]; those; those = without_lowest(those))  /* ascending, the same in every lane */
      sum += __shfl_sync(0xffffffffu, score[w], lowest(those));
  uint32_t before = 0;  /* chosen experts below 32 w */
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    if (has(chosen[w], lane)) {
      const float weight = (weighing.normalize ? score[w] / (sum + 1e-6f) : score[w]) * weighing.scaling;
      take(before + count_before(chosen[w], lane), lane + w * WARP, weight);
    }
    before += count(chosen[w]);
  }
}
