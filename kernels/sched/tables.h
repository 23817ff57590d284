/* tables.h: finding tables by their offsets, and small arithmetic that every phase uses. */
#pragma once

#include "sched/platform.h"

TG_FN void *tg_at(void *block, uint64_t offset) { return (char *)block + offset; }

TG_FN void *tg_table(tg_state *state, uint64_t offset) { return tg_at(tg_block(state), offset); }

TG_FN tg_slot *tg_slots(tg_state *state) { return (tg_slot *)tg_table(state, state->slot_table); }

TG_FN uint32_t *tg_words(tg_state *state, uint64_t offset) { return (uint32_t *)tg_table(state, offset); }

/* The tokens of a slot's sequence by position, where it may be preempted. */
TG_FN int32_t *tg_kept(tg_state *state, uint32_t slot) {
  return (int32_t *)tg_table(state, state->kept_table) + (uint64_t)slot * state->config.max_context;
}

TG_FN tg_prefix *tg_prefix_at(tg_state *state, uint32_t place) {
  return (tg_prefix *)tg_table(state, state->prefix_table) + place;
}

/* The row of a prefix in its page table. */
TG_FN uint32_t *tg_prefix_pages(tg_state *state, uint32_t place) {
  return tg_words(state, state->prefix_page_table) + (uint64_t)place * state->max_pages;
}

TG_FN tg_row *tg_rows(tg_state *state, const tg_step *step) { return (tg_row *)tg_table(state, step->row_table); }

TG_FN tg_sequence *tg_sequences(tg_state *state, const tg_step *step) {
  return (tg_sequence *)tg_table(state, step->sequence_table);
}

TG_FN tg_sampled *tg_samples(tg_state *state, const tg_step *step) {
  return (tg_sampled *)tg_table(state, step->sampled_table);
}

/* A kernel of which it is known that it has one step in flight, or claims nothing, has no instructions for more: a turn takes as long
 * as its instructions take from the cache. */
#ifndef TG_ONE_IN_FLIGHT
#define TG_ONE_IN_FLIGHT 0
#endif
#ifndef TG_CLAIMS_NOTHING
#define TG_CLAIMS_NOTHING 0
#endif

/* Steps in flight, at most. */
TG_FN uint32_t tg_most_in_flight(const tg_state *state) { return TG_ONE_IN_FLIGHT ? 1u : state->config.steps_in_flight; }

/* Whether a step may be composed before the one ahead of it has come back. */
TG_FN uint32_t tg_runs_ahead(const tg_state *state) { return TG_ONE_IN_FLIGHT ? 0u : state->config.ahead; }

/* Whether it claims its requests from a queue, as one of several replicas. Else they come over the rings. */
TG_FN uint32_t tg_claims(const tg_state *state) { return TG_CLAIMS_NOTHING ? 0u : state->claimer.queue != 0; }

/* Index of step `number` among the steps in flight. A GPU divides 32 bits far faster than 64. */
TG_FN uint32_t tg_step_place(const tg_state *state, uint64_t number) {
  uint32_t places = tg_most_in_flight(state);
  return number >> 32 ? (uint32_t)(number % places) : (uint32_t)number % places;
}

TG_FN tg_step *tg_step_at(tg_state *state, uint64_t number) { return &state->steps[tg_step_place(state, number)]; }

/* The queue's number of own request `number` of a replica that claims, until that is admitted. */
TG_FN uint64_t *tg_number_at(tg_state *state, uint64_t number) {
  return &state->claimer.numbers[number & (state->config.request_capacity - 1u)];
}

/* The queue's number of the request in a slot. These stand behind the others. */
TG_FN uint64_t *tg_number_of_slot(tg_state *state, uint32_t slot) {
  return &state->claimer.numbers[state->config.request_capacity + slot];
}

TG_FN const tg_request *tg_request_at(tg_rings *rings, uint64_t number) {
  return (const tg_request *)tg_at(rings, tg_layout(rings)->requests) + (number & (tg_layout(rings)->request_capacity - 1u));
}

TG_FN tg_event *tg_event_at(tg_rings *rings, uint64_t number) {
  return (tg_event *)tg_at(rings, tg_layout(rings)->events) + (number & (tg_layout(rings)->event_capacity - 1u));
}

/* The logprobs of event `number`, if it has any. */
TG_FN tg_sampled *tg_sampled_at(tg_rings *rings, uint64_t number) {
  return (tg_sampled *)tg_at(rings, tg_layout(rings)->sampled) + (number & (tg_layout(rings)->sampled_capacity - 1u));
}

/* Prompt token `at` of those that came with requests, by token_start. */
TG_FN int32_t tg_prompt_token(const tg_state *state, tg_rings *rings, uint64_t at) {
  const tg_claimer *claimer = &state->claimer;
  if (tg_claims(state)) return claimer->tokens[at & (claimer->token_capacity - 1u)];
  return ((const int32_t *)tg_at(rings, tg_layout(rings)->tokens))[at & (tg_layout(rings)->token_capacity - 1u)];
}

/* The biases of one request, as it came; of one slot. */
TG_FN const tg_bias *tg_biases_at(tg_state *state, tg_rings *rings, uint64_t number) {
  const tg_claimer *claimer = &state->claimer;
  if (tg_claims(state)) {
    uint64_t entry = *tg_number_at(state, number) & (claimer->capacity - 1u);
    return claimer->biases + entry * tg_layout(rings)->bias_capacity;
  }
  uint64_t place = number & (tg_layout(rings)->request_capacity - 1u);
  return (const tg_bias *)tg_at(rings, tg_layout(rings)->biases) + place * tg_layout(rings)->bias_capacity;
}

TG_FN tg_bias *tg_biases_of(tg_state *state, uint32_t slot) {
  return (tg_bias *)tg_table(state, state->bias_table) + (uint64_t)slot * state->config.bias_capacity;
}

TG_FN uint64_t *tg_seen_at(tg_state *state, uint64_t number) {
  return (uint64_t *)tg_table(state, state->seen_table) + (number & (state->config.request_capacity - 1u));
}

TG_FN tg_request *tg_waiting_at(tg_state *state, uint64_t number) {
  return (tg_request *)tg_table(state, state->waiting_table) + (number & (state->config.request_capacity - 1u));
}

/* The cancel bit of a waiting request: its word, and its bit in there. The host pushes no request past
 * requests_taken + request_capacity, so numbers that share a bit never wait at the same time. */
TG_FN uint32_t *tg_cancel_word(tg_state *state, uint64_t number) {
  uint64_t place = number & (state->config.request_capacity - 1u);
  return tg_words(state, state->cancel_table) + place / 32u;
}

TG_FN uint32_t tg_cancel_bit(const tg_state *state, uint64_t number) {
  return 1u << ((number & (state->config.request_capacity - 1u)) % 32u);
}

TG_FN uint32_t tg_min(uint32_t a, uint32_t b) { return a < b ? a : b; }

TG_FN uint32_t tg_ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0u); }

/* a + b, or the largest value where that would wrap: a deadline too far away is none. */
TG_FN uint64_t tg_add_saturating(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }

TG_FN uint64_t tg_in_flight(const tg_state *state) { return state->steps_composed - state->steps_collected; }
