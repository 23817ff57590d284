/* experts.cuh: what the router, the token sort and the grouped matrix products agree on. */
#pragma once

#include "common/args.h"
#include "common/base.cuh"

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

/* One warp chooses for one row: the K largest of score + bias, ties to the lower index, and calls
 * take(index 0 .. K-1, expert, weight) for each, experts ascending. scores[E] and bias[E] (or null) are anywhere;
 * keys[MAX_EXPERTS] is shared memory of this warp, on 16 bytes. A lane has experts lane + 32 i.
 * An expert is chosen if fewer than K come before it. The order is total, so K are chosen whatever the scores. */
template <class Take>
__device__ inline void choose_experts(const float *scores, const float *bias, uint32_t expert_count, Weighing weighing,
                                      uint32_t *keys, uint32_t lane, Take take) {
  constexpr int PER_LANE = MAX_EXPERTS / WARP;
  float score[PER_LANE];
  uint32_t key[PER_LANE], rank[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    uint32_t e = lane + i * WARP;
    bool exists = e < expert_count;
    score[i] = exists ? scores[e] : 0.0f;
    float by = exists && bias ? score[i] + bias[e] : score[i];
    key[i] = exists ? sortable(by) : 0;  /* experts that do not exist have the highest indices too: none comes after them */
    rank[i] = exists ? 0 : MAX_EXPERTS;
    keys[e] = key[i];
  }
  __syncwarp();
  for (uint32_t other = 0; other < expert_count; other += 4) {
    const uint4 four = *reinterpret_cast<const uint4 *>(keys + other);
    const uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      if (i * WARP >= expert_count) break;
#pragma unroll
      for (int o = 0; o < 4; o++)
        rank[i] += others[o] > key[i] || (others[o] == key[i] && other + o < lane + i * WARP);
    }
  }
  __syncwarp();  /* the keys may go */
  uint32_t chosen[PER_LANE];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    chosen[i] = __ballot_sync(0xffffffffu, rank[i] < weighing.k);
    for (uint32_t left = chosen[i]; left; left &= left - 1)  /* ascending, the same in every lane */
      sum += __shfl_sync(0xffffffffu, score[i], __ffs(left) - 1);
  }
  uint32_t before = 0;  /* chosen experts below 32 i */
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    if (chosen[i] >> lane & 1) {
      float weight = (weighing.normalize ? score[i] / (sum + 1e-6f) : score[i]) * weighing.scaling;
      take(before + __popc(chosen[i] & ((1u << lane) - 1)), lane + i * WARP, weight);
    }
    before += __popc(chosen[i]);
  }
}
