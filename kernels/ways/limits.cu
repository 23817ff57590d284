// build: rdc
/* limits.cu: launches up to a limit of the device's, and one beyond: what the GPU answers there (profiles/lab/limits.rs).
 * Launch: grid = 1, block = 1. */
#include "ways/step.cuh"

#include <cuda_runtime.h>

/* Where such a launch goes. */
enum { TO_FORGET = 0, TO_TAIL = 1 };

/* answers[count]: cudaError_t of a launch of each of graphs[count], of which 0 is the graph that runs. `began`: a run that this
 * one has launched does nothing. */
extern "C" __global__ void tg_limits_launch(const uint64_t *graphs, uint32_t count, uint32_t where, uint32_t *answers,
                                            uint32_t *began) {
  if (atomicAdd(began, 1u) != 0) return;
  const cudaStream_t stream = where == TO_TAIL ? cudaStreamGraphTailLaunch : cudaStreamGraphFireAndForget;
  for (uint32_t i = 0; i < count; i++) {
    const cudaGraphExec_t graph = graphs[i] == 0 ? cudaGetCurrentGraphExec() : (cudaGraphExec_t)graphs[i];
    answers[i] = cudaGraphLaunch(graph, stream);
  }
}

/* What is launched: counts its runs, each of which takes `stay_ns`. */
extern "C" __global__ void tg_limits_ran(uint32_t *ran, uint64_t stay_ns) {
  const uint64_t start = ways_now_ns();
  while (ways_now_ns() - start < stay_ns) {
  }
  atomicAdd(ran, 1u);
}
