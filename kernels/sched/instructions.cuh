/* instructions.cuh: what dispatchers do by single instructions that CUDA C++ has no names for. Where tests run them on the host,
 * tests/dispatchers/gpu.h stands for this file. */
#ifndef TAILGRAPH_SCHED_INSTRUCTIONS_CUH
#define TAILGRAPH_SCHED_INSTRUCTIONS_CUH

#include <stdint.h>

/* Barrier ID of the block, which THREADS threads, whole warps, come to: this one waits there for the others, */
template <int ID, uint32_t THREADS>
__device__ inline void wait_at_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

/* or goes on at once: what it did before is done for those that wait. */
template <int ID, uint32_t THREADS>
__device__ inline void arrive_at_barrier() {
  asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

__device__ inline uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ inline uint64_t load_acquire(const uint64_t *from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline void store_release(uint64_t *to, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

#endif
