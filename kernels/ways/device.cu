// build: rdc
/* device.cu: steps that the GPU launches as graphs (step.cuh): by the last node of the step before, or by a graph that only schedules.
 *
 * tail       the last node launches the next step's graph, which begins when its own has ended
 * sibling    the last node launches the next step's graph beside its own; the head, which started the chain, runs again
 *            behind all of that (a tail launch of itself) and renews it, since a graph may launch only so many
 * scheduler  the head launches the step's graph and itself, both by tail launches, which run in their order
 * forget     the head launches the step's graph inside its own run, and itself behind
 *
 * Launch: the head's grid = 1 and block = 1; else as step.cu.
 */
#include "ways/step.cuh"

#include <cuda_runtime.h>

/* How long a graph takes to leave the GPU once its last kernel is through, by the dispatcher's measure (sched/device.cuh). */
constexpr uint64_t LEAVING_NS = 100000;

__device__ inline cudaGraphExec_t step_graph(const tg_ways *ways, uint32_t copy) {
  return (cudaGraphExec_t)ways->graphs[copy % TG_WAYS_COPIES][ways->bucket];
}

/* One thread: a launch that nothing else would make. */
__device__ inline bool must_launch(tg_ways *ways, cudaGraphExec_t graph, cudaStream_t stream, uint32_t what, uint32_t count) {
  const cudaError_t error = cudaGraphLaunch(graph, stream);
  if (error != cudaSuccess) ways_fail(ways, what, error, count);
  return error == cudaSuccess;
}

extern "C" __global__ void tg_ways_decide_tail(tg_ways *ways) {
  ways_decide(ways);
  if (threadIdx.x != 0 || ways_over(ways)) return;
  must_launch(ways, step_graph(ways, 0), cudaStreamGraphTailLaunch, TG_WAYS_TAIL, 0);
}

extern "C" __global__ void tg_ways_decide_sibling(tg_ways *ways) {
  ways_decide(ways);
  if (threadIdx.x != 0 || ways_over(ways)) return;
  if (ways->launched >= ways->renew) return; /* the head goes on */
  ways->launched++;
  __threadfence();
  const cudaGraphExec_t graph = step_graph(ways, (uint32_t)ways->step);
  const uint64_t start = ways_now_ns();
  do {
    if (cudaGraphLaunch(graph, cudaStreamGraphFireAndForgetAsSibling) == cudaSuccess) return;
  } while (ways_now_ns() - start <= LEAVING_NS);
  ways->not_taken++; /* another process may have the GPU: the head, which is launched behind the chain, goes on */
}

extern "C" __global__ void tg_ways_head_tail(tg_ways *ways) {
  if (ways_over(ways)) return;
  must_launch(ways, step_graph(ways, 0), cudaStreamGraphTailLaunch, TG_WAYS_TAIL, 0);
}

/* One thread: the step's graph, and this one behind it. */
__device__ inline void launch_and_return(tg_ways *ways, uint32_t copy, cudaStream_t stream, uint32_t what) {
  if (must_launch(ways, step_graph(ways, copy), stream, what, 0))
    must_launch(ways, cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch, TG_WAYS_SELF, 1);
}

extern "C" __global__ void tg_ways_head_sibling(tg_ways *ways) {
  if (ways_over(ways)) return;
  ways->launched = 1;
  __threadfence();
  launch_and_return(ways, (uint32_t)ways->step, cudaStreamGraphFireAndForget, TG_WAYS_FORGET);
}

extern "C" __global__ void tg_ways_head_scheduler(tg_ways *ways) {
  if (!ways_over(ways)) launch_and_return(ways, 0, cudaStreamGraphTailLaunch, TG_WAYS_TAIL);
}

extern "C" __global__ void tg_ways_head_forget(tg_ways *ways) {
  if (!ways_over(ways)) launch_and_return(ways, 0, cudaStreamGraphFireAndForget, TG_WAYS_FORGET);
}
