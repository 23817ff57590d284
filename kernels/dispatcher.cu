/* dispatcher.cu: the scheduler core as a kernel. It is the last node of every step (of its last stage's graph) and the
 * only node of the idle graph: one turn of the core, then the tail launch of what comes next.
 *
 * Cost: one block, a barrier for each phase; nothing here scales with the model. Per-slot work is spread
 * over the threads by the core itself (a lane is a thread).
 *
 * Launch: grid = 1, block = TG_MAX_LANES.
 */
#include "pdl.cuh"
#include "sched/sched.c"

#include <cuda_runtime.h>

/* While nothing is to be done the dispatcher polls, with pauses that grow from the first to the last. Then
 * it hands over to the idle graph and so to itself: no kernel runs for longer than this without an end. */
constexpr uint32_t FIRST_PAUSE_NS = 128;
constexpr uint32_t LAST_PAUSE_NS = 8192;
constexpr uint32_t POLLS = 64;

__device__ inline uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/* Loads all of the host's indices, each by a thread of its own, so that the trip over the bus is made once. They owe
 * nothing to the step that runs, so the first look comes before the wait for it. */
__device__ inline void look(const tg_rings *rings) {
  const uint64_t *from;
  uint64_t *to;
  switch (threadIdx.x) {
    case 0: from = &rings->flags.value, to = &tg_device.flags; break;
    case 1: from = &rings->control_head.value, to = &tg_device.control_head; break;
    case 2: from = &rings->request_head.value, to = &tg_device.request_head; break;
    case 3: from = &rings->event_tail.value, to = &tg_device.event_tail; break;
    case 4: from = &rings->trace_tail.value, to = &tg_device.trace_tail; break;
    default: return;
  }
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1]; fence.acq_rel.sys;" : "=l"(value) : "l"(from) : "memory");
  *to = value;
}

/* One turn, all threads, with what was last looked at. Returns the action to every thread. */
__device__ inline uint32_t turn(tg_state *state, tg_rings *rings) {
  __shared__ uint64_t start_ns;
  if (threadIdx.x == 0) start_ns = now_ns();
  __syncthreads();
#pragma unroll
  for (uint32_t phase = 0; phase < TG_PHASES; phase++) {
    tg_phase(state, rings, start_ns, phase, threadIdx.x, blockDim.x);
    __syncthreads();
  }
  return state->outcome.action;
}

/* Hands over to the graphs of the composed step, or to the idle graph. They start once this graph has ended, one
 * after the other. 0 where the GPU refused. */
__device__ inline uint32_t launch_next(const tg_state *state, const tg_graphs *graphs, uint32_t action) {
  const tg_outcome *outcome = &state->outcome;
  uint64_t count = action == TG_ACTION_STEP ? graphs->stages : 1u;
  for (uint64_t stage = 0; stage < count; stage++) {
    uint64_t next = action == TG_ACTION_STEP ? graphs->step[stage][outcome->kind][outcome->bucket] : graphs->idle;
    if (cudaGraphLaunch((cudaGraphExec_t)next, cudaStreamGraphTailLaunch) != cudaSuccess) return 0;
  }
  return 1;
}

/* `ran` is 1 in a step graph, where this node comes after the step that the last turn composed: its results
 * are in the step's sampled_table. It is 0 in the idle graph. `layout` is a copy of the rings' head in device
 * memory. */
extern "C" __global__ void __launch_bounds__(TG_MAX_LANES)
    tg_dispatch(tg_state *state, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, uint32_t ran) {
  __shared__ uint32_t launched;
  if (threadIdx.x == 0) {
    tg_device.layout = layout;
    tg_device.releases = 0;
    launched = 1;
  }
  look(rings);
  begin_kernel();
  if (ran && threadIdx.x == 0 && !tg_mailbox_post(&state->mailbox[0], state->outcome.step)) state->error = TG_ERROR_MAILBOX;
  __syncthreads();

  uint32_t pause_ns = FIRST_PAUSE_NS;
  for (uint32_t poll = 0;; poll++) {
    uint32_t action = turn(state, rings);
    bool waits = action == TG_ACTION_IDLE || action == TG_ACTION_BLOCKED;
    bool again = waits && poll < POLLS;
    /* While the first thread sends what this turn leaves for the host, one of another warp launches. */
    if (threadIdx.x == 32 && !again && (waits || action == TG_ACTION_STEP)) launched = launch_next(state, graphs, action);
    if (threadIdx.x == 0) {
      tg_trace_write(state, rings, now_ns(), 0);
      tg_flush();
    }
    if (!again) break;
    if (state->outcome.changed) {
      pause_ns = FIRST_PAUSE_NS; /* it found something new, so there may be more at once */
    } else {
      __nanosleep(pause_ns);
      pause_ns = min(2 * pause_ns, LAST_PAUSE_NS);
    }
    look(rings);
  }
  __syncthreads();
  if (threadIdx.x == 0 && !launched) {
    state->error = TG_ERROR_LAUNCH;
    tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
  }
}

/* First node of a graph of a later stage of this GPU: says which stage runs now, for whoever watches.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_stage(tg_rings *rings, uint32_t stage) {
  begin_kernel();
  tg_store(&rings->status.stage, stage);
}
