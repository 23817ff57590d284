/* global.cuh: loads and stores of global memory of a kind that C++ has not. Relaxed, acquire and release accesses are of words by which
 * blocks that run at the same time signal each other. All are sm_80's.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_GLOBAL_CUH
#define TAILGRAPH_GLOBAL_CUH

#include <stdint.h>

/* A load that the compiler does not move, past L1. It does not wait: the value's first use does. */
template <typename T>
__device__ inline T load_now(const T *at) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "as values have");
  T v;
  if constexpr (sizeof(T) == 2)
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(*reinterpret_cast<uint16_t *>(&v)) : "l"(at) : "memory");
  else
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(*reinterpret_cast<uint32_t *>(&v)) : "l"(at) : "memory");
  return v;
}

/* 16 bytes, past L1. */
__device__ inline uint4 load16(const void *p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

/* cache_policy(true) of common/mma.cuh, made where it stands in the code. */
__device__ inline uint64_t read_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/* 16 bytes of weights, which no kernel writes. */
__device__ inline uint4 read_weights(const void *from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
  return v;
}

/* gridDim.x, which takes no register until it is used. */
__device__ inline uint32_t blocks_now() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
  return blocks;
}

/* ---- words by which blocks signal each other ---------------------------------------------------- */

#define RELAXED_WORDS(T, BITS, REGISTER)                                                                \
  __device__ inline T load_relaxed(const T *at) {                                                       \
    T word;                                                                                             \
    asm volatile("ld.relaxed.gpu.global." BITS " %0, [%1];" : "=" REGISTER(word) : "l"(at) : "memory"); \
    return word;                                                                                        \
  }                                                                                                     \
  __device__ inline void store_relaxed(T *at, T word) {                                                 \
    asm volatile("st.relaxed.gpu.global." BITS " [%0], %1;" ::"l"(at), REGISTER(word) : "memory");      \
  }
RELAXED_WORDS(uint32_t, "u32", "r")
RELAXED_WORDS(uint64_t, "u64", "l")
__device__ inline uint4 load_relaxed(const uint4 *at) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(at)
               : "memory");
  return words;
}

/* Waits until `count` threads have counted themselves. */
__device__ inline void await_count(const uint32_t *at, uint32_t count) {
  uint32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now < count);
}

/* Counts one more, with all that this thread knows to be stored. */
__device__ inline void count_release(uint32_t *at) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory"); }

/* The same, and acquires what those before have stored; returns how many they are. */
__device__ inline uint32_t count_and_know(uint32_t *at) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
  return before;
}

#endif
