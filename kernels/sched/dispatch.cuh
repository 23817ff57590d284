/* dispatch.cuh: the scheduler core as a kernel's body: one turn of the core, and the launch of what comes next. It is the
 * last node of a step (of its last stage's graph), which it collects, and the only node of the idle graph.
 *
 * One stage. The idle graph starts a chain: it launches a step's graph inside its own run (fire and forget), and itself
 * behind all of that (tail launch). Each step's dispatcher launches the next step's graph beside its own (a sibling): that one
 * comes onto the GPU while the turn goes on, and its first kernel waits until the turn has composed the step (tg_chain.open).
 * Where nothing is to be done, TG_CHAIN_STEPS are launched, or the GPU refuses a graph, the chain ends and the idle graph runs again.
 *
 * Several stages on this GPU, and to compare with the steps of one, follow each other by tail launches (TAIL).
 *
 *   threads         do                                           wait on                            signal
 *   lanes           take the turn; a lane is a thread            grid dependency, START_BARRIER     NEXT_BARRIER, open, settled
 *   launching warp  launches the graph that comes next           NEXT_BARRIER                       START_BARRIER, AGAIN_BARRIER
 *
 * Cost: one block, a barrier for each phase; nothing here scales with the model. In a routine turn the launching warp knows what comes
 * next before the turn begins: all but the sampled tokens and the time is known while the step still runs (is_calm). */
#pragma once

#define TG_ONE_IN_FLIGHT 1
#include "sched/device.cuh"

constexpr int NEXT_BARRIER = LANES_BARRIER + 1, AGAIN_BARRIER = LANES_BARRIER + 2, START_BARRIER = LANES_BARRIER + 3;

/* What the launching warp is to do. */
struct Next {
  uint32_t action; /* TG_ACTION_* */
  uint32_t kind, bucket;
  uint32_t number; /* of the step, modulo 2^32 */
  uint32_t again;  /* nothing: the lanes take another turn */
};

/* All lanes, once a turn: signals the launching warp what comes next, and goes on. */
__device__ inline void decide(Next &next, Next what) {
  if (threadIdx.x == 0) next = what;
  arrive_at_barrier<NEXT_BARRIER, TG_DISPATCH_THREADS>();
}

/* The result of a routine turn: the step that has come back, once more. */
__device__ inline Next routine_next(tg_state *state) {
  return Next{TG_ACTION_STEP, TG_KIND_DECODE, state->steps[0].bucket, (uint32_t)state->steps_composed, 0};
}

/* All lanes: the kernels of step `number` may begin. Its descriptor goes before the rest of the head. */
__device__ inline void open_step(const tg_state *state, tg_state *block, tg_chain *chain, uint64_t number) {
  static_assert(offsetof(tg_state, steps) % sizeof(uint4) == 0 && sizeof(tg_step) % sizeof(uint4) == 0, "copied in 16s");
  const uint32_t place = tg_step_place(state, number);
  copy(&block->steps[place], &state->steps[place], sizeof(tg_step), threadIdx.x, LANES);
  lanes_barrier();
  if (threadIdx.x == 32) store_release(&chain->open, number + 1); /* the first warp has more to do */
}

/* Before the wait: whether the turn will be routine if its clock and the sampled tokens let it (routine.h). */
__device__ inline bool is_calm(const tg_state *state) {
  const tg_step *step = &state->steps[0];
  const bool alone = tg_device.returned_end == state->steps_collected + 1;
  const bool all_decode = step->decode_rows == step->rows && step->rows == state->running;
  return alone && all_decode && step->rows <= LANES && only_a_step_is_new(state, step->rows);
}

/* Whether row `row` of the step, if it has so many, lets the turn be routine. More stop ids than its copy holds lie in its slot, which a
 * calm turn that claims may give to another request while the launching warp looks. */
__device__ inline bool row_is_calm(const tg_state *state, uint32_t row) {
  if (row >= state->steps[0].rows || row >= LANES) return true;
  const tg_returned_row &returned = tg_device_rows[row];
  return (!tg_claims(state) || TG_MUT(171, returned.stop_count <= TG_ROW_STOP_IDS, true)) && row_is_calm(state, returned);
}

/* After the wait, the launching warp: whether they do, in a calm turn of `rows` rows. Nothing is read here that the lanes may write
 * meanwhile: `rows` was read before they began. */
__device__ inline bool goes_on(tg_state *state, uint32_t rows, uint64_t now) {
  constexpr uint32_t ROUNDS = LANES / 32;
  __shared__ int32_t tokens[ROUNDS][32];
  const tg_sampled *samples = tg_samples(state, &state->steps[0]);
  const uint32_t lane = threadIdx.x % 32;
  int32_t mine[ROUNDS]; /* all loaded at once */
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) mine[i] = 32 * i + lane < rows ? samples[32 * i + lane].token : 0;
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) tokens[i][lane] = mine[i];
  bool ends = false;
#pragma unroll 1
  for (uint32_t row = lane; row < TG_MUT(170, rows, state->steps[0].rows); row += 32) {
    ends |= !row_goes_on(state, tg_device_rows[row], tokens[row / 32][lane], now);
  }
  return !__any_sync(0xffffffffu, ends);
}

/* All lanes: one turn, behind which the kernels of the step that it composes may begin. `last`: else the idle graph follows. */
__device__ inline Next turn(tg_state *state, tg_state *block, tg_rings *rings, tg_chain *chain, Next &next, uint64_t start_ns,
                            bool last) {
  bool opened = false;
  auto decided = [&] { decide(next, routine_next(state)); };
  auto advanced = [&] {
    /* Tokens of more rows than lanes are read once more, where the next step's kernels will write. */
    opened = state->steps[0].rows <= LANES;
    if (opened) open_step(state, block, chain, state->steps_composed);
  };
  const bool routine = run_phases(state, rings, start_ns, decided, advanced);
  const tg_outcome *outcome = &state->outcome;
  const bool waits = outcome->action == TG_ACTION_IDLE || outcome->action == TG_ACTION_BLOCKED;
  const Next what = {outcome->action, outcome->kind, outcome->bucket, (uint32_t)outcome->step, waits && !last};
  if (!routine) decide(next, what);
  if (what.action == TG_ACTION_STEP && !opened) open_step(state, block, chain, outcome->step);
  return what;
}

/* Launches the next step's graph beside this one, with one stage. False where the GPU refused what nothing else would launch. */
__device__ inline bool launch_step(const Next &next, const tg_graphs *graphs, tg_chain *chain, bool idle) {
  const uint64_t graph = graphs->step[next.number % TG_COPIES][0][next.kind][next.bucket];
  if (idle) {
    chain->launched = 1;
    return launch(graph, cudaStreamGraphFireAndForget) && launch(graphs->idle, cudaStreamGraphTailLaunch);
  }
  if (chain->launched == TG_CHAIN_STEPS) return true; /* the idle graph goes on with it */
  chain->launched++;
  /* The graph ran two steps ago, and where a step takes but a few microseconds it may not have left the GPU, which then refuses. So it does
   * while another process has the GPU: then the chain ends here, and the idle graph launches this step. */
  const uint64_t start = now_ns();
  while (!launch(graph, cudaStreamGraphFireAndForgetAsSibling) && now_ns() - start <= LEAVING_NS) {
  }
  return true;
}

/* Launches what a turn decided. `idle`: this is the idle graph's dispatcher. False where the GPU refused. */
template <bool TAIL> __device__ inline bool launch(const Next &next, const tg_graphs *graphs, tg_chain *chain, bool idle) {
  switch (next.action) {
    case TG_ACTION_STEP:
      if constexpr (TAIL) {
        for (uint64_t stage = 0; stage < graphs->stages; stage++)
          if (!launch(graphs->step[0][stage][next.kind][next.bucket], cudaStreamGraphTailLaunch)) return false;
        return true;
      } else {
        return launch_step(next, graphs, chain, idle);
      }
    case TG_ACTION_IDLE:
    case TG_ACTION_BLOCKED:
      /* Behind a chain's steps it is launched already. */
      return (!TAIL && !idle) || launch(graphs->idle, cudaStreamGraphTailLaunch);
    default: return true;
  }
}

/* Prefetches what a turn will read, since the step that runs has read more weights than the cache holds. */
__device__ inline void prefetch_turn(tg_state *state, const tg_graphs *graphs) {
  const uint32_t t = threadIdx.x;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  if (t < tg_device.rows_held) tg_device_rows[t] = tg_read_returned_row(state, step, t);
  if (t < step->sample_rows) prefetch_line(&tg_samples(state, step)[t]);
  if (t < state->config.slots) prefetch_line(&tg_slots(state)[t].phase);
  if (t < TG_COPIES) prefetch_line(graphs->step[t][0][TG_KIND_DECODE]);
  if (t == TG_COPIES) prefetch_line(graphs);
}

/* The lanes: turns until there is something for the launching warp to do, or POLLS more than one were in vain. */
__device__ inline void take_turns(tg_state *state, tg_state *block, tg_rings *rings, tg_chain *chain, Next &next,
                                  uint64_t &start_ns) {
  uint32_t pause_ns = FIRST_PAUSE_NS;
  wait_at_barrier<START_BARRIER, TG_DISPATCH_THREADS>();
  for (uint32_t poll = 0;; poll++) {
    const Next what = turn(state, block, rings, chain, next, start_ns, poll == POLLS);
    /* While the first warp releases what this turn stored for the host, the others store the state's head. */
    if (threadIdx.x == 0) tg_trace_write(state, rings, now_ns(), 0);
    lanes_barrier();
    if (threadIdx.x == 0) tg_flush();
    if (!what.again) {
      if (threadIdx.x >= 32) copy(block, state, HEAD_BYTES, threadIdx.x - 32, LANES - 32);
      return;
    }
    /* until the launching warp has seen that there is nothing for it */
    wait_at_barrier<AGAIN_BARRIER, TG_DISPATCH_THREADS>();
    if (state->outcome.changed) {
      pause_ns = FIRST_PAUSE_NS; /* it found something new, so there may be more at once */
    } else {
      __nanosleep(pause_ns);
      pause_ns = min(2 * pause_ns, LAST_PAUSE_NS);
    }
    look(rings, state);
    if (threadIdx.x == 0) start_ns = now_ns();
    lanes_barrier();
  }
}

/* `where`: TG_DISPATCH_*. `layout`: a copy of the rings' head in device memory. All steps that were composed have come back, but for one
 * that a full chain has left to the idle graph. No kernel of a step writes the state's head, nor what is read of a decode row, so both
 * are loaded while they still run. */
template <bool TAIL>
static __device__ __forceinline__ void dispatch(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs,
                                         tg_chain *chain, uint32_t where) {
  __shared__ Next next;
  __shared__ bool launched;
  __shared__ uint64_t start_ns; /* of the turn */
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  const bool idle = where == TG_DISPATCH_IDLE;
  let_next_kernel_start();
  if (threadIdx.x == 0) await_settled(&chain->settled, &chain->open);
  __syncthreads();
  copy(state, block, HEAD_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  look(rings, block);
  __syncthreads();
  /* The chain ended with all that was to do: the idle graph had been launched before. */
  const bool over = state->outcome.action == TG_ACTION_DONE || state->error != TG_ERROR_NONE;
  if (idle && over) return;
  const bool left = idle && load_acquire(&chain->begun) < load_acquire(&chain->open); /* a step by the chain before this one */
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.returned_end = state->steps_composed;
    tg_device.rows_held = tg_in_flight(state) != 0 ? min(tg_step_at(state, state->steps_collected)->decode_rows, LANES) : 0;
    tg_device.releases = 0;
    tg_device_turn.asks_more = 0;
    launched = true;
    /* a bug of the host */
    if (state->config.steps_in_flight != tg_most_in_flight(state) || state->config.ahead) __trap();
    if (state->claimer.queue && !tg_claims(state)) __trap();
    if (left) next = {TG_ACTION_STEP, state->outcome.kind, state->outcome.bucket, (uint32_t)state->outcome.step, 0};
  }
  __syncthreads();
  if (!left) prefetch_turn(state, graphs);
  const bool chained = !TAIL && !idle;
  const bool calm = __syncthreads_and(chained && row_is_calm(state, threadIdx.x) && (threadIdx.x != 0 || is_calm(state)));
  await_earlier_kernels();

  if (left) {
    if (threadIdx.x == LANES) launched = launch<TAIL>(next, graphs, chain, idle);
  } else if (threadIdx.x < LANES) {
    take_turns(state, block, rings, chain, next, start_ns);
  } else {
    const uint64_t now = __shfl_sync(0xffffffffu, now_ns(), 0);
    /* before the lanes change anything */
    const Next foreseen = routine_next(state);
    const uint32_t rows = state->steps[0].rows;
    if (threadIdx.x == LANES) start_ns = now;
    arrive_at_barrier<START_BARRIER, TG_DISPATCH_THREADS>();
    const bool sooner = calm && goes_on(state, rows, now);
    if (sooner && threadIdx.x == LANES) launched = launch<TAIL>(foreseen, graphs, chain, idle);
    for (;;) {
      wait_at_barrier<NEXT_BARRIER, TG_DISPATCH_THREADS>();
      if (!next.again) break;
      arrive_at_barrier<AGAIN_BARRIER, TG_DISPATCH_THREADS>();
    }
    if (sooner) {
      /* a bug: the graph that is launched already is not that of the step */
      if (next.action != TG_ACTION_STEP || next.kind != foreseen.kind || next.bucket != foreseen.bucket || next.number != foreseen.number)
        __trap();
    } else if (threadIdx.x == LANES) {
      launched = launch<TAIL>(next, graphs, chain, idle);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!launched) {
    block->error = TG_ERROR_LAUNCH;
    tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
  }
  /* A step that the chain had left has settled before. Its dispatcher waits for nothing here, and may have settled more by now. */
  if (TG_MUT(174, !left, true)) store_release(&chain->settled, state->steps_composed);
}

/* The dispatcher NAME, whose graphs follow each other by tail launches if TAIL. */
#define DISPATCHER(NAME, TAIL)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(TG_DISPATCH_THREADS)                                                              \
      NAME(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_chain *chain, uint32_t where) { \
    dispatch<TAIL>(block, rings, layout, graphs, chain, where);                                                                  \
  }
