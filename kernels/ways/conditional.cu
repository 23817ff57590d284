// build: rdc
/* conditional.cu: the two kernels that a graph of conditional nodes adds to a step's own (step.cuh). The graph, launched once by the
 * host: WHILE around { tg_ways_turn; SWITCH with a bucket's kernels in each body; IF around tg_ways_idle }. A device can launch neither
 * such a graph nor one that conditional nodes stand in. Launch: grid = 1, block = 1. */
#include "ways/step.cuh"

#include <cuda_runtime.h>

/* Chooses the body of SWITCH, or, with nothing to do, none and that of IF. */
extern "C" __global__ void tg_ways_turn(const tg_ways *ways, uint64_t of_switch, uint64_t of_if) {
  const bool over = ways_over(ways);
  cudaGraphSetConditional((cudaGraphConditionalHandle)of_switch, over ? TG_WAYS_BUCKETS : ways->bucket);
  cudaGraphSetConditional((cudaGraphConditionalHandle)of_if, over);
}

/* Nothing is left to do: the loop ends. */
extern "C" __global__ void tg_ways_idle(tg_ways *ways, uint64_t of_while) {
  ways->idle_turns++;
  cudaGraphSetConditional((cudaGraphConditionalHandle)of_while, 0);
}
