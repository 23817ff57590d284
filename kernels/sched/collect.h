/* collect.h: the returned step's tokens, which slots end, and where each event goes. */
#pragma once

#include "sched/grow.h"

TG_FN uint32_t tg_cancels(const tg_state *state, tg_rings *rings, uint64_t request) {
  const tg_control *controls = (const tg_control *)tg_at(rings, tg_layout(rings)->controls);
  for (uint64_t n = state->controls_taken; n < state->inputs.control_head; n++) {
    if (controls[n & (tg_layout(rings)->control_capacity - 1u)].request == request) return 1u;
  }
  return 0u;
}

/* Own request `n`, which this turn has claimed: what of its time is left, the queue's number of it, and the host's notice. */
TG_FN void tg_observe_claimed(tg_state *state, uint64_t n) {
  tg_claimer *claimer = &state->claimer;
  tg_request *waiting = tg_waiting_at(state, n);
  tg_claimed *notice = &claimer->claims[n & (claimer->claim_capacity - 1u)];
  uint64_t number = claimer->first + (n - state->requests_seen);
  uint64_t waited = state->inputs.now_ns - claimer->seen[number & (claimer->capacity - 1u)];
  *tg_number_at(state, n) = number;
  *waiting = claimer->requests[number & (claimer->capacity - 1u)];
  if (waiting->timeout_ns != TG_NO_TIMEOUT && TG_MUT(161, 1, 0)) {
    waiting->timeout_ns = waiting->timeout_ns > waited ? waiting->timeout_ns - waited : 0u;
  }
  notice->number = number;
  notice->waited_ns = waited;
}

/* Lanes share the queue: new requests get their time and are copied out of the ring, and waiting ones get their cancel bits. */
TG_FN void tg_observe(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  const tg_inputs *inputs = &state->inputs;
  const tg_control *controls = (const tg_control *)tg_at(rings, tg_layout(rings)->controls);
  for (uint64_t n = state->requests_seen + lane; n < inputs->request_head; n += lanes) {
    *tg_seen_at(state, n) = inputs->now_ns;
    if (tg_claims(state)) {
      tg_observe_claimed(state, n);
    } else {
      *tg_waiting_at(state, n) = *tg_request_at(rings, n);
    }
  }
  for (uint64_t n = state->controls_taken + lane; n < inputs->control_head; n += lanes) {
    uint64_t request = controls[n & (tg_layout(rings)->control_capacity - 1u)].request;
    if (request >= state->requests_taken && request < inputs->request_head) {
      tg_set_bits(tg_cancel_word(state, request), tg_cancel_bit(state, request));
    }
  }
}

/* One slot's part of the returned step. Returns the slot's note where there is a token event, else 0. */
TG_FN uint32_t tg_collect_sequence(tg_state *state, const tg_step *step, const tg_sequence *sequence, tg_slot *slot) {
  const tg_inputs *inputs = &state->inputs;
  if (slot->steps == 0u) {
    tg_set_bits(&state->broken, 1u);
    return 0u;
  }
  slot->steps--;
  if (TG_MUT(3, slot->end_reason != TG_END_NONE, 0) || !(sequence->flags & TG_SEQUENCE_LAST)) return 0u;
  if (slot->max_new_tokens == 0u) { /* only scored: its prompt is through, and its logits are the host's to judge */
    if (slot->first_ns == 0u) slot->first_ns = inputs->now_ns;
    slot->end_reason = TG_END_LENGTH;
    return 0u;
  }
  uint32_t stopped = inputs->stopped[sequence->slot / 32u] >> (sequence->slot % 32u) & 1u;
  slot->last_token = tg_samples(state, step)[sequence->sample].token;
  if (TG_MUT(23, stopped && slot->last_token < 0, 0)) { /* a replay's tokens mean nothing, unless it stopped too */
    slot->end_reason = TG_END_NOT_FINITE;
    return TG_NOTE_TOKEN | sequence->sample << TG_NOTE_SAMPLE_SHIFT;
  }
  if (slot->first_ns == 0u) slot->first_ns = inputs->now_ns;
  slot->generated++;
  if (slot->flags & TG_REQUEST_UNLIMITED) {
    tg_kept(state, sequence->slot)[slot->prompt_tokens + slot->generated - 1u] = slot->last_token;
  }
  if (stopped) {
    slot->end_reason = TG_MUT(4, TG_END_STOP, slot->generated == slot->max_new_tokens ? TG_END_LENGTH : TG_END_STOP);
  } else if (slot->generated == slot->max_new_tokens) {
    slot->end_reason = TG_END_LENGTH;
  }
  return TG_NOTE_TOKEN | sequence->sample << TG_NOTE_SAMPLE_SHIFT;
}

/* Whether this slot, which decodes, could have a row in the next step. */
TG_FN uint32_t tg_is_candidate(const tg_state *state, const tg_slot *slot) {
  uint64_t tokens = (uint64_t)slot->prompt_tokens + slot->generated + slot->steps;
  uint32_t has_room = TG_MUT(44, tg_pages_hold(state, slot->pages, tokens), 1);
  uint32_t is_free = TG_MUT(6, slot->steps == 0u, slot->generated != 0u);
  uint32_t goes_on = slot->steps == 1u && TG_MUT(24, slot->stop_count == 0u, 1) && /* whatever the step in flight samples */
                     TG_MUT(25, slot->generated + 1u < slot->max_new_tokens, 1);
  return has_room && (is_free || (tg_runs_ahead(state) && goes_on));
}

/* A slot's own pages: behind those that its prefixes fill. One that is preempted has none. */
TG_FN tg_ended tg_pages_to_put(tg_state *state, uint32_t index, const tg_slot *slot) {
  uint32_t first = slot->pages == 0u ? 0u : TG_MUT(66, tg_pages_filled(state, slot->prefix), 0u);
  const tg_ended gone = {index, first, TG_MUT(12, slot->pages - first, slot->pages - first - (slot->pages != first))};
  return gone;
}

/* Phase: every slot learns of its cancel, its returned rows and its deadline, in this order. A cancel drops
 * the token that comes with it; a deadline does not. What the slot does next goes to its note. */
TG_FN void tg_phase_collect(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  const tg_inputs *inputs = &state->inputs;
  tg_turn *turn = tg_scratch(state);
  uint32_t open = tg_is_open(state, rings);
  uint32_t collecting = open && state->pending == 0u;
  uint32_t returned = collecting && inputs->returned && tg_in_flight(state) != 0u;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  uint64_t counts = 0u;
  uint32_t end = tg_first_slot(state, lane + 1u, lanes);

  if (lane == 0u) {
    uint64_t sampled = state->steps_collected - (returned ? 0u : 1u);
    turn->open = open;
    turn->collecting = collecting;
    turn->returned_step = returned ? state->steps_collected : TG_NO_STEP;
    turn->sampled_place = tg_step_place(state, sampled);
    turn->requests_seen = state->requests_seen;
    turn->controls_taken = state->controls_taken;
    turn->wants = 0u;
    turn->going = state->going;
    if (inputs->returned && !returned) tg_set_bits(&state->broken, 1u);
  }
  if (!open) return;
  tg_observe(state, rings, lane, lanes);

  for (uint32_t index = tg_first_slot(state, lane, lanes); index < end; index++) {
    tg_slot *slot = &tg_slots(state)[index];
    uint32_t note = 0u;
    if (slot->phase != TG_SLOT_FREE) {
      if (slot->end_reason == TG_END_NONE && tg_cancels(state, rings, slot->request)) {
        slot->end_reason = TG_END_CANCELLED;
        counts += TG_COUNT(TG_MARKED);
      }
      if (returned) {
        uint32_t sequence = tg_words(state, step->slot_sequence_table)[index];
        if (sequence != TG_NONE) note = tg_collect_sequence(state, step, &tg_sequences(state, step)[sequence], slot);
        if (note != 0u) counts += TG_COUNT(TG_TOKENS);
      }
      if (slot->end_reason == TG_END_NONE && inputs->now_ns >= slot->deadline_ns) {
        slot->end_reason = TG_END_TIMEOUT;
        counts += TG_COUNT(TG_MARKED);
      }
      if (slot->end_reason != TG_END_NONE) {
        if (slot->phase == TG_SLOT_PREEMPTED) tg_set_bits(&turn->preempted_ends, 1u);
        if (collecting && TG_MUT(5, slot->steps == 0u, 1)) {
          note |= TG_NOTE_END;
          counts += TG_COUNT(TG_ENDS);
        }
      } else if (slot->phase == TG_SLOT_DECODE) {
        counts += TG_COUNT(TG_DECODING);
        if (tg_is_candidate(state, slot)) {
          note |= TG_NOTE_CANDIDATE;
          counts += TG_COUNT(TG_CANDIDATES);
        }
        tg_note_wanting(state, index, slot);
      } else if (slot->phase == TG_SLOT_LEAVING && collecting && TG_MUT(45, slot->steps == 0u, 1)) {
        turn->back = tg_pages_to_put(state, index, slot); /* no other slot leaves */
      }
    }
    turn->notes[index] = note;
  }
  turn->counts[lane] = counts;
}

/* `index`: how many tokens of the request went before. */
TG_FN tg_event tg_token_event(uint64_t request, uint64_t now_ns, uint32_t logprobs, int32_t token, uint32_t index, uint64_t step) {
  const tg_event event = {request, now_ns, TG_EVENT_TOKEN, logprobs, token, index, 0u, 0u, 0u, step};
  return event;
}

/* Phase: from the counts of the lanes before it a lane knows where its slots' events go. Slots that end become free, and the
 * list of them says which pages come back. Slots that want pages are ranked among each other. */
TG_FN void tg_phase_place(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  const uint32_t *notes = turn->notes;
  uint64_t before = tg_count_before(turn, lane);
  uint32_t at = TG_COUNTED(before, TG_TOKENS) + TG_COUNTED(before, TG_ENDS);
  uint32_t ended = TG_COUNTED(before, TG_ENDS);
  uint32_t first = tg_first_slot(state, lane, lanes);
  uint32_t end = tg_first_slot(state, lane + 1u, lanes);
  uint32_t cursor = state->decode_cursor;
  uint64_t counts = turn->counts[lane];
  uint64_t now_ns = state->inputs.now_ns;

  turn->before[lane] = before;
  if (lane == lanes - 1u) {
    turn->totals = before + counts;
    if (cursor >= end) turn->below = TG_COUNTED(before + counts, TG_CANDIDATES);
  }
  if (first <= cursor && cursor < end) {
    uint32_t below = TG_COUNTED(before, TG_CANDIDATES);
    for (uint32_t index = first; index < cursor; index++) below += (notes[index] & TG_NOTE_CANDIDATE) != 0u;
    turn->below = TG_MUT(7, below, 0u);
  }

  if (turn->some_want) {
    turn->newest[lane] = tg_newest_of(state, first, end);
    for (uint32_t index = first; index < end; index++) {
      if (turn->wanting[index / 32u] >> (index % 32u) & 1u) tg_rank_wanting(state, index);
    }
  }
  if (TG_COUNTED(counts, TG_TOKENS) + TG_COUNTED(counts, TG_ENDS) == 0u) return;
  tg_event *pending = tg_pending(state);
  uint32_t *samples = tg_words(state, state->pending_sample_table);
  for (uint32_t index = first; index < end; index++) {
    tg_slot *slot = &tg_slots(state)[index];
    if (notes[index] & TG_NOTE_TOKEN) {
      uint32_t index_of_token = slot->generated - (slot->end_reason != TG_END_NOT_FINITE);
      uint32_t logprobs = slot->sampling.logprobs;
      samples[at] = logprobs == TG_LOGPROBS_NONE ? TG_NONE : notes[index] >> TG_NOTE_SAMPLE_SHIFT;
      pending[at++] = tg_token_event(slot->request, now_ns, logprobs, slot->last_token, index_of_token, turn->returned_step);
    }
    if (notes[index] & TG_NOTE_END) {
      tg_ended_list(state)[ended++] = tg_pages_to_put(state, index, slot);
      const tg_event end = {slot->request, now_ns, TG_EVENT_END, slot->end_reason, (int32_t)slot->skipped, slot->generated,
                            slot->seen_ns, slot->admitted_ns, slot->first_ns, slot->recomputes};
      samples[at] = TG_NONE;
      pending[at++] = end;
      slot->phase = TG_SLOT_FREE;
    }
  }
}
