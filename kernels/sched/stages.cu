/* stages.cu: a pipeline of stages, each on a GPU of its own: how a step goes from one to the next (sched/handover.h) with
 * nobody of the host on its way.
 *
 * A step of a stage is one graph:
 *
 *   tg_receive    copies the residual stream out of the place that the step came in     (not on stage 0, which embeds)
 *   ...           the kernels of the stage's layers
 *   tg_hand_on    stores the residual stream, and what the step is, into the next GPU   (not on the last stage)
 *   tg_lead       stage 0's dispatcher, or
 *   tg_follow     a later stage's
 *
 * A dispatcher first posts the step whose graph it ends; the last stage's stores what was sampled into stage 0's memory before.
 * Then it waits for something to do and launches that step's graph behind its own (tail launch). Stage 0 takes turns of the
 * core: while its first step goes through the other stages it composes the next one. A later stage takes what comes over its link.
 * Where nothing comes for a while, the idle graph, which is the dispatcher alone, follows instead: so no kernel runs for long.
 *
 * Flags and places lie in the memory of whoever waits for them, so a wait polls near memory and only stores cross the link.
 *
 * Bound: a row is 4H bytes over the link: 8 KB for a hidden size of 2048, 20 ns at 400 GB/s; a whole step of 8,192 rows
 * 0.17 ms beside some 20 ms of a stage's kernels.
 */
#include "common/base.cuh"
#include "sched/device.cuh"

constexpr uint32_t COPY_THREADS = 256;
static_assert(COPY_THREADS == LANES, "a block of tg_hand_on puts the step's tables with a lane a thread");
/* Looks of a stage that waits for its neighbour before its idle graph follows: some milliseconds. */
constexpr uint32_t LINK_POLLS = 4096;

/* The residual stream in a place of a link. */
__device__ inline float *activations_in(const uint64_t *place, const tg_state *state) {
  return reinterpret_cast<float *>(const_cast<uint64_t *>(place) + tg_place_activations(&state->config));
}

/* Rows first, first + stride ... of the step: f32 [rows, hidden], hidden a multiple of 4. */
__device__ inline void copy_rows(float *to, const float *from, uint32_t rows, uint32_t hidden, uint32_t first, uint32_t stride) {
  for (uint32_t r = first; r < rows; r += stride) {
    const float4 *in = reinterpret_cast<const float4 *>(from + (size_t)r * hidden);
    float4 *out = reinterpret_cast<float4 *>(to + (size_t)r * hidden);
    for (uint32_t i = threadIdx.x; i < hidden / 4; i += COPY_THREADS) out[i] = in[i];
  }
}

/* Launch: grid = any number of blocks, block = COPY_THREADS. */
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    tg_receive(float *h, const tg_state *state, const tg_stage *stage, uint32_t hidden) {
  begin_kernel();
  copy_rows(h, activations_in(stage->came_in, state), stage->step.rows, hidden, blockIdx.x, gridDim.x);
}

/* The last block puts the tables, the others the residual stream.
 * Launch: grid = at least 2 blocks, block = COPY_THREADS. */
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    tg_hand_on(tg_state *state, const tg_stage *stage, const float *h, uint32_t hidden) {
  begin_kernel();
  uint64_t *place = stage->goes_to;
  if (blockIdx.x + 1 < gridDim.x) {
    copy_rows(activations_in(place, state), h, stage->step.rows, hidden, blockIdx.x, gridDim.x - 1);
    return;
  }
  if (threadIdx.x == 0) tg_device.block = state;
  __syncthreads();
  tg_put_step(state, stage->step.number, place, threadIdx.x, LANES);
}

/* What a dispatcher works on in shared memory. */
struct Near {
  tg_links links;
  uint64_t start_ns; /* of the turn */
  uint32_t asked;    /* TG_LINK_*, as thread 0 was answered */
};

/* All threads: has a step been posted to this stage? Thread 0 asks. */
__device__ inline uint32_t take(Near &near) {
  if (threadIdx.x == 0) near.asked = tg_links_take(&near.links, now_ns());
  __syncthreads();
  const uint32_t asked = near.asked;
  __syncthreads();
  return asked;
}

/* All threads: waits for room in the link that goes on. Whether there is. */
__device__ inline bool await_room(Near &near) {
  if (threadIdx.x == 0) {
    do {
      near.asked = tg_links_room(&near.links, now_ns());
    } while (near.asked == TG_LINK_WAIT);
  }
  __syncthreads();
  return near.asked == TG_LINK_READY;
}

/* Thread 0: waits until the stage before has posted something that was not known yet, for so long at most. */
__device__ inline void watch(const tg_link_end &in, uint32_t most_ns) {
  const uint64_t start = now_ns();
  while (tg_load(&in.theirs->count) == in.known && now_ns() - start < most_ns) {
  }
}

__device__ inline void bring_links(Near &near, const tg_stage *stage) {
  static_assert(sizeof(tg_links) % sizeof(uint4) == 0 && offsetof(tg_stage, links) % sizeof(uint4) == 0, "copied in 16s");
  copy(&near.links, &stage->links, sizeof(tg_links), threadIdx.x, LANES);
}

/* All threads: what the next graph finds. `step`: the one that it runs, if it is a step's. */
__device__ inline void leave(const Near &near, tg_stage *stage, const tg_step *step) {
  copy(&stage->links, &near.links, sizeof(tg_links), threadIdx.x, LANES);
  if (!step) return;
  copy(&stage->step, step, sizeof(tg_step), threadIdx.x, LANES);
  if (threadIdx.x != 0) return;
  stage->came_in = near.links.in.holds ? tg_link_place(&near.links.in) : nullptr;
  stage->goes_to = tg_link_place(&near.links.out);
}

/* All threads: what the steps that have come back have sampled goes to their places. Whether the links go on. */
__device__ inline bool collect(tg_state *state, Near &near) {
  uint32_t asked;
  while ((asked = take(near)) == TG_LINK_READY) {
    tg_get_results(state, tg_link_place(&near.links.in), threadIdx.x, LANES);
    __syncthreads();
    if (threadIdx.x == 0) tg_links_give_back(&near.links);
  }
  if (threadIdx.x == 0) tg_device.returned_end = near.links.in.count;
  /* The host's stop is the core's to see too. */
  return asked != TG_LINK_OVER || (near.links.ended & 0xffffu) == TG_LINK_STOPPED;
}

/* Stage 0's dispatcher. `where`: TG_DISPATCH_*. `layout`: a copy of the rings' head in device memory.
 * Launch: grid = 1, block = LANES. */
extern "C" __global__ void __launch_bounds__(LANES)
    tg_lead(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_stage *stage, uint32_t where) {
  __shared__ __align__(16) Near near;
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  await_earlier_kernels();
  copy(state, block, HEAD_BYTES, threadIdx.x, LANES);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, LANES);
  bring_links(near, stage);
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.rows_step = TG_NO_STEP;
    tg_device.releases = 0;
    tg_device_turn.asks_more = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0 && where == TG_DISPATCH_BEHIND) tg_links_post(&near.links);

  uint32_t pause_ns = FIRST_PAUSE_NS;
  uint64_t next = graphs->idle; /* 0: nothing follows */
  const tg_step *step = nullptr;
  for (uint32_t poll = 0;; poll++) {
    const bool goes_on = collect(state, near);
    look(rings);
    if (threadIdx.x == 0) near.start_ns = now_ns();
    __syncthreads();
    if (!goes_on) {
      if (threadIdx.x == 0) {
        state->error = TG_ERROR_LINK;
        tg_store(&rings->status.ended, near.links.ended);
        tg_release(&rings->action.value, (uint64_t)TG_ERROR_LINK << 32 | TG_ACTION_ERROR);
      }
      next = 0;
      break;
    }
#pragma unroll
    for (uint32_t phase = 0; phase < TG_PHASES; phase++) {
      tg_phase(state, rings, near.start_ns, phase, threadIdx.x, LANES);
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      tg_trace_write(state, rings, now_ns(), 0);
      tg_flush();
    }
    const tg_outcome outcome = state->outcome;
    if (outcome.action == TG_ACTION_STEP) {
      next = graphs->step[0][0][outcome.kind][outcome.bucket];
      step = tg_step_at(state, outcome.step);
      /* Where the links are over there is no step's graph to run; the next dispatcher says why. */
      if (!await_room(near)) next = graphs->idle;
      break;
    }
    if (outcome.action == TG_ACTION_DONE || outcome.action == TG_ACTION_ERROR) {
      const uint32_t code = outcome.action == TG_ACTION_ERROR     ? TG_LINK_FAILED
                            : state->inputs.flags & TG_INPUT_STOP ? TG_LINK_STOPPED
                                                                  : TG_LINK_DRAINED;
      if (threadIdx.x == 0) tg_links_end(&near.links, code);
      next = 0;
      break;
    }
    if (poll == POLLS) break;
    if (outcome.changed) {
      pause_ns = FIRST_PAUSE_NS; /* it found something new, so there may be more at once */
    } else {
      if (threadIdx.x == 0) watch(near.links.in, pause_ns);
      pause_ns = min(2 * pause_ns, LAST_PAUSE_NS);
    }
    __syncthreads();
  }
  __syncthreads();
  copy(block, state, HEAD_BYTES, threadIdx.x, LANES);
  leave(near, stage, step);
  if (threadIdx.x != 0 || next == 0 || launch(next, cudaStreamGraphTailLaunch)) return;
  block->error = TG_ERROR_LAUNCH;
  tg_links_end(&stage->links, TG_LINK_FAILED);
  tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
}

/* A later stage's dispatcher. `where`: TG_DISPATCH_*. `last`: what its steps sample goes back to stage 0.
 * Launch: grid = 1, block = LANES. */
extern "C" __global__ void __launch_bounds__(LANES)
    tg_follow(tg_state *state, const tg_graphs *graphs, tg_stage *stage, uint32_t where, uint32_t last) {
  __shared__ __align__(16) Near near;
  await_earlier_kernels();
  bring_links(near, stage);
  if (threadIdx.x == 0) tg_device.block = state;
  __syncthreads();
  if (where == TG_DISPATCH_BEHIND) {
    if (last) tg_put_results(state, stage->step.number, stage->goes_to, threadIdx.x, LANES);
    __syncthreads();
    if (threadIdx.x == 0) {
      tg_links_post(&near.links);
      tg_links_give_back(&near.links);
    }
  }

  uint64_t next = graphs->idle; /* 0: nothing follows */
  const tg_step *step = nullptr;
  for (uint32_t poll = 0; poll < LINK_POLLS; poll++) {
    const uint32_t asked = take(near);
    if (asked == TG_LINK_READY) {
      const uint64_t *place = tg_link_place(&near.links.in);
      tg_get_step(state, place, threadIdx.x, LANES);
      __syncthreads();
      step = tg_step_at(state, tg_read(place));
      next = await_room(near) ? graphs->step[0][0][step->kind][step->bucket] : 0;
      break;
    }
    if (asked == TG_LINK_OVER) {
      next = 0;
      break;
    }
    if (threadIdx.x == 0) watch(near.links.in, LAST_PAUSE_NS);
  }
  __syncthreads();
  leave(near, stage, step);
  if (threadIdx.x == 0 && next != 0 && !launch(next, cudaStreamGraphTailLaunch)) tg_links_end(&stage->links, TG_LINK_FAILED);
}
