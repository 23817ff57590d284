/* pdl.cuh: programmatic dependent launch, the same code with and without it.
 *
 * Every kernel calls begin_kernel() before it reads or writes global memory. From sm_90 on it lets the next
 * kernel of the stream take its place on the SMs at once, then waits until all kernels before this one have
 * ended and their writes are visible. Launched without the attribute, or on older parts, it does nothing.
 */
#ifndef TAILGRAPH_PDL_CUH
#define TAILGRAPH_PDL_CUH

__device__ inline void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
