/* publish.h: events leave for the host, as many as fit. */
#pragma once

#include "sched/admit.h"

/* Lanes share the pending events that go out now: turn->publish of them, from the first unpublished on. */
TG_FN void tg_copy_events(tg_state *state, tg_rings *rings, uint32_t publish, uint32_t lane, uint32_t lanes) {
  const tg_event *pending = tg_pending(state) + state->pending_published;
  const uint32_t *samples = tg_words(state, state->pending_sample_table) + state->pending_published;
  const tg_sampled *sampled = tg_samples(state, &state->steps[tg_scratch(state)->sampled_place]);
  for (uint32_t i = lane; i < publish; i += lanes) {
    uint64_t number = state->events_published + i;
    *tg_event_at(rings, number) = pending[i];
    if (samples[i] != TG_NONE) *tg_sampled_at(rings, number) = sampled[samples[i]];
  }
}

/* With a step in flight, a core that runs ahead composes the next only as what it will be anyway: a decode row for each
 * running sequence. So nothing that comes of the step ahead (a sequence's end, its free place) is too late. */
TG_FN uint32_t tg_may_compose(const tg_state *state, const tg_turn *turn) {
  if (tg_in_flight(state) >= tg_most_in_flight(state)) return 0u;
  if (!tg_runs_ahead(state) || tg_in_flight(state) == 0u) return 1u;
  return TG_MUT(26, TG_COUNTED(turn->totals, TG_CANDIDATES) == state->running, 1);
}

/* Events that go out now, of so many that wait. More than may be may have yet to be read, since that many may have been once. */
TG_FN uint32_t tg_publishable(const tg_state *state, uint32_t waiting) {
  uint64_t most = TG_MUT(13, state->most_unread, state->most_unread + 1u);
  uint64_t unread = state->events_published - state->inputs.event_tail;
  uint64_t room = TG_MUT(60, most > unread, 1) ? most - unread : 0u;
  return waiting < room ? waiting : (uint32_t)room;
}

/* Phase: slots get their pages, new ones their biases, and events their ring entries. Until the last is out, nothing more is collected. */
TG_FN void tg_phase_publish(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  uint32_t left = turn->pending - state->pending_published;
  uint32_t publish = tg_publishable(state, left);
  tg_take_pages(state, lane, lanes);
  tg_take_biases(state, rings, lane, lanes);
  tg_keep_prompt(state, rings, lane, lanes);
  tg_copy_events(state, rings, publish, lane, lanes);
  if (lane != 0u) return;
  turn->publish = publish;
  turn->composing = TG_MUT(14, publish == left, 1) && tg_may_compose(state, turn);
  state->free_pages = turn->free_pages;
}

/* Lane 0 of the next phase, with every entry written, lets the host see all of them, and gives entries of requests and controls back. */
TG_FN void tg_release_events(tg_state *state, tg_rings *rings) {
  tg_turn *turn = tg_scratch(state);
  state->events_published += turn->publish;
  state->pending = turn->pending;
  state->pending_published += turn->publish;
  if (TG_MUT(15, state->pending_published == state->pending, turn->publish != 0u)) {
    state->pending = 0u;
    state->pending_published = 0u;
  }
  if (turn->publish != 0u) tg_release_later(&rings->event_head.value, state->events_published);
  if (turn->takes != 0u) tg_release_later(&rings->request_tail.value, state->requests_taken);
  if (turn->controls_taken != state->controls_taken) tg_release_later(&rings->control_tail.value, state->controls_taken);
}
