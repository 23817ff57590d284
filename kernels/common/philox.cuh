/* philox.cuh: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
#pragma once

#include <stdint.h>

__device__ inline uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    uint32_t hi0 = __umulhi(0xd2511f53u, counter.x), lo0 = 0xd2511f53u * counter.x;
    uint32_t hi1 = __umulhi(0xcd9e8d57u, counter.z), lo1 = 0xcd9e8d57u * counter.z;
    counter = make_uint4(hi1 ^ counter.y ^ key.x, lo1, hi0 ^ counter.w ^ key.y, lo0);
    key.x += 0x9e3779b9u;
    key.y += 0xbb67ae85u;
  }
  return counter;
}
