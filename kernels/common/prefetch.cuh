/* prefetch.cuh: weights of a layer's experts, prefetched into L2 while a dense product of the layer multiplies.
 *
 * A conv layer's in-projection of 256 rows takes twice as long as its weights do, an out-projection of 512 longer still: the memory has
 * time. What comes is the beginning of each expert's gate and of its up, in pieces that lie side by side (profiles/log/experts-weights.md).
 */
#pragma once

#include "common/pdl.cuh"
#include "common/args.h"

constexpr uint32_t PREFETCH_BYTES = TG_PREFETCH_BYTES;

/* One lane: a block's share of the pieces, one every so many blocks. It is made before anything is urgent, as it divides. */
struct Prefetcher {
  const tg_prefetch_args &from;
  uint32_t idle, turns;  /* turns without and with pieces */
  uint32_t own, owed = 0;
  uint32_t blocks, matrix = 0, piece;

  /* For `steps` turns, of which the first fill a pipeline of so many stages: that must not wait for this. */
  __device__ inline Prefetcher(const tg_prefetch_args &from_, uint32_t steps, uint32_t stages)
      : from(from_), idle(steps > stages ? stages : 0), turns(steps - idle) {
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, all = 2 * from.experts * from.pieces;
    blocks = gridDim.x * gridDim.y;
    own = block < all ? (all - 1 - block) / blocks + 1 : 0;
    piece = block;
  }

  /* A turn. */
  __device__ inline void issue() {
#pragma unroll 1
    for (owed += idle > 0 ? 0 : own; owed >= turns; owed -= turns) {
#pragma unroll 1
      for (; piece >= from.pieces; piece -= from.pieces) matrix++;
      const char *expert = (matrix % 2 ? from.up : from.gate) + matrix / 2 * from.expert_bytes;
      bulk_prefetch(expert + (size_t)piece * PREFETCH_BYTES, PREFETCH_BYTES);
      piece += blocks;
    }
    if (idle > 0) idle--;
  }
};
