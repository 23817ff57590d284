/* passing.cuh: what kernels do with a step that passes a stage (stages.cu): where its rows lie in a link, how they are copied,
 * when it came and left, for a trace, and how the graph that runs it is launched. */
#pragma once

#include "sched/device.cuh"

constexpr uint32_t COPY_THREADS = 256;
static_assert(COPY_THREADS == LANES, "a block of the copies has a step's tables, with a lane a thread");

/* The residual stream in a place of a link. */
__device__ inline float *activations_in(const uint64_t *place, const tg_state *state) {
  return reinterpret_cast<float *>(const_cast<uint64_t *>(place) + tg_place_activations(&state->config));
}

/* Past the first-level cache: what was written while this kernel's SM ran others. */
__device__ inline uint64_t *where_it_goes(const tg_stage *stage) {
  return reinterpret_cast<uint64_t *>(__ldcg(reinterpret_cast<const uint64_t *>(&stage->goes_to)));
}

/* Rows first, first + stride ... : f32 [rows, hidden], hidden a multiple of 4. What came over a link is read past the first-level cache. */
__device__ inline void copy_rows(float *to, const float *from, uint32_t rows, uint32_t hidden, uint32_t first, uint32_t stride) {
  for (uint32_t r = first; r < rows; r += stride) {
    const float4 *in = reinterpret_cast<const float4 *>(from + (size_t)r * hidden);
    float4 *out = reinterpret_cast<float4 *>(to + (size_t)r * hidden);
    for (uint32_t i = threadIdx.x; i < hidden / 4; i += COPY_THREADS) out[i] = __ldcg(in + i);
  }
}

/* When a step came and left; without `times` there is no trace. */
struct Passed {
  const tg_stage_times *times;
  uint64_t step, came_ns, left_ns;
};

/* The times of a step whose other kernels have ended, before the next step's begin. `leaves`: it leaves now. */
__device__ inline Passed noted(const tg_stage_times *times, uint64_t step, bool leaves) {
  if (!times) return {};
  return {times, step, __ldcg(&times->came_ns), leaves ? now_ns() : __ldcg(&times->left_ns)};
}

/* One thread reports them to the host, as the last that a dispatcher does. */
__device__ inline void report(const Passed &passed) {
  if (!passed.times) return;
  uint64_t *told = passed.times->told + passed.step % TG_TIMES_STEPS * 2;
  const uint64_t number = passed.step & ((1u << TG_TIMES_STEP_BITS) - 1);
  if (passed.came_ns != 0) tg_store(told, passed.came_ns << TG_TIMES_STEP_BITS | number);
  tg_store(told + 1, passed.left_ns << TG_TIMES_STEP_BITS | number);
}

/* Looks of a stage that waits for its neighbour before its idle graph follows: some milliseconds. */
constexpr uint32_t LINK_POLLS = 4096;

/* Thread 0 waits at most `most_ns` for a step to be posted that was not known yet, and returns whether one was. */
__device__ inline bool watch(const tg_link_end &in, uint32_t most_ns) {
  const uint64_t start = now_ns();
  bool known;
  do {
    known = tg_load(&in.theirs->count) == in.known;
  } while (known && now_ns() - start < most_ns);
  return !known;
}

/* All lanes wait for room in the link that goes on, store the step's description there, and announce it. Whether the links go on. */
__device__ inline bool announce(tg_state *state, tg_links &links, const tg_step &step) {
  __shared__ uint32_t answer;
  if (threadIdx.x == 0) {
    do {
      answer = tg_links_room(&links, now_ns());
    } while (answer == TG_LINK_WAIT);
  }
  lanes_barrier();
  if (answer != TG_LINK_READY) return false;
  tg_put_step(state, step.number, tg_link_place(&links.out), threadIdx.x, LANES);
  lanes_barrier();
  if (threadIdx.x == 0) tg_links_announce(&links, step.kind, step.bucket);
  return true;
}

/* One thread launches a step's graph, inside the idle graph's run, or beside the step's that this dispatcher ends. Where the GPU refuses,
 * the chain ends here, and the idle graph launches this step. False where the idle graph itself is refused. */
__device__ inline bool launch_step(tg_stage *stage, const tg_graphs *graphs, uint64_t graph, bool idle) {
  stage->left = 0;
  stage->launched++;
  stage->in_chain = idle ? 1 : stage->in_chain + 1;
  __threadfence();
  if (idle) return launch(graph, cudaStreamGraphFireAndForget) && launch(graphs->idle, cudaStreamGraphTailLaunch);
  const uint64_t start = now_ns();
  while (!launch(graph, cudaStreamGraphFireAndForgetAsSibling)) {
    if (now_ns() - start <= LEAVING_NS) continue;
    stage->left = graph;
    stage->launched--;
    break;
  }
  return true;
}

__device__ inline uint64_t graph_of(const tg_graphs *graphs, const tg_stage *stage, uint32_t kind, uint32_t bucket) {
  return graphs->step[stage->launched % TG_COPIES][0][kind][bucket];
}
