/* inputs.h: the only phases that look outside. They fill state->inputs; a replay fills it from a record. */
#pragma once

#include "sched/claim.h"

/* Whether this turn does anything: not after an error or the stop flag, and not where its record would be lost. */
TG_FN uint32_t tg_is_open(const tg_state *state, const tg_rings *rings) {
  const tg_inputs *inputs = &state->inputs;
  if (state->error != TG_ERROR_NONE || (inputs->flags & TG_INPUT_STOP)) return 0u;
  const tg_rings *layout = tg_layout(rings);
  return !layout->record || state->traces_written - inputs->trace_tail < layout->trace_capacity;
}

/* Lane 0: the host's indices. The host pushes requests before their cancels, and both before it sets drain. Read in
 * the other direction, a reader that sees the later sees the earlier. */
TG_FN void tg_look(tg_state *state, tg_rings *rings) {
  tg_inputs *inputs = &state->inputs;
  tg_claimer *claimer = &state->claimer;
  if (tg_claims(state)) claimer->noted = claimer->pushed;
#ifdef __CUDACC__
  /* The dispatcher has loaded them all at once, so only where a later one moved do the earlier ones need another look. */
  uint32_t flags_moved = (inputs->flags & ~TG_INPUT_UNCLAIMED) != (uint32_t)tg_device.flags;
  uint32_t control_moved = inputs->control_head != tg_device.control_head;
  inputs->flags = (uint32_t)tg_device.flags;
  inputs->control_head = flags_moved ? tg_acquire(&rings->control_head.value) : tg_device.control_head;
  inputs->request_head = flags_moved || control_moved ? tg_acquire(&rings->request_head.value) : tg_device.request_head;
  inputs->event_tail = tg_device.event_tail;
  inputs->trace_tail = tg_device.trace_tail;
  if (tg_claims(state)) claimer->pushed = tg_device.pushed;
  if (tg_claims(state) && flags_moved) tg_claim_look(claimer);
#else
  inputs->flags = (uint32_t)tg_acquire(&rings->flags.value);
  inputs->control_head = tg_acquire(&rings->control_head.value);
  inputs->request_head = tg_acquire(&rings->request_head.value);
  inputs->event_tail = tg_acquire(&rings->event_tail.value);
  inputs->trace_tail = tg_acquire(&rings->trace_tail.value);
  if (tg_claims(state)) tg_claim_look(claimer);
#endif
  if (tg_claims(state)) {
    inputs->request_head = state->requests_seen; /* until this turn claims */
    if ((inputs->flags & TG_INPUT_DRAIN) && claimer->known < claimer->pushed) inputs->flags |= TG_INPUT_UNCLAIMED;
  }
}

TG_API uint32_t tg_mailbox_post(tg_mailbox *mailbox, uint64_t step) {
  uint64_t posted = mailbox->posted.value; /* only the poster writes it */
  uint64_t used = posted - tg_acquire(&mailbox->taken.value);
  if (used >= TG_MUT(1, mailbox->depth, mailbox->depth + 1u)) return 0u;
  mailbox->entries[posted % TG_MAX_STEPS] = step;
  tg_release(&mailbox->posted.value, posted + 1u);
  return 1u;
}

TG_API uint32_t tg_mailbox_take(tg_mailbox *mailbox, uint64_t *step) {
  uint64_t taken = mailbox->taken.value; /* only the taker writes it */
  if (tg_acquire(&mailbox->posted.value) == taken) return 0u;
  *step = mailbox->entries[taken % TG_MAX_STEPS];
  tg_release_later(&mailbox->taken.value, taken + 1u);
  return 1u;
}

/* Phase: the clock, the indices, and at most one returned step. Lane 0, but for the clearing. */
TG_FN void tg_phase_gather(tg_state *state, tg_rings *rings, uint64_t now_ns, uint32_t lane, uint32_t lanes) {
  tg_inputs *inputs = &state->inputs;
  const tg_claimer *claimer = &state->claimer;
  uint64_t step = TG_NO_STEP;
  tg_turn *turn = tg_scratch(state);
  for (uint32_t word = lane; word < TG_MAX_SLOTS / 32u; word += lanes) inputs->stopped[word] = 0u;
  if (lane != 0u) return;

  inputs->now_ns = now_ns;
  tg_look(state, rings);
  if (tg_claims(state)) {
    turn->ends = 0u;
    /* There is something to claim, and this turn could admit it. */
    turn->wants_claim = claimer->known < claimer->pushed && state->pending == 0u && state->preempted == 0u &&
                        state->leaving == TG_NONE && state->requests_taken == state->requests_seen && tg_is_open(state, rings);
  }
  inputs->returned = 0u;

  /* While events wait to be published, their samples still lie in the tables of the last returned step. */
  if (!tg_is_open(state, rings) || TG_MUT(2, state->pending != 0u, 0u)) return;
#ifdef __CUDACC__ /* the dispatcher knows by its graph which steps have come back */
  step = state->steps_collected;
  if (step >= tg_device.returned_end) return;
#else
  if (!tg_mailbox_take(&state->mailbox[0], &step)) return;
#endif
  if (tg_in_flight(state) == 0u || step != state->steps_collected) {
    state->error = TG_ERROR_MAILBOX;
    return;
  }
  inputs->returned = 1u;
}

/* Whether a returned row's token is one of its stop ids, most or all of which it has at hand. */
TG_FN uint32_t tg_is_stop_id(tg_state *state, const tg_returned_row *returned, int32_t token) {
  const tg_slot *slot = &tg_slots(state)[returned->slot];
  uint32_t found = 0u;
  for (uint32_t i = 0u; i < TG_ROW_STOP_IDS; i++) found |= i < returned->stop_count && returned->stop_ids[i] == token;
  for (uint32_t i = TG_ROW_STOP_IDS; i < returned->stop_count && !found; i++) found = slot->stop_ids[i] == token;
  return found;
}

/* Phase: which slots sampled their last token in the returned step: a stop id, or none at all; and for a claim, how many slots end in this
 * turn, as far as is known before it. Lanes share the sequences, of which the first are the decode rows. */
TG_FN void tg_phase_stopped(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (tg_claims(state)) { /* first sees what the host has pushed since the last turn, of which others had the rest before */
    const tg_claimer *claimer = &state->claimer;
    uint64_t oldest = claimer->pushed - claimer->noted > claimer->capacity ? claimer->pushed - claimer->capacity : claimer->noted;
    for (uint64_t n = oldest + lane; n < claimer->pushed; n += lanes) {
      claimer->seen[n & (claimer->capacity - 1u)] = state->inputs.now_ns;
    }
  }
  if (!state->inputs.returned) return;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  uint32_t ends = 0u;
  for (uint32_t i = lane; i < step->sequences; i += lanes) {
    const uint32_t decodes = i < step->decode_rows;
    const tg_sequence *sequence = &tg_sequences(state, step)[i];
    const uint32_t sample = decodes ? i : sequence->sample;
    const int32_t token = sample == TG_NONE ? 0 : tg_samples(state, step)[sample].token;
#ifdef __CUDACC__
    if (i < TG_MAX_LANES) tg_device_token[i] = token;
#endif
    const tg_returned_row row = tg_returned_row_at(state, step, decodes ? i : sequence->first_row);
    const uint32_t stops = sample != TG_NONE && (token < 0 || tg_is_stop_id(state, &row, token));
    if (stops) tg_set_bits(&state->inputs.stopped[row.slot / 32u], 1u << (row.slot % 32u));
    if (!tg_claims(state) || !turn->wants_claim) continue;
    const uint32_t last = (decodes || (sequence->flags & TG_SEQUENCE_LAST)) && row.generated + 1u >= row.max_new_tokens;
    const uint32_t over = last || row.end_reason != TG_END_NONE || state->inputs.now_ns >= row.deadline_ns;
    ends += stops || (over && (decodes || tg_slots(state)[row.slot].steps == 1u));
  }
  if (ends) tg_add(&turn->ends, ends);
}

/* After the stopped phase, all lanes: whether the turn claims. */
TG_FN uint32_t tg_claims_now(tg_state *state) {
  const tg_turn *turn = tg_scratch(state);
  return tg_claims(state) && turn->wants_claim && (state->running < state->config.slots || turn->ends != 0u);
}

/* Phase: lane 0 claims, up to this replica's share of what has come since it last did: for slots that are or come free, at most what it can
 * admit in a turn and the host has room to read; and as many more as it has slots, where these begin as the last one does. */
TG_FN void tg_phase_claim(tg_state *state, uint32_t lane) {
  tg_inputs *inputs = &state->inputs;
  tg_claimer *claimer = &state->claimer;
  if (lane != 0u || !tg_claims_now(state)) return;
#ifdef __CUDACC__
  uint64_t read = tg_device.claims_tail;
#else
  uint64_t read = tg_acquire(&claimer->queue->claims_tail[claimer->replica].value);
#endif
  uint32_t unread = (uint32_t)(state->requests_seen - read);
  uint32_t room = state->config.slots - state->running + tg_scratch(state)->ends;
  room = tg_min(tg_min(room, TG_MAX_TAKES), state->config.request_capacity);
  uint32_t run_room = tg_min(room + state->config.slots, state->config.request_capacity);
  const uint32_t telling = TG_MUT(160, claimer->claim_capacity, room + run_room + unread) - unread;
  const uint32_t share = (uint32_t)((claimer->pushed - claimer->base + claimer->replicas - 1u) / claimer->replicas);
  room = tg_min(tg_min(room, share), telling);
  run_room = tg_min(tg_min(run_room, TG_MUT(159, share, run_room)), telling);
  inputs->request_head += tg_claim(claimer, room, run_room, &claimer->first);
  claimer->base = claimer->known;
  if (claimer->known >= claimer->pushed) inputs->flags &= ~TG_INPUT_UNCLAIMED;
}
