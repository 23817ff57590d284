/* persistent.cu: all steps in one kernel that stays: what are kernels elsewhere are phases here, with a barrier of the whole grid
 * between them (step.cuh). Launch: cooperative, so that all blocks are on the GPU at once; grid = TG_WAYS_WIDEST, block =
 * TG_WAYS_THREADS. Blocks beyond the bucket's only come to the barriers. */
#include "sched/instructions.cuh"
#include "ways/step.cuh"

/* The clock goes on while another process has the GPU: far more than its time slices. */
constexpr uint64_t BARRIER_NS = 5000000000;

/* Waits for all blocks of the grid. `goal`: arrivals by the last barrier; moves on. False where something went wrong: all leave. */
__device__ inline bool grid_barrier(tg_ways *ways, uint64_t &goal) {
  goal += gridDim.x;
  __syncthreads();
  bool fine = true;
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd((unsigned long long *)&ways->arrived, 1ull);
    const uint64_t start = ways_now_ns();
    for (;;) {
      const uint64_t arrived = load_acquire(&ways->arrived);
      if (arrived >= goal) break;
      if (ways_now_ns() - start > BARRIER_NS) ways_fail(ways, TG_WAYS_BARRIER, 0, (uint32_t)(goal - arrived));
      if (*(volatile uint32_t *)&ways->failure.what != TG_WAYS_FINE) {
        fine = false;
        break;
      }
    }
    __threadfence();
  }
  return __syncthreads_and(fine);
}

extern "C" __global__ void __launch_bounds__(TG_WAYS_THREADS) tg_ways_persistent(tg_ways *ways) {
  const uint32_t layers = ways->layers;
  uint64_t goal = 0;
  while (!ways_over(ways)) {
    const uint32_t blocks = ways_blocks(__ldcg(&ways->bucket)), seed = __ldcg(&ways->seed);
    for (uint32_t layer = 0; layer < layers; layer++) {
      if (blockIdx.x < blocks) ways_layer(ways_values(ways, layer + 1), ways_values(ways, layer), seed, layer, blocks);
      if (!grid_barrier(ways, goal)) return;
    }
    if (blockIdx.x == 0) ways_decide(ways);
    if (!grid_barrier(ways, goal)) return;
  }
}
