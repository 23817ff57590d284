/* barrier.cuh: barriers in shared memory that count arrivals and bytes, from sm_90 on.
 *
 * A barrier's phases have parity 0, 1, 0 ...; waiting for parity 1 of one that was never used returns at once. Who waits for a phase
 * must come before the one after it ends: from then on that wait is one for a later phase of the same parity.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_BARRIER_CUH
#define TAILGRAPH_BARRIER_CUH

#include "common/mma.cuh"
#include <stdint.h>

/* One thread sets a barrier up and calls barriers_ready; then __syncthreads(), and all may use it. */
__device__ inline void barrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ inline void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* At the barrier at a shared_address(). */
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void barrier_arrive(uint64_t *barrier) { barrier_arrive(shared_address(barrier)); }

/* An arrival at a barrier whose phase also waits for `bytes` bytes of asynchronous copies (expect_tx). */
__device__ inline void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/* Where what is at `shared`, a shared_address(), of this block is in block `rank` of the cluster. */
__device__ inline uint32_t address_at_block(uint32_t shared, uint32_t rank) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
  return at;
}

/* An arrival at the barrier of block `rank` of the cluster that lies there where `barrier` lies here. It signals no more than that what was
 * read may be written over: at the scope of the cluster it would be a fence, which waits for the copies in flight. */
__device__ inline void barrier_arrive_at_block(uint64_t *barrier, uint32_t rank) {
  const uint32_t at = address_at_block(shared_address(barrier), rank);
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

#define BARRIER_WAIT(SCOPE, BARRIER, PARITY)                                                                      \
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity" SCOPE ".shared::cta.b64 done, [%0], %1;\n" \
               "@!done bra again;\n}\n" ::"r"(BARRIER), "r"(PARITY) : "memory")

/* Waits for a phase of the barrier at a shared_address(). */
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) { BARRIER_WAIT("", barrier, parity); }
__device__ inline void barrier_wait(uint64_t *barrier, uint32_t parity) { barrier_wait(shared_address(barrier), parity); }

/* Whether the phase has ended that barrier_wait() would wait for; never waits. It is asked some time before that matters, since an answer takes
 * as long as a load. */
__device__ inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}\n"
               : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  return passed;
}
/* Waits for a phase, unless it has `passed`. */
__device__ inline void barrier_wait_unless(bool passed, uint32_t barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\nsetp.ne.u32 done, %2, 0;\n@done bra over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\nover:\n}\n" ::"r"(barrier), "r"(parity), "r"((uint32_t)passed) : "memory");
}

/* barrier_wait, for what other blocks of the cluster have stored. */
__device__ inline void barrier_wait_cluster(uint64_t *barrier, uint32_t parity) {
  BARRIER_WAIT(".acquire.cluster", shared_address(barrier), parity);
}

/* threads_meet() waits for THREADS threads of the block, whole warps, at its barrier `id`: 1 to 15, of which each is for these threads alone.
 * (0 is __syncthreads().) threads_arrive() is among them, and does not wait. Any GPU. Where the code names the barrier it is no register's
 * value: as such, even a constant makes ptxas order some kernels' instructions otherwise. */
#define NAMED_BARRIER(NAME, INSTRUCTION)                                                     \
  template <uint32_t THREADS>                                                                \
  __device__ inline void NAME(uint32_t id) {                                                 \
    asm volatile(INSTRUCTION " %0, %1;" ::"r"(id), "n"(THREADS) : "memory");                 \
  }                                                                                          \
  template <uint32_t THREADS, uint32_t ID>                                                   \
  __device__ inline void NAME() {                                                            \
    asm volatile(INSTRUCTION " %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");                 \
  }
NAMED_BARRIER(threads_meet, "bar.sync")
NAMED_BARRIER(threads_arrive, "bar.arrive")

#endif
