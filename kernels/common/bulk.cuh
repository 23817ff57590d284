/* bulk.cuh: bytes that the copy engine copies to shared memory, or from there to global memory, and an addition to global memory by threads; from
 * sm_90 on.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_BULK_CUH
#define TAILGRAPH_BULK_CUH

#include "common/mma.cuh"
#include "common/operands.cuh"

/* Copies `bytes` (a multiple of 16) from global to shared memory, and does not wait. `barrier` counts the bytes as they arrive. */
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

/* From shared to global memory, both on 16 bytes and a multiple of them; what threads stored before operands_written() is there.
 * Bulk copies of this thread that still read shared memory are waited for by bulk_read(), all that they write by bulk_done(). */
__device__ inline void bulk_store(void *to, const void *from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
/* Adds four f32 to those at `to`, on 16 bytes in global memory: one instruction of this thread's, whose result it does not wait for. */
__device__ inline void add4(void *to, uint4 v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(__uint_as_float(v.x)), "f"(__uint_as_float(v.y)),
               "f"(__uint_as_float(v.z)), "f"(__uint_as_float(v.w)) : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif
