/* launch.cuh: what a kernel tells its launcher. */
#ifndef TAILGRAPH_LAUNCH_CUH
#define TAILGRAPH_LAUNCH_CUH

#include <stdint.h>

/* COUNT numbers under a name, for the host alone: the build reads them from the cubin (kernels/build/cubin.rs), so a
 * launch can be sized without a GPU, and no number stands in two places. */
#define LAUNCH_CONSTANTS(NAME, COUNT, ...) extern "C" __device__ const uint32_t NAME[COUNT] = {__VA_ARGS__};

#endif
