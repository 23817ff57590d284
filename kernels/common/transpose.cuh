/* transpose.cuh: a warp's matrix of 8 by 8 elements of 16 bits, turned around in registers. Any GPU.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_TRANSPOSE_CUH
#define TAILGRAPH_TRANSPOSE_CUH

#include <stdint.h>

/* All lanes together. Lane l has M[l / 4][l % 4 * 2], in the lower half, and the element behind it; it gets the same of M^T. */
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t of_columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(of_columns) : "r"(pair));
  return of_columns;
}

#endif
