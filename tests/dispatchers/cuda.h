/* cuda.h: as much of CUDA C++ as the kernels of kernels/sched take. A C++ compiler reads it before them; gpu.cpp runs them. */
#ifndef TEST_CUDA_H
#define TEST_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define __CUDACC__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local /* gpu.cpp keeps what is thread_local apart for each block */

/* Sites of TG_MUT are bugs while this is their number. */
extern uint32_t gpu_mutation;
#define TG_MUTATION gpu_mutation
/* Accesses to words that other processors see are calls. */
#define TG_EXPLORE

struct Extent {
  uint32_t x, y, z;
};
extern Extent threadIdx, blockIdx, gridDim;
struct uint4 {
  uint32_t x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};

void gpu_meet(uint32_t barrier, uint32_t threads, bool waits); /* 0 threads: all of the block */
bool gpu_fold(bool holds, bool all);                           /* over the block, at barrier 0: do all hold, or does any? */
uint64_t gpu_from_lane(uint64_t value, uint32_t lane);         /* lane's value; all 32 of the warp ask */
uint64_t gpu_lanes_that(bool holds);
void gpu_access(); /* others may go first */
void gpu_sleep(uint64_t ns);
[[noreturn]] void gpu_trap();

inline void __syncthreads() { gpu_meet(0, 0, true); }
inline int __syncthreads_and(int holds) { return gpu_fold(holds != 0, true); }
inline int __syncthreads_or(int holds) { return gpu_fold(holds != 0, false); }
template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
  return (T)gpu_from_lane((uint64_t)value, (uint32_t)lane);
}
inline int __any_sync(uint32_t, int holds) { return gpu_lanes_that(holds != 0) != 0; }
inline void __nanosleep(uint32_t ns) { gpu_sleep(ns); }
inline void __trap() { gpu_trap(); }
inline int __ffs(int word) { return __builtin_ffs(word); }
/* Accesses are seen in their order. */
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
template <class T>
T __ldcg(const T *from) { return *from; }
uint32_t atomicOr(uint32_t *word, uint32_t bits);
uint32_t atomicAdd(uint32_t *word, uint32_t more);
template <class A, class B>
auto min(A a, B b) { using C = decltype(a + b); return (C)a < (C)b ? (C)a : (C)b; }
template <class A, class B>
auto max(A a, B b) { using C = decltype(a + b); return (C)a > (C)b ? (C)a : (C)b; }

typedef uint64_t cudaStream_t;
typedef void *cudaGraphExec_t;
constexpr cudaStream_t cudaStreamGraphFireAndForget = 1, cudaStreamGraphTailLaunch = 2, cudaStreamGraphFireAndForgetAsSibling = 3;
constexpr int cudaSuccess = 0;
int cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);

#define TAILGRAPH_PDL_CUH
void let_next_kernel_start();
void await_earlier_kernels();
inline void wait_for_earlier_kernels() { await_earlier_kernels(); }
inline void prefetch_line(const void *) {}

#define TAILGRAPH_SCHED_INSTRUCTIONS_CUH
template <int ID, uint32_t THREADS>
void wait_at_barrier() { gpu_meet(ID, THREADS, true); }
template <int ID, uint32_t THREADS>
void arrive_at_barrier() { gpu_meet(ID, THREADS, false); }
uint64_t now_ns();
uint64_t load_acquire(const uint64_t *from);
void store_release(uint64_t *to, uint64_t value);

#endif
