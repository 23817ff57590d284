/* near.h: what a turn reads of each decode row that has come back, as one struct. On a GPU the dispatcher gathers it
 * into shared memory while the step still runs, since nothing of it is written by the step's kernels; only the tokens
 * come later. */
#ifndef TAILGRAPH_SCHED_NEAR_H
#define TAILGRAPH_SCHED_NEAR_H

#include "sched/turn.h"

#define TG_NEAR_STOP_IDS 4u

/* Of a decode row's slot. */
typedef struct tg_near {
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
  int32_t stop_ids[TG_NEAR_STOP_IDS]; /* the first ones */
} tg_near;

TG_FN tg_near tg_near_of(tg_state *state, const tg_step *step, uint32_t row) {
  tg_near near;
  near.slot = tg_rows(state, step)[row].slot;
  const tg_slot *slot = &tg_slots(state)[near.slot];
  near.request = slot->request;
  near.deadline_ns = slot->deadline_ns;
  near.first_ns = slot->first_ns;
  near.end_reason = slot->end_reason;
  near.generated = slot->generated;
  near.max_new_tokens = slot->max_new_tokens;
  near.prompt_tokens = slot->prompt_tokens;
  near.logprobs = slot->sampling.logprobs;
  near.stop_count = slot->stop_count;
  near.pages = slot->pages;
  near.flags = slot->flags;
  for (uint32_t i = 0u; i < TG_NEAR_STOP_IDS; i++) near.stop_ids[i] = slot->stop_ids[i];
  return near;
}

#ifdef __CUDACC__
static __shared__ tg_near tg_device_near[TG_MAX_LANES];    /* of the step that has come back, */
static __shared__ int32_t tg_device_token[TG_MAX_LANES];   /*   ... and what its rows sampled, from the stopped phase on */
#endif

/* Decode row `row` of the step that has come back, before anything of this turn is written. */
TG_FN tg_near tg_near_at(tg_state *state, const tg_step *step, uint32_t row) {
#ifdef __CUDACC__
  if (row < TG_MAX_LANES && tg_device.near_step == state->steps_collected) return tg_device_near[row];
#endif
  return tg_near_of(state, step, row);
}

/* What sampled row `sample` got: decode row r is sampled row r. */
TG_FN int32_t tg_token_at(tg_state *state, const tg_step *step, uint32_t sample) {
#ifdef __CUDACC__
  if (sample < TG_MAX_LANES) return tg_device_token[sample];
#endif
  return tg_samples(state, step)[sample].token;
}

#endif
