/* experts.cuh: what the router, the token sort and the grouped matrix products agree on. */
#pragma once

#include "common/bits.cuh"

constexpr int MAX_EXPERTS = TG_MAX_EXPERTS;
constexpr int MAX_TOP_K = TG_MAX_TOP_K;

/* Consecutive places of the token sort, `first .. first + rows`, of one expert: at most as many as a tile has rows. */
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

/* Words of GroupedCounts (grouped/scheduler.cuh), of which the first is the token sort's tile count: 4 + 12 + 256. */
constexpr uint32_t EXPERT_COUNTS = TG_EXPERT_COUNTS;

/* All threads of one block, of tg_route_*, tg_router_* or tg_sort_tokens* (router/). */
__device__ inline void clear_counts(uint32_t *tile_count) {
  for (uint32_t i = 1 + threadIdx.x; i < EXPERT_COUNTS; i += blockDim.x) tile_count[i] = 0;
}

/* How scores become weights. */
struct Weighing {
  uint32_t k;
  bool normalize;
  float scaling;
};
