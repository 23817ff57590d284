/* finish.h: what came of the turn, for the caller, the host and the trace. */
#pragma once

#include "sched/routine.h"

/* Gives back prompt tokens that are in steps. Prompts lie in the ring in the order of their requests, which is that of the prefill list:
 * the first slot that is not recomputed, from kept tokens, holds the oldest. */
TG_FN void tg_release_tokens(tg_state *state, tg_rings *rings) {
  uint64_t tail = state->tokens_taken;
  for (uint32_t i = TG_MUT(20, 0u, state->prefill - (state->prefill != 0u)); i < state->prefill; i++) {
    const tg_slot *slot = &tg_slots(state)[tg_words(state, state->prefill_table)[i]];
    if (slot->recomputes) continue;
    tail = slot->token_start + slot->composed;
    break;
  }
  if (tail <= state->token_tail) return;
  state->token_tail = tail;
  tg_release_later(&rings->token_tail.value, tail);
}

/* The same for a replica that claims: it holds the oldest request whose entry or prompt is still to be read. */
TG_FN void tg_release_claims(tg_state *state) {
  tg_claimer *claimer = &state->claimer;
  if (claimer->held == TG_NO_STEP) return;
  for (uint32_t i = TG_MUT(162, 0u, state->prefill); i < state->prefill; i++) {
    uint32_t index = tg_words(state, state->prefill_table)[i];
    if (tg_slots(state)[index].recomputes) continue;
    tg_claim_release(claimer, *tg_number_of_slot(state, index));
    return;
  }
  uint32_t waits = state->requests_taken < state->requests_seen;
  tg_claim_release(claimer, waits ? *tg_number_at(state, state->requests_taken) : TG_NO_STEP);
}

/* Nothing more will come, and nothing is left. */
TG_FN uint32_t tg_is_drained(const tg_state *state) {
  return (state->inputs.flags & (TG_INPUT_DRAIN | TG_MUT(163, TG_INPUT_UNCLAIMED, 0u))) == TG_INPUT_DRAIN &&
         state->requests_taken == state->inputs.request_head &&
         TG_MUT(21, state->running == 0u, state->prefill == 0u) && tg_in_flight(state) == 0u && state->pending == 0u;
}

TG_FN uint32_t tg_action(const tg_state *state, const tg_turn *turn, uint32_t composed) {
  if (state->error != TG_ERROR_NONE) return TG_ACTION_ERROR;
  if (state->inputs.flags & TG_INPUT_STOP) return TG_ACTION_DONE;
  if (!turn->open) return TG_ACTION_BLOCKED;
  if (composed) return TG_ACTION_STEP;
  if (state->pending != 0u) return TG_ACTION_BLOCKED;
  return tg_is_drained(state) ? TG_ACTION_DONE : TG_ACTION_IDLE;
}

/* Tells the host what the scheduler is doing; `action`, released after it, covers it. */
TG_FN void tg_post_status(const tg_state *state, tg_rings *rings, uint32_t composed) {
  const tg_outcome *outcome = &state->outcome;
  tg_status *status = &rings->status;
  if (composed) {
    tg_store(&status->start_ns, state->inputs.now_ns);
    tg_store(&status->stage, 0u);
    tg_store(&status->kind, outcome->kind);
    tg_store(&status->bucket_rows, state->config.bucket_rows[outcome->kind][outcome->bucket]);
    tg_store(&status->rows, outcome->rows);
    tg_store(&status->in_flight, outcome->steps_in_flight);
    tg_store(&status->steps, state->steps_composed);
  }
  tg_store(&status->running, outcome->running);
  tg_store(&status->queue_depth, outcome->queue_depth);
  tg_store(&status->free_pages, outcome->free_pages);
}

/* Phase: lane 0 sums the turn up. */
TG_FN void tg_phase_finish(tg_state *state, tg_rings *rings, uint32_t lane) {
  tg_turn *turn = tg_scratch(state);
  tg_outcome *outcome = &state->outcome;
  if (lane != 0u) return;
  const tg_step *step = tg_step_at(state, state->steps_composed);
  uint32_t composed = turn->open && turn->composed;
  if (tg_is_routine(state)) {
    state->steps_collected++;
    state->events_published += turn->publish;
    tg_release_later(&rings->event_head.value, state->events_published);
  }
  turn->asks_more = 0u;

  if (state->broken && state->error == TG_ERROR_NONE) state->error = TG_ERROR_BROKEN;
  outcome->step = composed ? state->steps_composed : TG_NO_STEP;
  if (composed) {
    state->steps_composed++;
    if (step->decode_rows != 0u) state->decode_cursor = turn->next_cursor;
  }
  if (turn->open && tg_claims(state)) tg_release_claims(state);
  if (turn->open && !tg_claims(state)) tg_release_tokens(state, rings);
  outcome->action = tg_action(state, turn, composed);
  outcome->error = state->error;
  outcome->kind = composed ? step->kind : 0u;
  outcome->bucket = composed ? step->bucket : 0u;
  outcome->rows = composed ? step->rows : 0u;
  outcome->sequences = composed ? step->sequences : 0u;
  outcome->sample_rows = composed ? step->sample_rows : 0u;
  outcome->changed = outcome->action == TG_ACTION_STEP || outcome->action == TG_ACTION_DONE || outcome->action == TG_ACTION_ERROR ||
                     (turn->open &&
                      (turn->returned_step != TG_NO_STEP || turn->requests_seen != state->requests_seen ||
                       turn->controls_taken != state->controls_taken || turn->takes != 0u || turn->taken != 0u ||
                       TG_COUNTED(turn->totals, TG_ENDS) + TG_COUNTED(turn->totals, TG_MARKED) != 0u ||
                       turn->back.slot != TG_NONE || turn->going + state->going != 0u || turn->marked != TG_NONE || turn->publish != 0u));
  outcome->returned_step = turn->open ? turn->returned_step : TG_NO_STEP;
  outcome->queue_depth = (uint32_t)(state->requests_seen - state->requests_taken);
  outcome->running = state->running;
  outcome->free_pages = state->free_pages;
  outcome->steps_in_flight = (uint32_t)tg_in_flight(state);
  outcome->preempted = state->preempted;
  outcome->recomputed = turn->open ? turn->recomputed : 0u;
  outcome->skipped = composed ? turn->skipped : 0u;
  outcome->prefixes = state->prefixes;
  state->turn++;
  if (outcome->changed) tg_post_status(state, rings, composed);
  tg_release_later(&rings->action.value, (uint64_t)outcome->error << 32 | outcome->action);
}

TG_API void tg_trace_write(tg_state *state, tg_rings *rings, uint64_t end_ns, uint32_t stage) {
  uint64_t unread = state->traces_written - state->inputs.trace_tail;
  uint64_t at = state->traces_written & (tg_layout(rings)->trace_capacity - 1u);
  tg_trace *record = (tg_trace *)tg_at(rings, tg_layout(rings)->trace) + at;
  if (!state->outcome.changed) return;
  if (unread >= tg_layout(rings)->trace_capacity) { /* only the last record of a recording run finds no room */
    tg_release_later(&rings->trace_lost.value, ++state->traces_lost);
    if (tg_layout(rings)->record) return;
  }
  record->inputs = state->inputs;
  record->outcome = state->outcome;
  record->turn = state->turn - 1u;
  record->end_ns = end_ns;
  record->stage = stage;
  state->traces_written++;
  tg_release_later(&rings->trace_head.value, state->traces_written);
}
