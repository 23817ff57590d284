/* handover.h: steps from stage to stage, over memory that both see. Stages are a ring: link s goes from stage s to the
 * next one, and the last stage's brings what was sampled back to stage 0. Nobody but the two neighbours of a link is on its
 * path, whatever runs the stages: threads, or GPUs that store into each other's memory.
 *
 * What a poster releases is its count of steps, behind all it has stored into the place; what a taker releases is its count
 * of places given back, behind all it has read there. So a place is never filled before it has been read, and never read
 * before it is whole: these counts are the credits. No call here waits. A caller asks again, and what it waits for ends by a
 * deadline where another stage owes the answer: room in a link, or, for stage 0, a step that is on its way. A stage that
 * waits for work alone has no deadline; it ends by its neighbours' words, or by the stop flag.
 *
 * A stage that ends releases why on both its links, and whoever reads that ends too, with the same word: the news goes round the ring
 * both ways, so one stage that is dead hides it from nobody.
 *
 * Stage 0 may fill places without taking what comes back meanwhile. So the link to it has a place for every step in flight;
 * with fewer the ring could fill up (tests/explore shows it). */
#pragma once

#include "sched/tables.h"

/* ---- what a place holds ---------------------------------------------------------------------- */

/* A place's second word announces the step that comes in it, as soon as its description lies there: the number and one, kind and bucket. So
 * its taker may launch what runs it, and take the tables, before the activations have come. */
#define TG_ANNOUNCED_SHIFT 16u

#define TG_PLACE_ALIGN 128u

/* What a later stage knows of a sequence's slot. */
typedef struct tg_handed_slot {
  uint64_t request;
  uint32_t flags;
  int32_t last_token;
  uint32_t prompt_tokens;
  uint32_t stop_count;
  tg_sampling sampling;
  int32_t stop_ids[TG_MAX_STOP_IDS];
} tg_handed_slot;

/* Byte offsets into a place. Its first word is the number of the step. */
typedef struct tg_place_layout {
  uint64_t step, rows, sequences, samples, slot_sequences, slots, pages, biases, activations;
} tg_place_layout;

TG_FN uint64_t tg_place_after(uint64_t offset, uint64_t count, uint64_t entry_bytes) {
  return (offset + count * entry_bytes + TG_PLACE_ALIGN - 1u) / TG_PLACE_ALIGN * TG_PLACE_ALIGN;
}

TG_FN tg_place_layout tg_layout_of_place(const tg_config *config) {
  uint64_t slots = config->slots;
  tg_place_layout at;
  at.step = TG_PLACE_ALIGN;
  at.rows = tg_place_after(at.step, 1u, sizeof(tg_step));
  at.sequences = tg_place_after(at.rows, config->step_tokens, sizeof(tg_row));
  at.samples = tg_place_after(at.sequences, slots, sizeof(tg_sequence));
  at.slot_sequences = tg_place_after(at.samples, slots, sizeof(uint32_t));
  at.slots = tg_place_after(at.slot_sequences, slots, sizeof(uint32_t));
  at.pages = tg_place_after(at.slots, slots, sizeof(tg_handed_slot));
  at.biases = tg_place_after(at.pages, slots * tg_ceil_div(config->max_context, config->page_tokens), sizeof(uint32_t));
  at.activations = tg_place_after(at.biases, slots * config->bias_capacity, sizeof(tg_bias));
  return at;
}

TG_API uint64_t tg_place_activations(const tg_config *config) {
  return tg_layout_of_place(config).activations / sizeof(uint64_t);
}

TG_API uint64_t tg_step_place_words(const tg_config *config, uint64_t row_words) {
  uint64_t rows = tg_layout_of_place(config).activations;
  return tg_place_after(rows, config->step_tokens * row_words, sizeof(uint64_t)) / sizeof(uint64_t);
}

TG_API uint64_t tg_result_place_words(const tg_config *config) {
  return tg_place_after(TG_PLACE_ALIGN, config->slots, sizeof(tg_sampled)) / sizeof(uint64_t);
}

/* The pages of a sequence's slot that the step's kernels read, at most all it has. */
TG_FN uint32_t tg_pages_read(const tg_state *state, const tg_sequence *sequence) {
  return tg_min(tg_ceil_div(sequence->first_position + sequence->rows, state->config.page_tokens), state->max_pages);
}

/* How many words a lane copies at a time: all of them are read before any is written, so that they do not wait for each other.
 * A compiler cannot know that what is written here is nothing that is read next. */
#define TG_AT_ONCE 8u

/* Words first, first + stride ... of `count`. */
TG_FN void tg_copy_words(uint32_t *to, const uint32_t *from, uint32_t count, uint32_t first, uint32_t stride) {
  for (uint32_t at = first; at < count; at += TG_AT_ONCE * stride) {
    uint32_t words[TG_AT_ONCE];
    for (uint32_t i = 0u; i < TG_AT_ONCE; i++) words[i] = at + i * stride < count ? from[at + i * stride] : 0u;
    for (uint32_t i = 0u; i < TG_AT_ONCE; i++) {
      if (at + i * stride < count) to[at + i * stride] = words[i];
    }
  }
}

/* Tokens go as ids: the slots' newest are stage 0's. */
TG_API void tg_put_step(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes) {
  const tg_place_layout at = tg_layout_of_place(&state->config);
  const tg_step *step = tg_step_at(state, number);
  for (uint32_t i = lane; i < step->rows; i += lanes) {
    tg_row row = tg_rows(state, step)[i];
    if (row.token == -1) row.token = tg_slots(state)[row.slot].last_token;
    if (row.token == TG_TOKEN_KEPT) {
      const int32_t *kept = (const int32_t *)tg_table(state, state->kept_table);
      row.token = kept[(uint64_t)row.slot * state->config.max_context + row.position];
    }
    ((tg_row *)tg_at(place, at.rows))[i] = row;
  }
  tg_copy_words((uint32_t *)tg_at(place, at.samples), tg_words(state, step->sample_table), step->sample_rows, lane, lanes);
  tg_copy_words((uint32_t *)tg_at(place, at.slot_sequences), tg_words(state, step->slot_sequence_table), state->config.slots, lane,
                lanes);
  for (uint32_t i = lane; i < step->sequences; i += lanes) {
    const tg_sequence sequence = tg_sequences(state, step)[i];
    const tg_slot *slot = &tg_slots(state)[sequence.slot];
    uint64_t column = (uint64_t)i * state->max_pages;
    const uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)sequence.slot * state->max_pages;
    tg_handed_slot handed;
    handed.request = slot->request;
    handed.flags = slot->flags;
    handed.last_token = slot->last_token;
    handed.prompt_tokens = slot->prompt_tokens;
    handed.stop_count = slot->stop_count;
    handed.sampling = slot->sampling;
    for (uint32_t id = 0u; id < TG_MAX_STOP_IDS; id++) handed.stop_ids[id] = slot->stop_ids[id];
    ((tg_sequence *)tg_at(place, at.sequences))[i] = sequence;
    ((tg_handed_slot *)tg_at(place, at.slots))[i] = handed;
    const tg_bias *biases = (const tg_bias *)tg_table(state, state->bias_table) + (uint64_t)sequence.slot * state->config.bias_capacity;
    for (uint32_t bias = 0u; bias < handed.sampling.bias_count; bias++) {
      ((tg_bias *)tg_at(place, at.biases))[(uint64_t)i * state->config.bias_capacity + bias] = biases[bias];
    }
    tg_copy_words((uint32_t *)tg_at(place, at.pages) + column, pages, tg_pages_read(state, &sequence), 0u, 1u);
  }
  if (lane == 0u) *(tg_step *)tg_at(place, at.step) = *step;
}

/* Tables lie where they do in the state that the step was composed in: both were laid out by one configuration. */
TG_API void tg_get_step(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes) {
  const tg_place_layout at = tg_layout_of_place(&state->config);
  const tg_step *step = (const tg_step *)tg_at((void *)place, at.step);
  for (uint32_t i = lane; i < step->rows; i += lanes) {
    tg_rows(state, step)[i] = ((const tg_row *)tg_at((void *)place, at.rows))[i];
  }
  const uint32_t *samples = (const uint32_t *)tg_at((void *)place, at.samples);
  const uint32_t *slot_sequences = (const uint32_t *)tg_at((void *)place, at.slot_sequences);
  tg_copy_words(tg_words(state, step->sample_table), samples, step->sample_rows, lane, lanes);
  tg_copy_words(tg_words(state, step->slot_sequence_table), slot_sequences, state->config.slots, lane, lanes);
  for (uint32_t i = lane; i < step->sequences; i += lanes) {
    const tg_sequence sequence = ((const tg_sequence *)tg_at((void *)place, at.sequences))[i];
    const tg_handed_slot handed = ((const tg_handed_slot *)tg_at((void *)place, at.slots))[i];
    tg_slot *slot = &tg_slots(state)[sequence.slot];
    uint64_t column = (uint64_t)i * state->max_pages;
    uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)sequence.slot * state->max_pages;
    tg_sequences(state, step)[i] = sequence;
    slot->request = handed.request;
    slot->flags = handed.flags;
    slot->last_token = handed.last_token;
    slot->prompt_tokens = handed.prompt_tokens;
    slot->stop_count = handed.stop_count;
    slot->sampling = handed.sampling;
    for (uint32_t id = 0u; id < TG_MAX_STOP_IDS; id++) slot->stop_ids[id] = handed.stop_ids[id];
    tg_bias *biases = (tg_bias *)tg_table(state, state->bias_table) + (uint64_t)sequence.slot * state->config.bias_capacity;
    for (uint32_t bias = 0u; bias < handed.sampling.bias_count; bias++) {
      biases[bias] = ((const tg_bias *)tg_at((void *)place, at.biases))[(uint64_t)i * state->config.bias_capacity + bias];
    }
    const uint32_t *from = (const uint32_t *)tg_at((void *)place, at.pages) + column;
    tg_copy_words(pages, from, tg_pages_read(state, &sequence), 0u, 1u);
  }
  if (lane == 0u) *tg_step_at(state, step->number) = *step;
}

TG_FN void tg_put_results_of(tg_state *state, const tg_step *step, uint64_t *place, uint32_t lane, uint32_t lanes) {
  for (uint32_t i = lane; i < step->sample_rows; i += lanes) {
    ((tg_sampled *)tg_at(place, TG_PLACE_ALIGN))[i] = tg_samples(state, step)[i];
  }
}

TG_API void tg_put_results(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes) {
  tg_put_results_of(state, tg_step_at(state, number), place, lane, lanes);
}

TG_API void tg_get_results(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes) {
  const tg_step *step = tg_step_at(state, place[0]);
  for (uint32_t i = lane; i < step->sample_rows; i += lanes) {
    tg_samples(state, step)[i] = ((const tg_sampled *)tg_at((void *)place, TG_PLACE_ALIGN))[i];
  }
}

/* ---- places and credits: one lane ------------------------------------------------------------- */

TG_FN void tg_links_end_as(tg_links *links, uint64_t why) {
  if (links->ended) return;
  links->ended = why;
  tg_release(&links->in.mine->ended, why);
  tg_release(&links->out.mine->ended, why);
}

TG_FN uint32_t tg_links_end_at(tg_links *links, const tg_link_end *end, uint32_t code) {
  tg_links_end_as(links, (uint64_t)code | (uint64_t)end->link << 16 | (uint64_t)links->stage << 32);
  return TG_LINK_OVER;
}

TG_API void tg_links_end(tg_links *links, uint32_t code) { tg_links_end_at(links, &links->out, code); }

/* Whether the host, or a neighbour, has ended this stage. `before` is the word of the stage before: what that one posted before a drained
 * end is still to be taken. */
TG_FN uint32_t tg_links_are_over(tg_links *links, uint64_t before) {
  if (links->ended) return 1u;
  if (tg_acquire(links->stop) & TG_INPUT_STOP) {
    tg_links_end(links, TG_LINK_STOPPED);
    return 1u;
  }
  uint64_t why = (before & 0xffffu) == TG_LINK_DRAINED ? 0u : before;
  if (!why) why = tg_acquire(&links->out.theirs->ended);
  if (TG_MUT(140, why, 0u)) tg_links_end_as(links, why);
  return links->ended != 0u;
}

TG_FN uint32_t tg_link_waits(tg_links *links, tg_link_end *end, uint32_t owed, uint64_t now_ns) {
  if (owed && !end->waits) end->since_ns = now_ns;
  end->waits = owed;
  uint64_t waited_ns = now_ns - end->since_ns;
  if (owed && TG_MUT(141, waited_ns >= links->limit_ns, 0)) return tg_links_end_at(links, end, TG_LINK_LATE);
  return TG_LINK_WAIT;
}

TG_API uint64_t *tg_link_place(const tg_link_end *end) {
  return end->places + end->at * end->place_words;
}

TG_FN void tg_link_goes_on(tg_link_end *end) {
  end->count++;
  end->at = end->at + 1u == end->depth ? 0u : end->at + 1u;
}

/* Steps that the poster of a link has posted. */
TG_FN uint64_t tg_link_posted(const tg_link_end *in) {
  return TG_MUT(145, tg_acquire(&in->theirs->count), tg_load(&in->theirs->count));
}

TG_API uint32_t tg_links_room(tg_links *links, uint64_t now_ns) {
  tg_link_end *out = &links->out;
  if (out->count - out->known >= TG_MUT(142, out->depth, out->depth + 1u)) {
    if (tg_links_are_over(links, tg_acquire(&links->in.theirs->ended))) return TG_LINK_OVER;
    out->known = tg_acquire(&out->theirs->count);
    if (out->count - out->known >= TG_MUT(142, out->depth, out->depth + 1u)) return tg_link_waits(links, out, 1u, now_ns);
  }
  out->waits = 0u;
  out->holds = 1u;
  return TG_LINK_READY;
}

TG_API void tg_links_announce(tg_links *links, uint32_t kind, uint32_t bucket) {
  const tg_link_end *out = &links->out;
  uint64_t word = (out->count + 1u) << TG_ANNOUNCED_SHIFT | kind << 8u | bucket;
  if (TG_MUT(148, 1, 0)) tg_release(tg_link_place(out) + 1, word);
  if (TG_MUT(148, 0, 1)) tg_store(tg_link_place(out) + 1, word);
}

TG_API uint32_t tg_link_announced(const tg_link_end *in, uint32_t *kind, uint32_t *bucket) {
  const uint64_t *word = tg_link_place(in) + 1;
  uint64_t found = TG_MUT(149, tg_acquire(word), tg_load(word));
  *kind = (uint32_t)(found >> 8u) & 0xffu;
  *bucket = (uint32_t)found & 0xffu;
  return found >> TG_ANNOUNCED_SHIFT == in->count + 1u;
}

TG_FN void tg_link_post(tg_link_end *out) {
  uint64_t *place = tg_link_place(out);
  out->holds = 0u;
  if (TG_MUT(143, 0, 1)) tg_release(&out->mine->count, out->count + 1u);
  tg_write(place, out->count);
  tg_link_goes_on(out);
  if (TG_MUT(144, 1, 0)) tg_release(&out->mine->count, out->count);
  if (TG_MUT(144, 0, 1)) tg_store(&out->mine->count, out->count);
}

TG_API void tg_links_post(tg_links *links) { tg_link_post(&links->out); }

/* A step that has been posted is taken before anything else is looked at: the host's stop flag lies across the bus from a GPU. */
TG_API uint32_t tg_links_take(tg_links *links, uint64_t now_ns) {
  tg_link_end *in = &links->in;
  if (in->known == in->count) in->known = tg_link_posted(in);
  if (in->known == in->count) {
    uint64_t before = tg_acquire(&in->theirs->ended); /* and then the count, so that all it posted is seen */
    if (tg_links_are_over(links, before)) return TG_LINK_OVER;
    in->known = tg_link_posted(in);
    if (in->known == in->count) {
      uint32_t owed = links->stage == 0u && links->out.count != in->count;
      if (before) tg_links_end_as(links, before);
      return before ? TG_LINK_OVER : tg_link_waits(links, in, owed, now_ns);
    }
  }
  in->waits = 0u;
  if (tg_read(tg_link_place(in)) != in->count) return tg_links_end_at(links, in, TG_LINK_ORDER);
  in->holds = 1u;
  if (TG_MUT(146, 0, 1)) tg_release(&in->mine->count, in->count + 1u);
  return TG_LINK_READY;
}

TG_API void tg_links_release(tg_links *links) {
  tg_link_end *in = &links->in;
  in->holds = 0u;
  tg_link_goes_on(in);
  if (TG_MUT(147, 1, 0)) tg_release(&in->mine->count, in->count);
  if (TG_MUT(147, 0, 1)) tg_store(&in->mine->count, in->count);
}
