/* handover.h: steps from stage to stage, over memory that both see. Stages are a ring: link s goes from stage s to the next one, and the
 * last stage's brings what was sampled back to stage 0. Only the two neighbours of a link are on its path: threads, or GPUs that store
 * into each other's memory.
 *
 * A poster releases its count of steps behind all it has stored into the place; a taker its count of places given back, behind all it
 * has read there. These counts are the credits. No call here waits: a caller asks again, until a deadline where another stage owes the
 * answer (room in a link, or, for stage 0, a step that is on its way). A stage that waits for work has none: its neighbours or the stop
 * flag end it. One that ends releases why on both its links, and whoever reads that ends too: one dead stage hides it from nobody.
 *
 * Stage 0 may fill places without taking what comes back meanwhile, so the link to it has a place for every step in flight: with fewer
 * the ring could fill up (tests/explore shows it). */
#pragma once

#include "sched/tables.h"

/* A place's first word is the number of its step. Its second announces it as soon as its description lies there: the number and one, kind
 * and bucket. So its taker may launch what runs it, and take the tables, before the activations have come. */
#define TG_ANNOUNCED_SHIFT 16u

#define TG_PLACE_ALIGN 128u

/* Byte offsets into a place. */
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
  at.pages = tg_place_after(at.slots, slots, sizeof(tg_slot));
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

/* How many words a lane reads before it writes any, so that the loads do not wait for each other. */
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

/* Words of a table that go into a place, if this `puts`, or come out of it. */
TG_FN void tg_pass_words(uint32_t puts, void *place, void *table, uint32_t count, uint32_t first, uint32_t stride) {
  tg_copy_words((uint32_t *)(puts ? place : table), (const uint32_t *)(puts ? table : place), count, first, stride);
}

/* A step's sequences with their slots, biases and those pages that its kernels read. Tables lie where they do in the state that the
 * step was composed in: both were laid out by one configuration. */
TG_FN void tg_pass_sequences(tg_state *state, const tg_step *step, void *place, uint32_t puts, uint32_t lane, uint32_t lanes) {
  const tg_config *config = &state->config;
  const tg_place_layout at = tg_layout_of_place(config);
  uint32_t *samples = tg_words(state, step->sample_table), *slot_sequences = tg_words(state, step->slot_sequence_table);
  tg_pass_words(puts, tg_at(place, at.samples), samples, step->sample_rows, lane, lanes);
  tg_pass_words(puts, tg_at(place, at.slot_sequences), slot_sequences, config->slots, lane, lanes);
  for (uint32_t i = lane; i < step->sequences; i += lanes) {
    tg_sequence *passed = (tg_sequence *)tg_at(place, at.sequences) + i, *own = &tg_sequences(state, step)[i];
    const tg_sequence sequence = puts ? *own : *passed;
    tg_slot *passed_slot = (tg_slot *)tg_at(place, at.slots) + i, *own_slot = &tg_slots(state)[sequence.slot];
    const tg_slot slot = puts ? *own_slot : *passed_slot;
    tg_bias *biases = (tg_bias *)tg_at(place, at.biases) + (uint64_t)i * config->bias_capacity;
    uint32_t *pages = (uint32_t *)tg_at(place, at.pages) + (uint64_t)i * state->max_pages;
    uint32_t *own_pages = tg_words(state, state->page_table) + (uint64_t)sequence.slot * state->max_pages;
    uint32_t page_count = tg_min(tg_ceil_div(sequence.first_position + sequence.rows, config->page_tokens), state->max_pages);
    *(puts ? passed : own) = sequence;
    *(puts ? passed_slot : own_slot) = slot;
    tg_pass_words(puts, biases, tg_biases_of(state, sequence.slot), 2u * slot.sampling.bias_count, 0u, 1u);
    tg_pass_words(puts, pages, own_pages, page_count, 0u, 1u);
  }
}

/* Tokens go as ids: the slots' newest are stage 0's. */
TG_API void tg_put_step(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes) {
  const tg_place_layout at = tg_layout_of_place(&state->config);
  const tg_step *step = tg_step_at(state, number);
  for (uint32_t i = lane; i < step->rows; i += lanes) {
    tg_row row = tg_rows(state, step)[i];
    if (row.token == -1) row.token = tg_slots(state)[row.slot].last_token;
    if (row.token == TG_TOKEN_KEPT) row.token = tg_kept(state, row.slot)[row.position];
    ((tg_row *)tg_at(place, at.rows))[i] = row;
  }
  tg_pass_sequences(state, step, place, 1u, lane, lanes);
  if (lane == 0u) *(tg_step *)tg_at(place, at.step) = *step;
}

TG_API void tg_get_step(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes) {
  const tg_place_layout at = tg_layout_of_place(&state->config);
  const tg_step *step = (const tg_step *)tg_at((void *)place, at.step);
  tg_copy_words((uint32_t *)tg_rows(state, step), (const uint32_t *)tg_at((void *)place, at.rows), 4u * step->rows, lane, lanes);
  tg_pass_sequences(state, step, (void *)place, 0u, lane, lanes);
  if (lane == 0u) *tg_step_at(state, step->number) = *step;
}

/* What a step has sampled. */
TG_FN void tg_pass_results(tg_state *state, const tg_step *step, void *place, uint32_t puts, uint32_t lane, uint32_t lanes) {
  uint32_t words = step->sample_rows * (uint32_t)(sizeof(tg_sampled) / sizeof(uint32_t));
  tg_pass_words(puts, tg_at(place, TG_PLACE_ALIGN), tg_samples(state, step), words, lane, lanes);
}

TG_API void tg_put_results(tg_state *state, uint64_t number, uint64_t *place, uint32_t lane, uint32_t lanes) {
  tg_pass_results(state, tg_step_at(state, number), place, 1u, lane, lanes);
}

TG_API void tg_get_results(tg_state *state, const uint64_t *place, uint32_t lane, uint32_t lanes) {
  tg_pass_results(state, tg_step_at(state, place[0]), (void *)place, 0u, lane, lanes);
}

/* One lane: this stage ends as `why` says. */
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

/* Whether the host, or a neighbour, has ended this stage. What the one before posted before a drained end (`before`) is still taken. */
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
  TG_MUT(148, tg_release(tg_link_place(out) + 1, word), tg_store(tg_link_place(out) + 1, word));
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
  TG_MUT(144, tg_release(&out->mine->count, out->count), tg_store(&out->mine->count, out->count));
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
  TG_MUT(147, tg_release(&in->mine->count, in->count), tg_store(&in->mine->count, in->count));
}
