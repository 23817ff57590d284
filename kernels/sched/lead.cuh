/* lead.cuh: the turns of stage 0's dispatcher (stages.cu). It takes what comes back from the last stage, takes a turn of the core, and
 * launches its next step's graph: once the turn has composed the step, or at the token where that step is foreseen.
 *
 *   threads           do                                               wait on                         signal
 *   lanes             take turns of the core, open and announce steps  results, host's indices         opened (release)
 *   thread 0          also polls the links, gives the warp its order   links                           order, links, action
 *   launching warp    launches a graph                                 order                           none
 *
 * While steps are in flight and nothing is new, a few threads poll: what comes back finds nobody in the middle of an idle turn. */
#pragma once

#include "sched/device.cuh"

constexpr uint32_t LOOKS_A_TURN = 16; /* that find nothing, until it takes a turn all the same */

enum Order : uint32_t { NO_ORDER, LAUNCH_STEP, LAUNCH_IDLE, LAUNCH_NOTHING }; /* to the launching warp */

/* What stage 0's dispatcher works on in shared memory. */
struct Near {
  tg_links links;
  uint64_t start_ns;    /* of the turn */
  uint64_t released;    /* thread 0's: places of the link that comes in that were released */
  uint64_t graph;       /* to be launched */
  tg_returned_row row;  /* of the step that comes back next, where `foreseen` */
  uint32_t order;       /* thread 0 writes it once, its other words before */
  uint32_t answer;      /* TG_LINK_*, to thread 0 */
  uint32_t pause_ns;    /* thread 0's */
  uint32_t bucket;      /* of the step that comes back next */
  bool foreseen;        /* the step behind that is the same one position on, unless its token says otherwise */
  bool idle;            /* this is the idle graph's dispatcher */
  bool launched;        /* false: the GPU refused what nothing else would launch */
};
static_assert(sizeof(tg_links) % sizeof(uint4) == 0 && offsetof(tg_stage, links) % sizeof(uint4) == 0 &&
                  sizeof(tg_step) % sizeof(uint4) == 0,
              "copied in 16s");

/* Thread 0, once: gives the launching warp its order. */
__device__ inline void give_order(Near &near, Order order, uint64_t graph = 0) {
  if (TG_MUT(176, false, true)) *static_cast<volatile uint32_t *>(&near.order) = order;
  near.graph = graph;
  __threadfence_block();
  *static_cast<volatile uint32_t *>(&near.order) = order;
}

/* The launching warp's first thread waits for its order and follows it. */
__device__ inline void follow_order(tg_stage *stage, const tg_graphs *graphs, Near &near) {
  uint32_t order;
  do {
    order = *static_cast<volatile uint32_t *>(&near.order);
  } while (order == NO_ORDER);
  __threadfence_block();
  if (order == LAUNCH_STEP) near.launched = launch_step(stage, graphs, near.graph, near.idle);
  if (order == LAUNCH_IDLE) near.launched = launch(graphs->idle, cudaStreamGraphTailLaunch);
}

/* Thread 0, while steps are in flight: whether the step behind the next that comes back is known but for a token, since every sequence
 * is a step of its own, all go on, and nothing else is new. */
__device__ inline bool foresees(tg_state *state, Near &near) {
  const uint64_t first = state->steps_collected, in_flight = tg_in_flight(state);
  if (in_flight == 0 || in_flight != state->running || near.links.in.count != first || !only_a_step_is_new(state, 1)) return false;
  for (uint64_t number = first; number < first + in_flight; number++) {
    const tg_step *step = tg_step_at(state, number);
    if (step->rows != 1 || step->decode_rows != 1) return false;
    const tg_returned_row row = tg_read_returned_row(state, step, 0);
    if (!row_is_calm(state, row)) return false;
    if (number == first) {
      near.row = row;
      near.bucket = step->bucket;
    }
  }
  return true;
}

/* Thread 0, when a foreseen step has come back: launches the next one's graph if it goes on. */
__device__ inline void launch_foreseen(tg_state *state, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  const tg_link_end &in = near.links.in;
  tg_acquire(&in.theirs->count);
  const uint64_t *place = tg_link_place(&in);
  const int32_t token = reinterpret_cast<const tg_sampled *>(reinterpret_cast<const char *>(place) + TG_PLACE_ALIGN)->token;
  const uint64_t now = now_ns();
  if (tg_read(place) != in.count || !row_goes_on(state, near.row, token, now)) return;
  near.start_ns = now; /* the turn's too, so that no deadline lies between */
  give_order(near, LAUNCH_STEP, graph_of(graphs, stage, TG_KIND_DECODE, near.bucket));
}

/* All lanes: what the steps that have come back have sampled goes to their tables. Their places are released only once the turn is
 * through (take_turns), since a release waits for the link. Whether the links go on. */
__device__ inline bool collect(tg_state *state, Near &near) {
  uint32_t answer;
  do {
    if (threadIdx.x == 0) near.answer = tg_links_take(&near.links, now_ns());
    lanes_barrier();
    answer = near.answer;
    lanes_barrier();
    if (answer != TG_LINK_READY) break;
    tg_get_results(state, tg_link_place(&near.links.in), threadIdx.x, LANES);
    lanes_barrier();
    if (threadIdx.x == 0) {
      near.links.in.holds = 0;
      tg_link_goes_on(&near.links.in);
    }
    lanes_barrier();
  } while (near.links.in.known != near.links.in.count); /* another look would go to the host, for its stop flag */
  if (threadIdx.x == 0) tg_device.returned_end = near.links.in.count;
  /* The host's stop is the core's to see too. */
  return answer != TG_LINK_OVER || (near.links.ended & 0xffffu) == TG_LINK_STOPPED;
}

/* All lanes: step `number`, which the turn has composed, is what the next graph runs, and its kernels may begin. */
__device__ inline void open_step(const tg_state *state, tg_stage *stage, const Near &near, uint64_t number) {
  copy(&stage->step, &state->steps[tg_step_place(state, number)], sizeof(tg_step), threadIdx.x, LANES);
  copy(&stage->links, &near.links, sizeof(tg_links), threadIdx.x, LANES);
  if (threadIdx.x == 0) stage->goes_to = tg_link_place(&near.links.out);
  lanes_barrier();
  if (threadIdx.x == 0) store_release(&stage->opened, number + 1);
}

/* All lanes wait until a step comes back, one of the host's indices moves, or a turn is due. */
__device__ inline void wait_for_news(tg_state *state, const tg_rings *rings, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  const tg_inputs *seen = &state->inputs;
  for (uint32_t looks = 0; looks < LOOKS_A_TURN; looks++) {
    if (threadIdx.x == 0) {
      near.answer = watch(near.links.in, near.pause_ns);
      if (near.answer && near.foreseen) launch_foreseen(state, graphs, stage, near);
      near.pause_ns = min(2 * near.pause_ns, LAST_PAUSE_NS);
    }
    lanes_barrier();
    /* That step is taken with what the host's indices were a moment ago. */
    if (near.answer) return;
    look(rings, state);
    lanes_barrier();
    if ((uint32_t)tg_device.flags != seen->flags || tg_device.control_head != seen->control_head ||
        tg_device.request_head != seen->request_head || tg_device.event_tail != seen->event_tail ||
        tg_device.trace_tail != seen->trace_tail)
      return;
  }
}

/* All lanes take turns until a step is opened, the run ends, or the idle graph should go on. Whether a step was opened. */
__device__ inline bool take_turns(tg_state *state, tg_rings *rings, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  for (uint32_t poll = 0;; poll++) {
    const bool goes_on = collect(state, near);
    const bool foreseen = near.order == LAUNCH_STEP;
    if (threadIdx.x == 0 && !foreseen) near.start_ns = now_ns();
    lanes_barrier();
    if (!goes_on) {
      if (threadIdx.x == 0) {
        state->error = TG_ERROR_LINK;
        tg_store(&rings->status.ended, near.links.ended);
        tg_release(&rings->action.value, (uint64_t)TG_ERROR_LINK << 32 | TG_ACTION_ERROR);
      }
      if (foreseen) __trap(); /* its graph would wait for ever; only a place that holds the wrong step comes here */
      return false;
    }
    auto advanced = [&] { open_step(state, stage, near, state->steps_composed); };
    const bool routine = run_phases(state, rings, near.start_ns, [] {}, advanced);
    const tg_outcome &outcome = state->outcome;
    const uint32_t action = outcome.action;
    /* a bug: the graph that is launched already is not that of the step */
    if (foreseen && (action != TG_ACTION_STEP || outcome.kind != TG_KIND_DECODE || outcome.bucket != near.bucket)) __trap();
    if (action == TG_ACTION_STEP) {
      if (!routine) open_step(state, stage, near, outcome.step);
      if (threadIdx.x == 0 && !foreseen) give_order(near, LAUNCH_STEP, graph_of(graphs, stage, outcome.kind, outcome.bucket));
    }
    if (threadIdx.x == 0) {
      tg_trace_write(state, rings, now_ns(), 0);
      tg_flush();
      if (near.released != near.links.in.count) {
        near.released = near.links.in.count;
        tg_release(&near.links.in.mine->count, near.released);
      }
      if (action == TG_ACTION_ERROR) tg_links_end(&near.links, TG_LINK_FAILED);
      if (action == TG_ACTION_DONE) tg_links_end(&near.links, state->inputs.flags & TG_INPUT_STOP ? TG_LINK_STOPPED : TG_LINK_DRAINED);
    }
    if (action == TG_ACTION_STEP) {
      /* Where the links are over, the next turn finds out. */
      announce(state, near.links, *tg_step_at(state, outcome.step));
      return true;
    }
    if (action == TG_ACTION_DONE || action == TG_ACTION_ERROR) return false;
    /* Where steps are on their way one of them comes back before long, or the links end. */
    if (poll == (tg_in_flight(state) == 0 ? POLLS : LINK_POLLS) / LOOKS_A_TURN) {
      if (near.idle && threadIdx.x == 0) give_order(near, LAUNCH_IDLE);
      return false;
    }
    if (outcome.changed) { /* there may be more at once */
      if (threadIdx.x == 0) near.pause_ns = FIRST_PAUSE_NS;
      look(rings, state);
      lanes_barrier();
    } else {
      if (threadIdx.x == 0) near.foreseen = foresees(state, near);
      wait_for_news(state, rings, graphs, stage, near);
    }
  }
}
