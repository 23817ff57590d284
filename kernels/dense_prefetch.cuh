/* dense_prefetch.cuh: weights of a conv layer's experts, to the second-level cache, while its in-projection multiplies.
 *
 * At 256 rows that takes twice as long as its weights do, and the memory has time. What comes is the beginning of each expert's gate
 * and of its up, in pieces that lie side by side: asked for as wide.cuh's boxes, 128 bytes of many rows, as many bytes gained
 * nothing (profiles/README.md, "Experts' weights while the in-projection multiplies").
 */
#ifndef TAILGRAPH_DENSE_PREFETCH_CUH
#define TAILGRAPH_DENSE_PREFETCH_CUH

#include "common.cuh"

constexpr uint32_t PREFETCH_BYTES = 4096;  /* a piece */

struct DensePrefetch {
  const char *gate, *up;  /* of the first expert; on 16 bytes */
  uint64_t expert_bytes;  /* from one expert's to the next one's, likewise */
  uint32_t experts, pieces;  /* of each gate, and of each up; 0 where nothing is asked for */

  /* One lane of each block of the grid, in each of its `turns` turns: its share of the pieces, by and by. */
  __device__ inline void ask(uint32_t turn, uint32_t turns) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const uint32_t all = 2 * experts * pieces, own = (all + blocks - 1 - block) / blocks;
#pragma unroll 1
    for (uint32_t n = own * turn / turns; n < own * (turn + 1) / turns; n++) {
      const uint32_t i = block + n * blocks, matrix = i / pieces;
      const char *from = (matrix % 2 ? up : gate) + matrix / 2 * expert_bytes + (size_t)(i % pieces) * PREFETCH_BYTES;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "n"(PREFETCH_BYTES) : "memory");
    }
#endif
  }
};

/* A kernel's parameters, and what they are. */
#define DENSE_PREFETCH_PARAMETERS const char *gate, const char *up, uint64_t expert_bytes, uint32_t experts, uint32_t pieces
#define DENSE_PREFETCH (DensePrefetch{gate, up, expert_bytes, experts, pieces})

#endif
