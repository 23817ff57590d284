/* layout.h: what a configuration must keep to, where every table lies, and how the two blocks begin. */
#pragma once

#include "sched/tables.h"
#include "sched/turn.h"

#define TG_ALIGN 64u /* tables start on cache lines */
#define TG_GAP 64u   /* between two tables nothing is ever written */

TG_FN uint32_t tg_is_power_of_two(uint32_t n) { return n != 0u && (n & (n - 1u)) == 0u; }

TG_FN uint32_t tg_buckets_ok(const tg_config *config, uint32_t kind, uint32_t rows) {
  uint32_t count = config->bucket_count[kind];
  if (count < 1u || count > TG_MAX_BUCKETS || config->bucket_rows[kind][0] == 0u) return 0u;
  for (uint32_t i = 1u; i < count; i++) {
    if (config->bucket_rows[kind][i] <= config->bucket_rows[kind][i - 1u]) return 0u;
  }
  return config->bucket_rows[kind][count - 1u] >= rows;
}

/* The rules beside the fields of tg_config. */
TG_FN uint32_t tg_config_ok(const tg_config *config) {
  return config->slots >= 1u && config->slots <= TG_MAX_SLOTS && config->pages >= 1u &&
         config->page_tokens >= 1u && config->grow_tokens >= 1u && config->max_context >= 1u && config->chunk_align >= 1u &&
         config->chunk_tokens >= config->chunk_align &&
         (uint64_t)config->step_tokens >= (uint64_t)config->slots + config->chunk_align && config->stages >= 1u &&
         config->stages <= TG_MAX_STAGES && config->steps_in_flight >= config->stages &&
         config->steps_in_flight <= TG_MAX_STEPS && config->mailbox_depth >= 1u &&
         config->mailbox_depth <= config->steps_in_flight && config->bias_capacity <= TG_MAX_BIASES &&
         (!config->ahead || (config->stages == 1u && config->steps_in_flight == 2u)) && config->prefixes <= TG_MAX_PREFIXES &&
         tg_is_power_of_two(config->request_capacity) &&
         tg_is_power_of_two(config->token_capacity) && tg_is_power_of_two(config->event_capacity) &&
         tg_is_power_of_two(config->sampled_capacity) && config->sampled_capacity <= config->event_capacity &&
         tg_buckets_ok(config, TG_KIND_DECODE, config->slots) &&
         tg_buckets_ok(config, TG_KIND_MIXED, config->step_tokens) &&
         tg_buckets_ok(config, TG_KIND_SCORE, config->step_tokens);
}

/* Hands out tables one after the other. With a block it clears each, if it `clears`, and poisons the gap behind it. */
typedef struct tg_cursor {
  void *block;
  uint64_t end;
  uint32_t clears;
} tg_cursor;

TG_FN void tg_clear(void *block, uint64_t from, uint64_t bytes) {
  char *at = (char *)tg_at(block, from);
  for (uint64_t i = 0; i < bytes; i++) at[i] = 0;
}

TG_FN uint64_t tg_place(tg_cursor *cursor, uint64_t count, uint64_t entry_bytes) {
  uint64_t bytes = count * entry_bytes;
  uint64_t offset = cursor->end;
  cursor->end = (offset + bytes + TG_ALIGN - 1u) / TG_ALIGN * TG_ALIGN + TG_GAP;
  if (cursor->block) {
    if (cursor->clears) tg_clear(cursor->block, offset, bytes);
    TG_POISON(tg_at(cursor->block, offset + bytes), cursor->end - offset - bytes);
  }
  return offset;
}

/* Places every table of `state`, whose config is set, and returns the size of the block. */
TG_FN uint64_t tg_place_state(tg_state *state, void *block) {
  const tg_config *config = &state->config;
  uint64_t slots = config->slots;
  uint64_t pending = 2u * slots + TG_MAX_TAKES;
  uint64_t words = config->request_capacity / 32u;
  tg_cursor cursor = {block, sizeof(tg_state), 1u};
  tg_place(&cursor, 0u, 0u); /* the gap behind the head */

  state->max_pages = tg_ceil_div(config->max_context, config->page_tokens);
  state->slot_table = tg_place(&cursor, slots, sizeof(tg_slot));
  state->bias_table = tg_place(&cursor, slots * config->bias_capacity, sizeof(tg_bias));
  state->page_table = tg_place(&cursor, slots * state->max_pages, sizeof(uint32_t));
  state->free_page_table = tg_place(&cursor, config->pages, sizeof(uint32_t));
  state->free_slot_table = tg_place(&cursor, (slots + 31u) / 32u, sizeof(uint32_t));
  state->seen_table = tg_place(&cursor, config->request_capacity, sizeof(uint64_t));
  state->waiting_table = tg_place(&cursor, config->request_capacity, sizeof(tg_request));
  state->cancel_table = tg_place(&cursor, words ? words : 1u, sizeof(uint32_t));
  state->prefill_table = tg_place(&cursor, slots, sizeof(uint32_t));
  state->preempted_table = tg_place(&cursor, slots, sizeof(uint32_t));
  state->kept_table = tg_place(&cursor, slots * config->max_context, sizeof(int32_t));
  state->prefix_table = tg_place(&cursor, config->prefixes, sizeof(tg_prefix));
  state->prefix_page_table = tg_place(&cursor, (uint64_t)config->prefixes * state->max_pages, sizeof(uint32_t));
  state->going_table = tg_place(&cursor, config->prefixes, sizeof(uint32_t));
  state->pending_table = tg_place(&cursor, pending, sizeof(tg_event));
  state->pending_sample_table = tg_place(&cursor, pending, sizeof(uint32_t));
  for (uint32_t i = 0; i < config->steps_in_flight; i++) {
    tg_step *step = &state->steps[i];
    step->row_table = tg_place(&cursor, config->step_tokens, sizeof(tg_row));
    step->sequence_table = tg_place(&cursor, slots, sizeof(tg_sequence));
    step->sample_table = tg_place(&cursor, slots, sizeof(uint32_t));
    step->sampled_table = tg_place(&cursor, slots, sizeof(tg_sampled));
    step->slot_sequence_table = tg_place(&cursor, slots, sizeof(uint32_t));
  }
  for (uint32_t i = 0; i < config->steps_in_flight; i++) {
    uint32_t before = (i + config->steps_in_flight - 1u) % config->steps_in_flight;
    state->steps[i].earlier_table = state->steps[before].sampled_table;
  }
  state->scratch_table = tg_place(&cursor, 1u, sizeof(tg_turn));
  state->ended_table = tg_place(&cursor, slots, sizeof(tg_ended));
  state->wanting_table = tg_place(&cursor, slots, sizeof(uint32_t));
  state->taken_table = tg_place(&cursor, slots + TG_MAX_TAKES, sizeof(tg_taken));
  state->made_table = tg_place(&cursor, config->prefixes, sizeof(uint32_t));
  return cursor.end;
}

/* The same for `rings`, whose capacities are set. They may be 100 MiB, and nobody reads an entry before it is written: none is cleared. */
TG_FN uint64_t tg_place_rings(tg_rings *rings, void *block) {
  tg_cursor cursor = {block, sizeof(tg_rings), 0u};
  tg_place(&cursor, 0u, 0u);
  rings->requests = tg_place(&cursor, rings->request_capacity, sizeof(tg_request));
  rings->biases = tg_place(&cursor, (uint64_t)rings->request_capacity * rings->bias_capacity, sizeof(tg_bias));
  rings->tokens = tg_place(&cursor, rings->token_capacity, sizeof(int32_t));
  rings->controls = tg_place(&cursor, rings->control_capacity, sizeof(tg_control));
  rings->events = tg_place(&cursor, rings->event_capacity, sizeof(tg_event));
  rings->sampled = tg_place(&cursor, rings->sampled_capacity, sizeof(tg_sampled));
  rings->trace = tg_place(&cursor, rings->trace_capacity, sizeof(tg_trace));
  return cursor.end;
}

TG_FN uint32_t tg_rings_ok(const tg_rings *shape) {
  return tg_is_power_of_two(shape->request_capacity) && tg_is_power_of_two(shape->token_capacity) &&
         tg_is_power_of_two(shape->control_capacity) && tg_is_power_of_two(shape->event_capacity) &&
         tg_is_power_of_two(shape->sampled_capacity) && shape->sampled_capacity <= shape->event_capacity &&
         tg_is_power_of_two(shape->trace_capacity) && shape->bias_capacity <= TG_MAX_BIASES;
}

#ifndef __CUDACC__ /* the host lays both blocks out */

TG_API uint64_t tg_state_bytes(const tg_config *config) {
  tg_state shape;
  if (!tg_config_ok(config)) return 0u;
  shape.config = *config;
  return tg_place_state(&shape, 0);
}

TG_API uint32_t tg_state_init(tg_state *state, const tg_config *config) {
  uint64_t bytes = tg_state_bytes(config);
  if (bytes == 0u) return TG_ERROR_CONFIG;
  TG_UNPOISON(state, bytes);
  tg_clear(state, 0u, sizeof(tg_state));
  state->config = *config;
  state->bytes = tg_place_state(state, state);
  state->most_unread = config->event_capacity;
  state->free_pages = config->pages;
  state->leaving = TG_NONE;
  for (uint32_t i = 0; i < config->pages; i++) tg_words(state, state->free_page_table)[i] = i;
  for (uint32_t i = 0; i < config->slots; i++) {
    tg_words(state, state->free_slot_table)[i / 32u] |= 1u << (i % 32u);
  }
  for (uint32_t i = 0; i < TG_MAX_STAGES; i++) state->mailbox[i].depth = config->mailbox_depth;
  return TG_ERROR_NONE;
}

TG_API uint64_t tg_rings_bytes(const tg_rings *shape) {
  tg_rings copy = *shape;
  return tg_rings_ok(shape) ? tg_place_rings(&copy, 0) : 0u;
}

TG_API void tg_rings_init(tg_rings *rings, const tg_rings *shape) {
  TG_UNPOISON(rings, tg_rings_bytes(shape));
  *rings = *shape;
  rings->bytes = tg_place_rings(rings, rings);
}

#endif /* __CUDACC__ */
