/* inputs.h: the only phases that look outside. They fill state->inputs; a replay fills it from a record. */
#ifndef TAILGRAPH_SCHED_INPUTS_H
#define TAILGRAPH_SCHED_INPUTS_H

#include "sched/mailbox.h"
#include "sched/returned.h"

/* Does this turn do anything? Not after an error or the stop flag, and not where its record would be lost. */
TG_FN uint32_t tg_is_open(const tg_state *state, const tg_rings *rings) {
  const tg_inputs *inputs = &state->inputs;
  if (state->error != TG_ERROR_NONE || (inputs->flags & TG_INPUT_STOP)) return 0u;
  const tg_rings *layout = tg_layout(rings);
  return !layout->record || state->traces_written - inputs->trace_tail < layout->trace_capacity;
}

/* Lane 0: the host's indices. The host pushes requests before their cancels, and both before it sets drain. Read in
 * the other direction, a reader that sees the later sees the earlier. */
TG_FN void tg_look(tg_inputs *inputs, tg_rings *rings) {
#ifdef __CUDACC__
  /* The dispatcher has loaded them all at once, so only where a later one moved do the earlier ones need another look. */
  uint32_t flags_moved = inputs->flags != (uint32_t)tg_device.flags;
  uint32_t control_moved = inputs->control_head != tg_device.control_head;
  inputs->flags = (uint32_t)tg_device.flags;
  inputs->control_head = flags_moved ? tg_acquire(&rings->control_head.value) : tg_device.control_head;
  inputs->request_head = flags_moved || control_moved ? tg_acquire(&rings->request_head.value) : tg_device.request_head;
  inputs->event_tail = tg_device.event_tail;
  inputs->trace_tail = tg_device.trace_tail;
#else
  inputs->flags = (uint32_t)tg_acquire(&rings->flags.value);
  inputs->control_head = tg_acquire(&rings->control_head.value);
  inputs->request_head = tg_acquire(&rings->request_head.value);
  inputs->event_tail = tg_acquire(&rings->event_tail.value);
  inputs->trace_tail = tg_acquire(&rings->trace_tail.value);
#endif
}

/* Lane 0: has a step come back? The last stage posts it; but a dispatcher knows by the graph that it is in. */
TG_FN uint32_t tg_take_returned(tg_state *state, uint64_t *step) {
#ifdef __CUDACC__
  *step = state->steps_collected;
  return *step < tg_device.returned_end;
#else
  return tg_mailbox_take(&state->mailbox[0], step);
#endif
}

/* Phase: the clock, the indices, and at most one returned step. Lane 0, but for the clearing. */
TG_FN void tg_phase_gather(tg_state *state, tg_rings *rings, uint64_t now_ns, uint32_t lane, uint32_t lanes) {
  tg_inputs *inputs = &state->inputs;
  uint64_t step = TG_NO_STEP;
  for (uint32_t word = lane; word < TG_MAX_SLOTS / 32u; word += lanes) inputs->stopped[word] = 0u;
  if (lane != 0u) return;

  inputs->now_ns = now_ns;
  tg_look(inputs, rings);
  inputs->returned = 0u;

  /* While events wait to be published, their samples still lie in the tables of the last returned step. */
  if (!tg_is_open(state, rings) || TG_MUT(2, state->pending != 0u, 0u)) return;
  if (!tg_take_returned(state, &step)) return;
  if (tg_in_flight(state) == 0u || step != state->steps_collected) {
    state->error = TG_ERROR_MAILBOX;
    return;
  }
  inputs->returned = 1u;
}

TG_FN uint32_t tg_is_stop_id(const tg_slot *slot, int32_t token) {
  for (uint32_t i = 0u; i < slot->stop_count; i++) {
    if (slot->stop_ids[i] == token) return 1u;
  }
  return 0u;
}

/* As tg_is_stop_id, with most or all of the ids at hand. */
TG_FN uint32_t tg_is_stop_id_of_row(tg_state *state, const tg_returned_row *returned, int32_t token) {
  uint32_t found = 0u;
  for (uint32_t i = 0u; i < TG_ROW_STOP_IDS; i++) found |= i < returned->stop_count && returned->stop_ids[i] == token;
  return returned->stop_count <= TG_ROW_STOP_IDS ? found : tg_is_stop_id(&tg_slots(state)[returned->slot], token);
}

/* Phase: which slots sampled their last token in the returned step: a stop id, or none at all. Lanes share the
 * sampled rows. */
TG_FN void tg_phase_stopped(tg_state *state, uint32_t lane, uint32_t lanes) {
  if (!state->inputs.returned) return;
  const tg_step *step = tg_step_at(state, state->steps_collected);
  for (uint32_t i = lane; i < step->sample_rows; i += lanes) {
    int32_t token = tg_samples(state, step)[i].token;
    uint32_t slot, stop;
#ifdef __CUDACC__
    if (i < TG_MAX_LANES) tg_device_token[i] = token;
#endif
    if (i < step->decode_rows) {
      tg_returned_row returned = tg_returned_row_at(state, step, i);
      slot = returned.slot;
      stop = tg_is_stop_id_of_row(state, &returned, token);
    } else {
      slot = tg_rows(state, step)[tg_words(state, step->sample_table)[i]].slot;
      stop = tg_is_stop_id(&tg_slots(state)[slot], token);
    }
    if (token < 0 || stop) tg_set_bits(&state->inputs.stopped[slot / 32u], 1u << (slot % 32u));
  }
}

#endif
