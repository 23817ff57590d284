/* bulk.cuh: bytes that the copy engine brings from shared to global memory, or adds up there, from sm_90 on.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_BULK_CUH
#define TAILGRAPH_BULK_CUH

#include "common/mma.cuh"
#include "common/operands.cuh"

/* From shared to global memory, both on 16 bytes and a multiple of them; what threads stored before operands_written() is there.
 * Bulk copies of this thread that still read shared memory are waited for by bulk_read(), all that they write by bulk_done(). */
__device__ inline void bulk_store(void *to, const void *from, uint32_t bytes) {
  GMMA_BODY(asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                         : "memory");)
}
__device__ inline void bulk_add(float *to, const void *from, uint32_t bytes) {
  GMMA_BODY(asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                         "r"(shared_address(from)), "r"(bytes)
                         : "memory");)
}
__device__ inline void bulk_commit() { GMMA_BODY(asm volatile("cp.async.bulk.commit_group;" ::: "memory");) }
__device__ inline void bulk_read() { GMMA_BODY(asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");) }
__device__ inline void bulk_done() { GMMA_BODY(asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");) }

#endif
