/* returned.h: what a turn reads of each decode row that has come back. No kernel of a step writes it, so on a GPU the dispatcher gathers it
 * into shared memory while the step still runs; only the tokens come later. */
#pragma once

#include "sched/turn.h"

#define TG_ROW_STOP_IDS 4u

/* What is read of a decode row's slot. */
typedef struct tg_returned_row {
  uint64_t request;
  uint64_t deadline_ns;
  uint64_t first_ns;
  uint32_t slot;
  uint32_t end_reason;
  uint32_t generated;
  uint32_t max_new_tokens;
  uint32_t prompt_tokens;
  uint32_t logprobs;
  uint32_t stop_count;
  uint32_t pages;
  uint32_t flags;
  int32_t stop_ids[TG_ROW_STOP_IDS]; /* the first ones */
} tg_returned_row;

TG_FN tg_returned_row tg_read_returned_row(tg_state *state, const tg_step *step, uint32_t row) {
  uint32_t index = tg_rows(state, step)[row].slot;
  const tg_slot *slot = &tg_slots(state)[index];
  const tg_returned_row returned = {slot->request, slot->deadline_ns, slot->first_ns, index, slot->end_reason, slot->generated,
                                    slot->max_new_tokens, slot->prompt_tokens, slot->sampling.logprobs, slot->stop_count, slot->pages,
                                    slot->flags, {slot->stop_ids[0], slot->stop_ids[1], slot->stop_ids[2], slot->stop_ids[3]}};
  return returned;
}

#ifdef __CUDACC__
static __shared__ tg_returned_row tg_device_rows[TG_MAX_LANES]; /* of the step that has come back, */
static __shared__ int32_t tg_device_token[TG_MAX_LANES];        /*   ... and what its rows sampled, from the stopped phase on */
#endif

/* Decode row `row` of the step that has come back, before anything of this turn is written. */
TG_FN tg_returned_row tg_returned_row_at(tg_state *state, const tg_step *step, uint32_t row) {
#ifdef __CUDACC__
  if (row < TG_MAX_LANES && tg_device.rows_step == state->steps_collected) return tg_device_rows[row];
#endif
  return tg_read_returned_row(state, step, row);
}

/* What sampled row `sample` got: decode row r is sampled row r. */
TG_FN int32_t tg_token_at(tg_state *state, const tg_step *step, uint32_t sample) {
#ifdef __CUDACC__
  if (sample < TG_MAX_LANES) return tg_device_token[sample];
#endif
  return tg_samples(state, step)[sample].token;
}
