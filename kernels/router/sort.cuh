/* sort.cuh: the token sort of router/sort_combine.cu, by one block, and of router/sort_many.cu, by the blocks of a cluster.
 *
 * The pairs (row, one of its experts) in order of expert, rows ascending within one. A pair's number is row k + index; its rank in
 * that order is its place.
 *
 *   rows[place] = row          place[pair] = place
 *   tiles[...]                 each expert's places in runs of at most tile_rows, experts ascending
 *   tile_count                 how many; behind it zeros (clear_counts)
 */
#pragma once

#include "common/base.cuh"
#include "common/experts.cuh"
#include "router/args.h"

constexpr int SORT_THREADS = TG_SORT_THREADS;
constexpr int SORT_WARPS = SORT_THREADS / WARP;
constexpr int SORT_AT_ONCE = 8;  /* pairs of a lane whose experts are loaded together */

struct SortScratch {
  uint32_t next[SORT_WARPS][MAX_EXPERTS];  /* counts, then the next place of this warp and expert */
  uint32_t first[MAX_EXPERTS], first_tile[MAX_EXPERTS];
};

/* The blocks that sort: here one, which has all pairs. */
struct SortAlone {
  static __device__ inline uint32_t rank() { return 0; }
  static __device__ inline uint32_t blocks() { return 1; }
  /* Pairs of an expert in all blocks, with `own` in this one. Each of the first MAX_EXPERTS threads has one expert. */
  __device__ inline uint32_t sum(uint32_t, uint32_t own) const { return own; }
  /* Its pairs in the blocks before this one. Called behind sum() and __syncthreads(). */
  __device__ inline uint32_t before(uint32_t) const { return 0; }
};

/* A thread has an expert: its total in this block, and each warp's offset within it; counts of several warps are read together. */
__device__ inline uint32_t offsets_of_warps(SortScratch &scratch, uint32_t busy) {
  constexpr uint32_t TOGETHER = 8;
  auto &next = scratch.next;
  uint32_t total = 0;
  for (uint32_t w = 0; w < busy; w += TOGETHER) {
    uint32_t counts[TOGETHER];
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) counts[i] = w + i < busy ? next[w + i][threadIdx.x] : 0;
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      if (w + i < busy) next[w + i][threadIdx.x] = total;
      total += counts[i];
    }
  }
  return total;
}

/* Each warp counts, then places, a range of pairs of its own; a warp's places of an expert come after those of the warps before it, in
 * this block and in those before. The first block writes the tiles. */
template <class Blocks>
__device__ inline void sort_pairs(SortScratch &scratch, const tg_sort_tokens_args &a, uint32_t row_count, const Blocks &blocks) {
  const uint32_t k = a.k, tile_rows = a.tile_rows, pairs = row_count * k;
  const uint32_t *expert_of = a.experts;
  ExpertTile *tiles = a.tiles;
  uint32_t *tile_count = a.tile_count, *rows = a.rows, *place = a.place;
  auto &next = scratch.next;
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rank = Blocks::rank();
  const uint32_t threads = blockDim.x * Blocks::blocks(), warps = blockDim.x / WARP;
  const uint32_t share = (pairs + threads - 1) / threads * WARP;                        /* of a warp */
  const uint32_t own = rows_from(rank * warps * share, pairs, warps * share);           /* of this block */
  const uint32_t busy = own > 0 ? (own + share - 1) / share : 0;                        /* warps that have any */
  const uint32_t from = min((rank * warps + warp) * share, pairs), to = min(from + share, pairs);

  if (rank == 0) clear_counts(tile_count);
  for (uint32_t e = lane; e < MAX_EXPERTS; e += WARP) next[warp][e] = 0;
  __syncwarp();
  uint32_t experts[SORT_AT_ONCE];  /* of pairs WARP apart; MAX_EXPERTS past the last */
  auto load = [&](uint32_t base) {
#pragma unroll
    for (int i = 0; i < SORT_AT_ONCE; i++) {
      const uint32_t pair = base + i * WARP + lane;
      experts[i] = pair < to ? expert_of[pair] : MAX_EXPERTS;
    }
  };
  for (uint32_t base = from; base < to; base += SORT_AT_ONCE * WARP) {
    load(base);
#pragma unroll
    for (int i = 0; i < SORT_AT_ONCE; i++)
      if (experts[i] < MAX_EXPERTS) atomicAdd(&next[warp][experts[i]], 1u);
  }
  __syncthreads();

  if (threadIdx.x < MAX_EXPERTS) scratch.first[threadIdx.x] = blocks.sum(threadIdx.x, offsets_of_warps(scratch, busy));
  __syncthreads();
  /* a warp, four consecutive experts a lane: where each one's places in this block and its tiles begin */
  if (warp == 0) {
    constexpr int PER_LANE = MAX_EXPERTS / WARP;
    uint32_t count[PER_LANE], places = 0, tile = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      count[i] = scratch.first[lane * PER_LANE + i];
      places += count[i];
      tile += (count[i] + tile_rows - 1) / tile_rows;
    }
    const uint32_t own_places = places, own_tiles = tile;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
      uint32_t places_below = __shfl_up_sync(0xffffffffu, places, offset);
      uint32_t tiles_below = __shfl_up_sync(0xffffffffu, tile, offset);
      if (lane >= offset) places += places_below, tile += tiles_below;
    }
    if (rank == 0 && lane == WARP - 1) *tile_count = tile;
    places -= own_places, tile -= own_tiles;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      scratch.first[lane * PER_LANE + i] = places + blocks.before(lane * PER_LANE + i);
      scratch.first_tile[lane * PER_LANE + i] = tile;
      places += count[i];
      tile += (count[i] + tile_rows - 1) / tile_rows;
    }
  }
  __syncthreads();
  if (rank == 0 && threadIdx.x < MAX_EXPERTS) {
    const uint32_t e = threadIdx.x, end = e + 1 < MAX_EXPERTS ? scratch.first[e + 1] : pairs;
    uint32_t tile = scratch.first_tile[e];
    for (uint32_t at = scratch.first[e]; at < end; at += tile_rows)
      tiles[tile++] = ExpertTile{e, at, min(tile_rows, end - at)};
  }

  for (uint32_t base = from; base < to; base += SORT_AT_ONCE * WARP) {
    if (share > SORT_AT_ONCE * WARP) load(base);  /* a smaller share is there still */
#pragma unroll
    for (int i = 0; i < SORT_AT_ONCE; i++) {
      if (base + i * WARP >= to) break;
      const uint32_t pair = base + i * WARP + lane, expert = experts[i];
      const bool mine = pair < to;
      const uint32_t same = __match_any_sync(0xffffffffu, expert);
      if (mine) {
        const uint32_t at = scratch.first[expert] + next[warp][expert] + __popc(same & ((1u << lane) - 1));
        rows[at] = pair / k;
        place[pair] = at;
      }
      __syncwarp();
      if (mine && lane == __ffs(same) - 1) next[warp][expert] += __popc(same);
      __syncwarp();
    }
  }
}
