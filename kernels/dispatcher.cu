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
    if (phase > TG_COLLECT_PHASE && phase < TG_FINISH_PHASE && tg_is_routine(state)) continue;
    tg_phase(state, rings, start_ns, phase, threadIdx.x, TG_MAX_LANES);
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

/* The head of the state block, up to the mailboxes, which others may write. */
constexpr uint32_t HEAD_BYTES = offsetof(tg_state, mailbox);
static_assert(HEAD_BYTES % sizeof(uint4) == 0 && HEAD_BYTES / sizeof(uint4) <= TG_MAX_LANES, "a load a thread");
constexpr uint32_t LAYOUT_AT = offsetof(tg_rings, bytes), LAYOUT_BYTES = sizeof(tg_rings) - LAYOUT_AT;
static_assert(LAYOUT_AT % sizeof(uint4) == 0 && sizeof(tg_device) % sizeof(uint4) == 0 && LAYOUT_BYTES % sizeof(uint4) == 0, "copied in 16s");

__device__ inline void copy(void *to, const void *from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  uint4 *out = static_cast<uint4 *>(to);
  const uint4 *in = static_cast<const uint4 *>(from);
  for (uint32_t i = thread; i < bytes / sizeof(uint4); i += threads) out[i] = in[i];
}

/* Brings what a turn will look at near, since the step that runs has read more weights than the cache holds. */
__device__ inline void bring(tg_state *state, const tg_graphs *graphs) {
  const uint32_t t = threadIdx.x;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  if (tg_device.returned_step != TG_NO_STEP && t < step->decode_rows) tg_device_near[t] = tg_near_of(state, step, t);
  if (t < step->sample_rows) prefetch_line(&tg_samples(state, step)[t]);
  if (t < state->config.slots) prefetch_line(&tg_slots(state)[t].phase);
  if (t < TG_KINDS) prefetch_line(graphs->step[0][t]);
  if (t == TG_KINDS) prefetch_line(graphs);
}

/* `ran` is 1 in a step graph, where this node comes after the step that the last turn composed: its results
 * are in the step's sampled_table. It is 0 in the idle graph. `layout` is a copy of the rings' head in device
 * memory. No kernel of a step writes the state's head, so it is brought while they still run. */
extern "C" __global__ void __launch_bounds__(TG_MAX_LANES)
    tg_dispatch(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, uint32_t ran) {
  __shared__ uint32_t launched;
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  let_next_kernel_start();
  copy(state, block, HEAD_BYTES, threadIdx.x, TG_MAX_LANES);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, TG_MAX_LANES);
  look(rings);
  __syncthreads();
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.returned_step = ran ? state->outcome.step : TG_NO_STEP;
    tg_device.releases = 0;
    tg_device_turn.ends_something = 0;
    launched = 1;
  }
  __syncthreads();
  bring(state, graphs);
  wait_for_earlier_kernels();

  uint32_t pause_ns = FIRST_PAUSE_NS;
  for (uint32_t poll = 0;; poll++) {
    uint32_t action = turn(state, rings);
    bool waits = action == TG_ACTION_IDLE || action == TG_ACTION_BLOCKED;
    bool again = waits && poll < POLLS;
    /* The second warp launches, while the first sends what this turn leaves for the host and the others take the
     * state's head back. */
    if (threadIdx.x / 32 == 1) {
      if (threadIdx.x == 32 && !again && (waits || action == TG_ACTION_STEP)) launched = launch_next(state, graphs, action);
    } else {
      if (threadIdx.x == 0) tg_trace_write(state, rings, now_ns(), 0);
      asm volatile("bar.sync 1, %0;" ::"n"(TG_MAX_LANES - 32) : "memory");
      if (threadIdx.x == 0) tg_flush();
      if (!again && threadIdx.x >= 64) copy(block, state, HEAD_BYTES, threadIdx.x - 64, TG_MAX_LANES - 64);
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
    block->error = TG_ERROR_LAUNCH;
    tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
  }
}

/* First node of a graph of a later stage of this GPU: says which stage runs now, for whoever watches.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_stage(tg_rings *rings, uint32_t stage) {
  begin_kernel();
  tg_store(&rings->status.stage, stage);
}
