/* chunks.cuh: how attention/decode.cu cuts rows' keys into chunks, and which of them a block takes. */
#pragma once

#include "abi.h"
#include "common/base.cuh"

constexpr uint32_t CHUNK_ALIGN = 32;

/* A row's keys but its own, in chunks of about the same size: a step waits for the longest. */
struct Chunks {
  uint32_t keys;   /* in all: as many as the row's position */
  uint32_t size;   /* of each but the last */
  uint32_t count;  /* at least 1 */

  __device__ static inline Chunks of(uint32_t position, uint32_t chunk_keys, uint32_t splits) {
    if (position <= chunk_keys) return {position, chunk_keys, 1};
    const uint32_t most = min((position + chunk_keys - 1) / chunk_keys, splits);
    const uint32_t size = ((position + most - 1) / most + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
    return {position, size, (position + size - 1) / size};
  }

  __device__ inline uint32_t end(uint32_t chunk) const { return min((chunk + 1) * size, keys); }
};

/* A chunk of a row, for the heads of a group. */
struct Piece {
  uint32_t row, group, chunk;
  uint32_t slot;  /* of the row */
  Chunks chunks;  /* of the row */
  uint32_t partner_slot, partner_position;  /* of its partner, the row with which it may share keys: 0 where there is none */
};

/* Rows 2i and 2i + 1 are partners. */
__device__ inline uint32_t partner_of(uint32_t row) { return row ^ 1; }

/* The `index`-th piece that is no row's first chunk, in the order of rows, chunks and groups, if there are so many. Every
 * warp searches for itself. Slots are loaded with the rows' positions: each load that waits for another counts, where the kernel before
 * takes a few microseconds. */
__device__ inline bool find_piece(Piece &piece, uint32_t index, const tg_row *rows, uint32_t count, uint32_t groups,
                                  uint32_t chunk_keys, uint32_t splits) {
  const uint32_t lane = threadIdx.x % WARP;
  uint32_t left = index / groups;
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += WARP) {
    const uint32_t r = base + lane;
    const uint32_t slot = r < count ? __ldcg(&rows[r].slot) : 0, position = r < count ? __ldcg(&rows[r].position) : 0;
    const Chunks chunks = Chunks::of(position, chunk_keys, splits);
    const uint32_t more = chunks.count - 1;
    const uint32_t until = sum_up_to_lane(more);
    const uint32_t here = __ballot_sync(0xffffffffu, until > left);
    if (here) {
      const int from = __ffs(here) - 1;
      piece.row = base + from;
      piece.chunk = 1 + left - __shfl_sync(0xffffffffu, until - more, from);
      piece.group = index % groups;
      piece.slot = __shfl_sync(0xffffffffu, slot, from);
      piece.chunks = {__shfl_sync(0xffffffffu, chunks.keys, from), __shfl_sync(0xffffffffu, chunks.size, from),
                      __shfl_sync(0xffffffffu, chunks.count, from)};
      piece.partner_slot = __shfl_sync(0xffffffffu, slot, partner_of(from));
      piece.partner_position = __shfl_sync(0xffffffffu, position, partner_of(from));
      return true;
    }
    left -= __shfl_sync(0xffffffffu, until, WARP - 1);
  }
  return false;
}

constexpr uint32_t ROWS_AT_ONCE = 8;  /* whose positions a lane loads before it looks at one */

/* Whether any row has more than its first chunk. Every warp searches for itself. */
__device__ inline bool any_further(const tg_row *rows, uint32_t count, uint32_t chunk_keys) {
  bool longer = false;
#pragma unroll 1
  for (uint32_t r = threadIdx.x % WARP; r < count; r += ROWS_AT_ONCE * WARP) {
    uint32_t positions[ROWS_AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) positions[i] = r + i * WARP < count ? __ldcg(&rows[r + i * WARP].position) : 0;
#pragma unroll
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) longer |= positions[i] > chunk_keys;
  }
  return __any_sync(0xffffffffu, longer);
}

constexpr uint32_t UNCOUNTED = 0xffffffffu;

/* How many pieces find_piece() finds, so that a block which has had its last one need not search for another. With more rows than WARP it
 * is UNCOUNTED, since counting would take too long. Every warp counts for itself. */
__device__ inline uint32_t pieces_to_find(const tg_row *rows, uint32_t count, uint32_t groups, uint32_t chunk_keys, uint32_t splits) {
  if (count > WARP) return UNCOUNTED;
  const uint32_t lane = threadIdx.x % WARP;
  const uint32_t position = lane < count ? __ldcg(&rows[lane].position) : 0;
  return __reduce_add_sync(0xffffffffu, Chunks::of(position, chunk_keys, splits).count - 1) * groups;
}
