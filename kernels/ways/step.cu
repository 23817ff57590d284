/* step.cu: a step's kernels (step.cuh). Not launched with programmatic dependent launch: not every way has it, and all are to run the same.
 * Launch: block = TG_WAYS_THREADS. */
#include "common/launch.cuh"
#include "ways/step.cuh"

/* For the host, which has the struct of its own. */
LAUNCH_CONSTANTS(tg_ways_layout_tile, 4, sizeof(tg_ways), offsetof(tg_ways, failure), offsetof(tg_ways, graphs),
                 offsetof(tg_ways, told))

/* to[n] from from[n]. Grid: the bucket's blocks. */
extern "C" __global__ void tg_ways_layer(uint32_t *to, const uint32_t *from, const tg_ways *ways, uint32_t layer) {
  ways_layer(to, from, ways->seed, layer, gridDim.x);
}

/* Grid: 1. */
extern "C" __global__ void tg_ways_decide(tg_ways *ways) { ways_decide(ways); }
