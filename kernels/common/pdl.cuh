/* pdl.cuh: programmatic dependent launch, the same code with and without it.
 *
 * Every kernel calls begin_kernel() before it reads or writes global memory. From sm_90 on it lets the next kernel of the stream start once
 * a thread of each block of this one has called it, or the block has ended; then it waits until all kernels before this one have ended and
 * their writes are visible. Launched without the attribute, or on older parts, it does nothing.
 *
 * A kernel may call the two halves apart. Between them it may read (a) what no kernel writes, the weights; (b) what no earlier kernel of
 * this step writes, past the first-level cache: a conv layer's columns, the step's descriptor with its tables, and how slots sample.
 *
 * A kernel may also wait first and let the next one start afterwards, as tg_begin_step does. Then that one may read, before its own wait,
 * what the kernels before this one wrote, or words that are marked when they are there (skinny/choice.cuh); past the first-level cache.
 * Words that are marked with their step and layer may be read before the wait in either order (skinny/prediction.cuh), but no work is
 * shared out by them before that: not all blocks need have found the same.
 *
 * The wait is where a kernel of a step leaves its stamp, if it is to (common/stamps.cuh): the first thread of a grid must come by it,
 * and once; so must every thread that touches what earlier kernels write.
 */
#ifndef TAILGRAPH_PDL_CUH
#define TAILGRAPH_PDL_CUH

#include "common/stamps.cuh"
#include <stdint.h>

__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* The wait of a kernel that is not a step's: it leaves no stamp. */
__device__ inline void await_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void wait_for_earlier_kernels() {
  const Stamping stamp = stamp_wait();
  await_earlier_kernels();
  stamp_ready(stamp);
}

__device__ inline void begin_kernel() {
  let_next_kernel_start();
  wait_for_earlier_kernels();
}

/* The other order: before its wait the next kernel may read what the kernels before this one wrote. */
__device__ inline void wait_and_let_next_start() {
  wait_for_earlier_kernels();
  let_next_kernel_start();
}

/* Prefetches the cache line at `p` into L2. */
__device__ inline void prefetch_line(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* Prefetches `bytes` from `from` on into L2, both multiples of 16, by one instruction of the copy engine's. `policy` is a cache_policy(). */
__device__ inline void bulk_prefetch(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
__device__ inline void bulk_prefetch(const void *from, uint32_t bytes, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from), "r"(bytes), "l"(policy) : "memory");
#endif
}

constexpr uint32_t LINE_BYTES = 128;

/* prefetch_line for all of `bytes` bytes, the lines shared among `threads` threads of which this is `thread`. */
__device__ inline void prefetch(const void *p, uint32_t bytes, uint32_t thread, uint32_t threads) {
  for (uint32_t at = thread * LINE_BYTES; at < bytes; at += threads * LINE_BYTES)
    prefetch_line(static_cast<const char *>(p) + at);
}

#endif
