/* turn.h: the scratch of one turn, and sums over the lanes. Rule of the whole core: within a phase no lane reads what another lane
 * writes. So what one phase finds out goes here, and later phases read it. Nothing here outlives a turn. */
#pragma once

#include "sched/tables.h"

/* How many of something each lane found among its slots: five counts of 12 bits (slots are at most 1024). */
#define TG_COUNT_BITS 12u
#define TG_COUNT(field) (1ull << ((field) * TG_COUNT_BITS))
#define TG_COUNTED(counts, field) ((uint32_t)((counts) >> ((field) * TG_COUNT_BITS)) & 0xfffu)
#define TG_TOKENS 0u      /* token events */
#define TG_ENDS 1u        /* slots that end now */
#define TG_CANDIDATES 2u  /* slots that could have a decode row */
#define TG_DECODING 3u    /* slots in decode that are not ending, in flight or not */
#define TG_MARKED 4u      /* slots that got an end reason from outside: cancelled, timed out */

#define TG_GROUP 16u      /* lanes whose counts are summed together on the way to a prefix sum */

/* Notes: what the collect phase found out about a slot. */
#define TG_NOTE_TOKEN 1u
#define TG_NOTE_END 2u
#define TG_NOTE_CANDIDATE 4u
#define TG_NOTE_SAMPLE_SHIFT 8u /* with TG_NOTE_TOKEN: index among the returned step's sampled rows */

/* A slot whose pages come back: `count` of its page table, from the first that is its own. */
typedef struct tg_ended {
  uint32_t slot;
  uint32_t first;
  uint32_t count;
} tg_ended;

typedef struct tg_taken {
  uint32_t slot;
  uint32_t pages;
  uint32_t first_free;  /* these pages are free_page_table[first_free ..] */
  uint32_t held;        /* the slot's pages before them */
} tg_taken;

typedef struct tg_turn {
  uint64_t counts[TG_MAX_LANES];  /* per lane, */
  uint64_t groups[TG_MAX_LANES / TG_GROUP]; /* per TG_GROUP lanes, */
  uint64_t before[TG_MAX_LANES];  /* of all lanes before this one, */
  uint64_t totals;                /* and of all lanes */
  uint64_t returned_step;         /* TG_NO_STEP: none */
  uint64_t requests_seen;         /* before this turn */
  uint64_t controls_taken;        /* before this turn */
  uint32_t only_step_is_new;      /* and no host, queue or slot needs more than the next decode step, */
  uint32_t asks_more;             /* one of that step's rows was its slot's last, or its slot wants pages (0 between turns) */
  uint32_t wants_claim;           /* 1: there is something to claim, and this turn could admit it */
  uint32_t ends;                  /* where it wants to claim: slots that end in this turn, as far as is known before it */
  uint32_t open;                  /* 0: the turn does nothing (stop, error, trace ring full) */
  uint32_t collecting;            /* 1: no event was left over, so this turn may collect and admit */
  uint32_t sampled_place;         /* place of the step that the pending events' samples lie in */
  uint32_t below;                 /* candidates below the decode cursor */
  uint32_t taken;                 /* entries of taken_table */
  uint32_t takes;                 /* requests admitted or ended in the queue */
  uint32_t wanting[TG_MAX_SLOTS / 32u]; /* bit per slot: wants pages */
  uint32_t some_want;             /* 1: not all of them are 0 */
  uint32_t wants;                 /* bits that are set there, and entries of wanting_table */
  uint64_t newest[TG_MAX_LANES];  /* per lane, where some want: its newest request without a limit (tg_newest_of) */
  uint32_t preempted_ends;        /* 1: a preempted slot got an end reason */
  tg_ended back;                  /* the slot whose pages come back although its request goes on; TG_NONE */
  uint32_t marked;                /* the slot that begins to leave in this turn; TG_NONE */
  uint32_t kept_from;             /* of its prompt, what is not kept yet */
  uint32_t recomputed;            /* slots whose recomputation begins */
  uint32_t going;                 /* entries of going_table whose pages come back in this turn */
  uint32_t made;                  /* entries of made_table */
  uint32_t skipped;               /* tg_outcome.skipped */
  uint32_t free_pages;            /* after this turn's releases and admissions */
  uint32_t pending;               /* entries of pending_table */
  uint32_t publish;               /* of those, how many go out now */
  uint32_t composing;             /* 1: this turn may compose a step */
  uint32_t composed;              /* 1: it has: what the step is stands in its head */
  uint32_t next_cursor;
  uint32_t notes[TG_MAX_SLOTS];   /* of each slot: TG_NOTE_* */
} tg_turn;

#ifdef __CUDACC__
static __shared__ tg_turn tg_device_turn;

TG_FN tg_turn *tg_scratch(tg_state *) { return &tg_device_turn; }
#else
TG_FN tg_turn *tg_scratch(tg_state *state) { return (tg_turn *)tg_table(state, state->scratch_table); }
#endif

/* After the routine phase: whether the routine's phases stand in for the others. */
TG_FN uint32_t tg_is_routine(tg_state *state) {
  const tg_turn *turn = tg_scratch(state);
  return turn->only_step_is_new && !turn->asks_more;
}

TG_FN tg_event *tg_pending(tg_state *state) { return (tg_event *)tg_table(state, state->pending_table); }

TG_FN tg_ended *tg_ended_list(tg_state *state) { return (tg_ended *)tg_table(state, state->ended_table); }

TG_FN uint32_t *tg_wanting_list(tg_state *state) { return tg_words(state, state->wanting_table); }

TG_FN tg_taken *tg_taken_list(tg_state *state) { return (tg_taken *)tg_table(state, state->taken_table); }

TG_FN uint32_t tg_pages_of(const tg_state *state, uint64_t tokens) {
  return (uint32_t)((tokens + TG_MUT(11, state->config.page_tokens - 1u, 0u)) / state->config.page_tokens);
}

/* The slots of a lane: consecutive ones, so that slot order is lane order. */
TG_FN uint32_t tg_first_slot(const tg_state *state, uint32_t lane, uint32_t lanes) {
  return tg_min(lane * tg_ceil_div(state->config.slots, lanes), state->config.slots);
}

/* Second half of a prefix sum over lanes, after tg_phase_groups: what all lanes before this one counted. */
TG_FN uint64_t tg_count_before(const tg_turn *turn, uint32_t lane) {
  uint64_t sum = 0u;
  for (uint32_t group = 0u; group < lane / TG_GROUP; group++) sum += turn->groups[group];
  for (uint32_t other = lane / TG_GROUP * TG_GROUP; other < lane; other++) sum += turn->counts[other];
  return sum;
}

/* Phase: sums the counts of each group of lanes. */
TG_FN void tg_phase_groups(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  uint64_t sum = 0u;
  uint32_t first = lane * TG_GROUP;
  if (!turn->open || first >= lanes) return;
  for (uint32_t other = first; other < tg_min(first + TG_GROUP, lanes); other++) sum += turn->counts[other];
  turn->groups[lane] = sum;
}

#define TG_ROW_STOP_IDS 4u

/* What a turn reads of the slot of a row that has come back. No kernel of a step writes it, so on a GPU the dispatcher gathers it into
 * shared memory while the step still runs. */
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
static __shared__ int32_t tg_device_token[TG_MAX_LANES];        /* and what its rows sampled, from the stopped phase on */
#endif

/* Row `row` of the step that has come back, before anything of this turn is written. */
TG_FN tg_returned_row tg_returned_row_at(tg_state *state, const tg_step *step, uint32_t row) {
#ifdef __CUDACC__
  if (row < tg_device.rows_held) return tg_device_rows[row];
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
