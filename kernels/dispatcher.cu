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

/* One turn, all threads. Returns the action to every thread. */
__device__ inline uint32_t turn(tg_state *state, tg_rings *rings) {
  __shared__ uint64_t start_ns;
  if (threadIdx.x == 0) start_ns = now_ns();
  __syncthreads();
#pragma unroll
  for (uint32_t phase = 0; phase < TG_PHASES; phase++) {
    tg_phase(state, rings, start_ns, phase, threadIdx.x, blockDim.x);
    __syncthreads();
  }
  if (threadIdx.x == 0) tg_trace_write(state, rings, now_ns(), 0);
  return state->outcome.action;
}

/* Hands over to the graphs of the composed step, or to the idle graph. They start once this graph has ended,
 * one after the other. */
__device__ inline void launch_next(tg_state *state, tg_rings *rings, const tg_graphs *graphs, uint32_t action) {
  const tg_outcome *outcome = &state->outcome;
  uint64_t count = action == TG_ACTION_STEP ? graphs->stages : 1u;
  for (uint64_t stage = 0; stage < count; stage++) {
    uint64_t next = action == TG_ACTION_STEP ? graphs->step[stage][outcome->kind][outcome->bucket] : graphs->idle;
    cudaError_t refused = cudaGraphLaunch((cudaGraphExec_t)next, cudaStreamGraphTailLaunch);
    if (refused != cudaSuccess) {
      state->error = TG_ERROR_LAUNCH;
      tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
      return;
    }
  }
}

/* `ran` is 1 in a step graph, where this node comes after the step that the last turn composed: its results
 * are in the step's sampled_table. It is 0 in the idle graph. */
extern "C" __global__ void __launch_bounds__(TG_MAX_LANES)
    tg_dispatch(tg_state *state, tg_rings *rings, const tg_graphs *graphs, uint32_t ran) {
  begin_kernel();
  if (ran && threadIdx.x == 0 && !tg_mailbox_post(&state->mailbox[0], state->outcome.step)) state->error = TG_ERROR_MAILBOX;
  __syncthreads();

  uint32_t pause_ns = FIRST_PAUSE_NS, action;
  for (uint32_t poll = 0;; poll++) {
    action = turn(state, rings);
    if ((action != TG_ACTION_IDLE && action != TG_ACTION_BLOCKED) || poll == POLLS) break;
    if (state->outcome.changed) {
      pause_ns = FIRST_PAUSE_NS; /* it found something new, so there may be more at once */
    } else {
      __nanosleep(pause_ns);
      pause_ns = min(2 * pause_ns, LAST_PAUSE_NS);
    }
  }
  if (threadIdx.x == 0 && action != TG_ACTION_DONE && action != TG_ACTION_ERROR) launch_next(state, rings, graphs, action);
}

/* First node of a graph of a later stage of this GPU: says which stage runs now, for whoever watches.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_stage(tg_rings *rings, uint32_t stage) {
  begin_kernel();
  tg_store(&rings->status.stage, stage);
}
