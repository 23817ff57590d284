/* routine.h: the turn that most turns are: a decode step has come back, all its sequences go on and nothing else is new. Then the next
 * step has the same rows one position on, and the host gets a token for each. Two short phases stand in for all others, the first of
 * which is all that the next step waits for: on a GPU some hundred instructions instead of some thousand.
 *
 * Where several steps may be in flight, each sequence has to be a step of its own: with more sequences nobody waits for a turn. */
#pragma once

#include "sched/compose.h"

/* Whether the front of the queue, if there is one, goes on waiting. */
TG_FN uint32_t tg_front_waits(tg_state *state) {
  uint64_t number = state->requests_taken;
  if (number == state->requests_seen) return 1u;
  const tg_request *front = tg_waiting_at(state, number);
  if (tg_front_end(state, front, *tg_seen_at(state, number)) != TG_END_NONE) return 0u;
  if (tg_free_slot(state) == TG_NONE) return 1u;
  const tg_share share = tg_share_of(state, front);
  if (share.in_the_way != TG_NONE) return 0u;
  return share.pages > state->free_pages && TG_MUT(67, !tg_some_can_go(state, share.base), 1);
}

/* Whether each sequence that runs is a decode step of its own in flight. */
TG_FN uint32_t tg_each_is_a_step(tg_state *state) {
  if (tg_runs_ahead(state) || tg_in_flight(state) != state->running) return 0u;
  uint32_t all = 1u;
  for (uint64_t number = state->steps_collected; number < state->steps_composed; number++) {
    const tg_step *step = tg_step_at(state, number);
    all &= (step->rows == 1u) & TG_MUT(55, step->decode_rows == 1u, 1u);
  }
  return all;
}

/* Lane 0: whether nothing is new but the step, its events have room, and every slot in use is in it. All is read before it decides. */
TG_FN uint32_t tg_only_step_is_new(tg_state *state, const tg_rings *rings) {
  const tg_inputs *inputs = &state->inputs;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  uint64_t unread = state->events_published - inputs->event_tail;
  uint32_t is_all = (tg_in_flight(state) == 1u) & (step->decode_rows == step->rows) & (step->rows == state->running);
  uint32_t alone = (inputs->returned == 1u) & (tg_most_in_flight(state) == 1u ? is_all : tg_each_is_a_step(state));
  uint32_t all_decode = (state->prefill == 0u) & (state->leaving == TG_NONE) & TG_MUT(68, state->going == 0u, 1u);
  uint32_t room = (state->pending == 0u) & TG_MUT(28, step->rows + unread <= state->most_unread, 1);
  uint32_t nothing_new = TG_MUT(29, inputs->request_head == state->requests_seen, 1) &
                         TG_MUT(30, inputs->control_head == state->controls_taken, 1);
  return (alone & all_decode & room & nothing_new) && tg_is_open(state, rings) && TG_MUT(31, tg_front_waits(state), 1);
}

/* Whether a row's slot will want pages with the token that has come back, by the rule of tg_note_wanting. */
TG_FN uint32_t tg_row_wants_pages(const tg_state *state, const tg_returned_row *returned) {
  uint64_t tokens = (uint64_t)returned->prompt_tokens + returned->generated + 2u;
  return tg_wants_pages(state, returned->pages, tokens, tg_all_tokens(returned->prompt_tokens, returned->max_new_tokens));
}

/* Phase: finds out whether this turn is routine, and clears what other turns start from. Lanes share the returned decode rows, or the
 * steps in flight. */
TG_FN void tg_phase_routine(tg_state *state, const tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  const uint64_t first = state->steps_collected;
  const tg_step *step = tg_step_at(state, first);
  for (uint32_t word = lane; word < TG_MAX_SLOTS / 32u; word += lanes) turn->wanting[word] = 0u;
  if (lane == 0u) {
    turn->back.slot = TG_NONE;
    turn->some_want = 0u;
    turn->preempted_ends = 0u;
    turn->only_step_is_new = tg_only_step_is_new(state, rings);
  }
  if (!state->inputs.returned || tg_runs_ahead(state)) return;
  /* With several steps in flight more rows than one each are no routine turn's (tg_each_is_a_step). */
  const uint32_t several = tg_most_in_flight(state) != 1u;
  const uint32_t rows = several ? tg_min(step->decode_rows, 1u) : step->decode_rows;
  uint32_t asks = 0u;
  for (uint32_t row = lane; row < rows; row += lanes) {
    const tg_returned_row returned = tg_returned_row_at(state, step, row);
    uint32_t stopped = state->inputs.stopped[returned.slot / 32u] >> (returned.slot % 32u) & 1u;
    asks |= TG_MUT(32, stopped, 0u) | (returned.end_reason != TG_END_NONE) |
            TG_MUT(33, returned.generated + 1u >= returned.max_new_tokens, 0) |
            TG_MUT(34, state->inputs.now_ns >= returned.deadline_ns, 0) | TG_MUT(48, tg_row_wants_pages(state, &returned), 0);
  }
  for (uint64_t number = first + 1u + lane; several && number < state->steps_composed; number += lanes) {
    const tg_step *other = tg_step_at(state, number);
    if (other->rows != 1u) continue;
    const tg_returned_row row = tg_read_returned_row(state, other, 0u);
    asks |= (row.end_reason != TG_END_NONE) | TG_MUT(56, state->inputs.now_ns >= row.deadline_ns, 0) |
            TG_MUT(57, tg_row_wants_pages(state, &row), 0);
  }
  if (asks) tg_set_bits(&turn->asks_more, 1u);
}

/* First phase of a routine turn: all that the next step's kernels read, and all that is read of what the last one's have written. The
 * rows stay in their place, or go to that of another step, which then has the one row. */
TG_FN void tg_phase_advance(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  const tg_step *step = tg_step_at(state, state->steps_collected);
  tg_step *next = tg_step_at(state, state->steps_composed);
  for (uint32_t row = lane; row < step->rows; row += lanes) {
    const tg_returned_row returned = tg_returned_row_at(state, step, row);
    uint32_t position = returned.prompt_tokens + returned.generated; /* of the new token */
    tg_slots(state)[returned.slot].last_token = tg_token_at(state, step, row);
    if (next == step) {
      tg_rows(state, next)[row].position = position;
      tg_sequences(state, next)[row].first_position = position;
    } else {
      tg_fill_decode_row(state, next, row, returned.slot, position, -1);
    }
    if (returned.logprobs == TG_LOGPROBS_NONE) continue;
    *tg_sampled_at(rings, state->events_published + row) = tg_samples(state, step)[row];
  }
  if (next != step) {
    uint32_t slot = tg_rows(state, step)[0].slot;
    for (uint32_t i = lane; i < state->config.slots; i += lanes) {
      tg_words(state, next->slot_sequence_table)[i] = TG_MUT(58, i == slot ? 0u : TG_NONE, 0u);
    }
    if (lane == 0u) {
      next->kind = TG_KIND_DECODE;
      next->bucket = step->bucket;
      next->bucket_rows = step->bucket_rows;
      next->rows = next->decode_rows = next->sequences = next->sample_rows = 1u;
      next->shares = 0u;
    }
  }
  if (lane != 0u) return;
  next->number = state->steps_composed;
  next->start_ns = state->inputs.now_ns;
}

/* Second phase of a routine turn: the rows' tokens go to the ring. */
TG_FN void tg_phase_deliver(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  /* Where it has advanced in its own place, what is read here is as it was. */
  const tg_step *step = tg_step_at(state, state->steps_collected);
  uint64_t now_ns = state->inputs.now_ns;
  for (uint32_t row = lane; row < step->rows; row += lanes) {
    const tg_returned_row returned = tg_returned_row_at(state, step, row);
    int32_t token = tg_token_at(state, step, row);
    *tg_event_at(rings, state->events_published + row) =
        tg_token_event(returned.request, now_ns, returned.logprobs, token, returned.generated, state->steps_collected);
    tg_slot *slot = &tg_slots(state)[returned.slot];
    slot->generated = returned.generated + 1u;
    if (TG_MUT(49, returned.flags & TG_REQUEST_UNLIMITED, 0u)) {
      tg_kept(state, returned.slot)[returned.prompt_tokens + returned.generated] = token;
    }
    if (returned.first_ns == 0u) slot->first_ns = now_ns;
  }
  if (lane != 0u) return;
  turn->open = 1u;
  turn->totals = 0u;
  turn->returned_step = state->steps_collected;
  turn->requests_seen = state->requests_seen;
  turn->controls_taken = state->controls_taken;
  turn->takes = 0u;
  turn->taken = 0u;
  turn->going = 0u;
  turn->skipped = 0u;
  turn->marked = TG_NONE;
  turn->recomputed = 0u;
  turn->publish = step->rows;
  turn->composed = 1u;
  /* Going round the same slots it comes back to where it stands; past one of several it goes on from there. */
  turn->next_cursor = tg_most_in_flight(state) == 1u ? state->decode_cursor : tg_rows(state, step)[0].slot + 1u;
}
