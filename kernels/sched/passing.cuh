/* passing.cuh: what kernels do with a step that passes a stage (stages.cu): where its rows lie in a link, how they are copied,
 * and when it came and left, for a trace.
 *
 * Whoever asks for no times hands 0 to the kernels, which then look at no clock. Else a kernel that takes, or hands on, notes
 * its time in memory of its own GPU, and the dispatcher tells the host in the end: no kernel of a step waits for the bus. */
#ifndef TAILGRAPH_SCHED_PASSING_CUH
#define TAILGRAPH_SCHED_PASSING_CUH

#include "sched/args.h"
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

/* Rows first, first + stride ... : f32 [rows, hidden], hidden a multiple of 4. What came over a link is read past the
 * first-level cache. */
__device__ inline void copy_rows(float *to, const float *from, uint32_t rows, uint32_t hidden, uint32_t first, uint32_t stride) {
  for (uint32_t r = first; r < rows; r += stride) {
    const float4 *in = reinterpret_cast<const float4 *>(from + (size_t)r * hidden);
    float4 *out = reinterpret_cast<float4 *>(to + (size_t)r * hidden);
    for (uint32_t i = threadIdx.x; i < hidden / 4; i += COPY_THREADS) out[i] = __ldcg(in + i);
  }
}

/* When a step came and left. Without `times` nobody asked. */
struct Passed {
  const tg_stage_times *times;
  uint64_t step, came_ns, left_ns;
};

/* Once the step's other kernels have ended, and before the next step's begin. `leaves`: it leaves now. */
__device__ inline Passed noted(const tg_stage_times *times, uint64_t step, bool leaves) {
  if (!times) return {};
  return {times, step, __ldcg(&times->came_ns), leaves ? now_ns() : __ldcg(&times->left_ns)};
}

/* One thread, as the last that a dispatcher does. */
__device__ inline void tell(const Passed &passed) {
  if (!passed.times) return;
  uint64_t *told = passed.times->told + passed.step % TG_TIMES_STEPS * 2;
  const uint64_t number = passed.step & ((1u << TG_TIMES_STEP_BITS) - 1);
  if (passed.came_ns != 0) tg_store(told, passed.came_ns << TG_TIMES_STEP_BITS | number);
  tg_store(told + 1, passed.left_ns << TG_TIMES_STEP_BITS | number);
}

#endif
