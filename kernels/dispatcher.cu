/* dispatcher.cu: the scheduler core as a kernel: one turn of the core, then the tail launch of what comes next. It is
 * the last node of a step (of its last stage's graph), and collects it. Or it is beside the step, where the core has seen
 * that no sequence can end with that: then it collects the step before, composes the one after and launches it behind
 * the graph that it is in, and no step waits for a turn. And it is the only node of the idle graph.
 *
 * Cost: one block, a barrier for each phase; nothing here scales with the model. Per-slot work is spread
 * over the threads by the core itself (a lane is a thread). One more warp only launches: what comes next is known
 * before the turn is through with what it leaves for the host, in a routine turn even before that has begun.
 *
 * Launch: grid = 1, block = DISPATCH_THREADS.
 */
#include "pdl.cuh"
#include "sched/sched.c"

#include <cuda_runtime.h>

constexpr uint32_t LANES = TG_MAX_LANES, DISPATCH_THREADS = TG_DISPATCH_THREADS;

/* Barriers by their numbers; 0 is __syncthreads(). */
constexpr int PHASE_BARRIER = 1, NEXT_BARRIER = 2;

/* Of the lanes alone. */
__device__ inline void lanes_barrier() { asm volatile("bar.sync %0, %1;" ::"n"(PHASE_BARRIER), "n"(LANES) : "memory"); }

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

/* What the launching warp is to do. */
struct Next {
  uint32_t action; /* TG_ACTION_* */
  uint32_t kind, bucket;
  uint32_t place;  /* of the step */
  uint32_t beside; /* its graph is the one with a dispatcher beside it */
  uint32_t again;  /* nothing: the lanes take another turn */
};

/* All lanes, once a turn: tells the launching warp, and goes on. */
__device__ inline void decide(Next &next, Next what) {
  if (threadIdx.x == 0) next = what;
  asm volatile("bar.arrive %0, %1;" ::"n"(NEXT_BARRIER), "n"(DISPATCH_THREADS) : "memory");
}

/* What a routine turn comes to: the step that has come back once more. */
__device__ inline Next routine_next(tg_state *state) {
  const tg_step *step = tg_step_at(state, state->steps_collected);
  const bool beside = tg_runs_ahead(state) && !tg_device_turn.ends_soon;
  return Next{TG_ACTION_STEP, TG_KIND_DECODE, step->bucket, tg_step_place(state, state->steps_composed), beside, 0};
}

/* One turn, all lanes, with what was last looked at. `last`: if nothing is to be done, the idle graph follows. */
__device__ inline Next turn(tg_state *state, tg_rings *rings, Next &next, bool last) {
  __shared__ uint64_t start_ns;
  if (threadIdx.x == 0) start_ns = now_ns();
  lanes_barrier();
  bool routine = false;
#pragma unroll
  for (uint32_t phase = 0; phase < TG_FINISH_PHASE; phase++) {
    if (phase == TG_COLLECT_PHASE) {
      routine = tg_is_routine(state);
      if (routine) decide(next, routine_next(state));
    } else if (phase > TG_COLLECT_PHASE && routine) {
      continue;
    }
    tg_phase(state, rings, start_ns, phase, threadIdx.x, LANES);
    lanes_barrier();
  }
  tg_phase(state, rings, start_ns, TG_FINISH_PHASE, threadIdx.x, LANES);
  lanes_barrier();
  const tg_outcome *outcome = &state->outcome;
  const bool waits = outcome->action == TG_ACTION_IDLE || outcome->action == TG_ACTION_BLOCKED;
  const Next what = {outcome->action, outcome->kind, outcome->bucket, tg_step_place(state, outcome->step),
                     tg_device_turn.beside, waits && !last};
  if (!routine) decide(next, what);
  return what;
}

/* Hands over to the graphs of the composed step, or to the idle graph. They start once this graph has ended, one
 * after the other. 0 where the GPU refused. */
__device__ inline uint32_t launch(const Next &next, const tg_graphs *graphs) {
  const bool step = next.action == TG_ACTION_STEP;
  if (!step && next.action != TG_ACTION_IDLE && next.action != TG_ACTION_BLOCKED) return 1;
  uint64_t count = step && !next.beside ? graphs->stages : 1u;
  for (uint64_t stage = 0; stage < count; stage++) {
    uint64_t graph = !step         ? graphs->idle
                     : next.beside ? graphs->beside[next.place][next.bucket]
                                   : graphs->step[next.place][stage][next.kind][next.bucket];
    if (cudaGraphLaunch((cudaGraphExec_t)graph, cudaStreamGraphTailLaunch) != cudaSuccess) return 0;
  }
  return 1;
}

/* The head of the state block, up to the mailboxes, which others may write. */
constexpr uint32_t HEAD_BYTES = offsetof(tg_state, mailbox);
static_assert(HEAD_BYTES % sizeof(uint4) == 0 && HEAD_BYTES / sizeof(uint4) <= TG_MAX_LANES, "a load a thread");
constexpr uint32_t LAYOUT_AT = offsetof(tg_rings, bytes), LAYOUT_BYTES = sizeof(tg_rings) - LAYOUT_AT;
static_assert((offsetof(decltype(tg_device), layout) + LAYOUT_AT) % sizeof(uint4) == 0 && LAYOUT_AT % sizeof(uint4) == 0 &&
                  LAYOUT_BYTES % sizeof(uint4) == 0,
              "copied in 16s");

__device__ inline void copy(void *to, const void *from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  uint4 *out = static_cast<uint4 *>(to);
  const uint4 *in = static_cast<const uint4 *>(from);
  for (uint32_t i = thread; i < bytes / sizeof(uint4); i += threads) out[i] = in[i];
}

/* Brings what a turn will look at near, since the step that runs has read more weights than the cache holds. */
__device__ inline void bring(tg_state *state, const tg_graphs *graphs) {
  const uint32_t t = threadIdx.x;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  if (tg_device.near_step != TG_NO_STEP && t < min(step->decode_rows, LANES)) tg_device_near[t] = tg_near_of(state, step, t);
  if (t < step->sample_rows) prefetch_line(&tg_samples(state, step)[t]);
  if (t < state->config.slots) prefetch_line(&tg_slots(state)[t].phase);
  if (t < TG_PLACES) prefetch_line(graphs->step[t][0][TG_KIND_DECODE]);
  if (t < TG_PLACES) prefetch_line(graphs->beside[t]);
  if (t == TG_PLACES) prefetch_line(graphs);
}

/* The lanes: turns until there is something for the launching warp to do, or `polls` more than one were in vain. */
__device__ inline void take_turns(tg_state *state, tg_state *block, tg_rings *rings, Next &next, uint32_t polls) {
  uint32_t pause_ns = FIRST_PAUSE_NS;
  for (uint32_t poll = 0;; poll++) {
    const bool again = turn(state, rings, next, poll == polls).again;
    /* While the first warp sends what this turn leaves for the host, the others take the state's head back. */
    if (threadIdx.x == 0) tg_trace_write(state, rings, now_ns(), 0);
    lanes_barrier();
    if (threadIdx.x == 0) tg_flush();
    if (!again) {
      if (threadIdx.x >= 32) copy(block, state, HEAD_BYTES, threadIdx.x - 32, LANES - 32);
      return;
    }
    __syncthreads(); /* the launching warp has seen that there is nothing for it */
    if (state->outcome.changed) {
      pause_ns = FIRST_PAUSE_NS; /* it found something new, so there may be more at once */
    } else {
      __nanosleep(pause_ns);
      pause_ns = min(2 * pause_ns, LAST_PAUSE_NS);
    }
    look(rings);
  }
}

/* `where`: TG_DISPATCH_*. All steps that were composed have come back, but for the one that this kernel is beside: a
 * graph starts when the ones before it have ended. `layout` is a copy of the rings' head in device memory. No kernel of a
 * step writes the state's head, nor what is read of a decode row, so both are brought while they still run.
 *
 * Beside a step one turn is all: if nothing came of it, the idle graph goes on once the step has ended. */
extern "C" __global__ void __launch_bounds__(DISPATCH_THREADS)
    tg_dispatch(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, uint32_t where) {
  __shared__ Next next;
  __shared__ uint32_t launched;
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  let_next_kernel_start();
  copy(state, block, HEAD_BYTES, threadIdx.x, DISPATCH_THREADS);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, DISPATCH_THREADS);
  look(rings);
  __syncthreads();
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.returned_end = state->steps_composed - (where == TG_DISPATCH_BESIDE);
    tg_device.near_step = state->steps_collected < tg_device.returned_end ? state->steps_collected : TG_NO_STEP;
    tg_device.releases = 0;
    tg_device_turn.ends_something = 0;
    tg_device_turn.ends_soon = 0;
  }
  __syncthreads();
  bring(state, graphs);
  await_earlier_kernels();

  if (threadIdx.x < LANES) {
    take_turns(state, block, rings, next, where == TG_DISPATCH_BESIDE ? 0 : POLLS);
  } else {
    for (;;) {
      asm volatile("bar.sync %0, %1;" ::"n"(NEXT_BARRIER), "n"(DISPATCH_THREADS) : "memory");
      if (!next.again) break;
      __syncthreads();
    }
    if (threadIdx.x == LANES) launched = launch(next, graphs);
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
  let_next_kernel_start();
  await_earlier_kernels();
  tg_store(&rings->status.stage, stage);
}
