/* fragments.cuh: weights in 8 bits as the operand A of wgmma, in registers: a warp's 16 weight rows of a k-block lie in shared memory as two
 * packed blocks (common/e4m3.cuh), from which each lane makes its fragments in bf16.
 */
#pragma once

#include "common/e4m3.cuh"
#include "common/packed.cuh"
#include "common/wgmma.cuh"

constexpr uint32_t E4M3_BLOCK_BYTES = PACKED_BLOCK * sizeof(E4m3);  /* 8 rows of a k-block */

/* What a lane has of 16 rows of a k-block, of weight rows g and g + 8: word t is of instruction t. */
struct E4m3Words {
  uint4 low, high;

  /* From two blocks that follow each other: a warp reads 512 bytes at a time, without bank conflicts. */
  static __device__ inline E4m3Words load(const char *blocks) { return load_own(blocks + own_bytes()); }
  /* The same of blocks `own_bytes` before what is given. */
  static __device__ inline E4m3Words load_own(const char *own) {
    const uint4 *from = reinterpret_cast<const uint4 *>(own);
    return {from[0], from[E4M3_BLOCK_BYTES / sizeof(uint4)]};
  }
  /* Where a lane's first word lies in a block. */
  static __device__ inline uint32_t own_bytes() { return threadIdx.x % WARP * (uint32_t)sizeof(uint4); }

  /* The fragments of instruction T of the k-block's four; `sixteen` as small_bf16_of_e4m3() has it. */
  template <uint32_t T>
  __device__ inline void fragments(uint32_t (&a)[4], uint32_t sixteen = 16) const {
    const uint32_t g = T == 0 ? low.x : T == 1 ? low.y : T == 2 ? low.z : low.w;
    const uint32_t later = T == 0 ? high.x : T == 1 ? high.y : T == 2 ? high.z : high.w;
    a[0] = bf16_of_e4m3<0>(g, sixteen), a[1] = bf16_of_e4m3<0>(later, sixteen);
    a[2] = bf16_of_e4m3<2>(g, sixteen), a[3] = bf16_of_e4m3<2>(later, sixteen);
  }

  /* Those of all four. */
  __device__ inline void fragments(uint32_t (&a)[4][4], uint32_t sixteen = 16) const {
    fragments<0>(a[0], sixteen), fragments<1>(a[1], sixteen), fragments<2>(a[2], sixteen), fragments<3>(a[3], sixteen);
  }

  /* Those of instructions 2 HALF and 2 HALF + 1. They are made here, not before an earlier wait. */
  template <uint32_t HALF>
  __device__ inline void half(uint32_t (&a)[2][4]) {
    uint4 &g = low, &later = high;
    if constexpr (HALF == 0)
      asm volatile("" : "+r"(g.x), "+r"(g.y), "+r"(later.x), "+r"(later.y)::"memory");
    else
      asm volatile("" : "+r"(g.z), "+r"(g.w), "+r"(later.z), "+r"(later.w)::"memory");
    fragments<2 * HALF>(a[0]), fragments<2 * HALF + 1>(a[1]);
  }
};

/* The fragments of all four instructions of a k-block of 16 rows, two packed blocks that follow each other. */
__device__ inline void e4m3_fragments(uint32_t (&a)[4][4], const char *blocks) {
  E4m3Words::load(blocks).fragments(a);
}
