/* sched.c: the scheduler core. A turn collects the step that came back, publishes its events, admits waiting requests and composes the
 * next step. It is phases over lanes, with a barrier between phases. On a GPU lanes are the threads of the dispatcher kernel, which
 * includes this file; on the host they are a loop. What happens where:
 *
 *   gather    inputs.h    clock, ring indices, the returned step          (live turns only)
 *   stopped   inputs.h    which of its tokens are stop ids                (live turns only)
 *   claim     inputs.h    requests of the queue that it shares with other replicas, where it has one (live turns only)
 *   routine   routine.h   where nothing is new but a decode step, two phases stand in for all from collect to fill
 *   collect   collect.h   cancels, returned rows and deadlines of each slot
 *   groups    turn.h      sums of counts over groups of lanes
 *   place     collect.h   events and ended slots get their places
 *   admit     admit.h     pages come back, and go to slots that want more (grow.h); requests get slots, strictly in order
 *   publish   admit.h     slots get their pages; events go to the ring as far as it has room
 *   compose   compose.h   decode rows; the plan of the prompt chunks
 *   fill      compose.h   the chunks' rows; the step's head
 *   finish    finish.h    tails handed back, outcome, action
 *
 * No libc, no floating point, no recursion, no pointer into a heap. */
#include "sched/layout.h"

#include "sched/finish.h"
#include "sched/handover.h"

#define TG_CLAIM_PHASE 2u /* does nothing but where tg_claims_now */
#define TG_COLLECT_PHASE 4u
#define TG_DELIVER_PHASE 5u /* of a routine turn, the last but the finish */
#define TG_FINISH_PHASE 11u

TG_API void tg_phase(tg_state *state, tg_rings *rings, uint64_t now_ns, uint32_t phase, uint32_t lane,
                     uint32_t lanes) {
  if (phase >= TG_COLLECT_PHASE && phase < TG_FINISH_PHASE && tg_is_routine(state)) {
    if (phase == TG_COLLECT_PHASE) tg_phase_advance(state, rings, lane, lanes);
    if (phase == TG_DELIVER_PHASE) tg_phase_deliver(state, rings, lane, lanes);
    return;
  }
  switch (phase) {
    case 0u: tg_phase_gather(state, rings, now_ns, lane, lanes); break;
    case 1u: tg_phase_stopped(state, lane, lanes); break;
    case 2u: tg_phase_claim(state, lane); break;
    case 3u: tg_phase_routine(state, rings, lane, lanes); break;
    case 4u: tg_phase_collect(state, rings, lane, lanes); break;
    case 5u: tg_phase_groups(state, lane, lanes); break;
    case 6u: tg_phase_place(state, lane, lanes); break;
    case 7u: tg_phase_admit(state, lane, lanes); break;
    case 8u: tg_phase_publish(state, rings, lane, lanes); break;
    case 9u: tg_phase_compose(state, rings, lane, lanes); break;
    case 10u: tg_phase_fill(state, rings, lane, lanes); break;
    case 11u: tg_phase_finish(state, rings, lane); break;
    default: break;
  }
}
