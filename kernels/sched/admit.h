/* admit.h: pages and slots come back, and go to the first in the queue. */
#ifndef TAILGRAPH_SCHED_ADMIT_H
#define TAILGRAPH_SCHED_ADMIT_H

#include "sched/collect.h"

/* Could this request ever be admitted? */
TG_FN uint32_t tg_is_servable(const tg_state *state, const tg_request *request) {
  uint64_t tokens = (uint64_t)request->prompt_tokens + request->max_new_tokens;
  uint32_t logits = request->flags & (TG_REQUEST_LOGITS_LAST | TG_REQUEST_LOGITS_ALL);
  uint32_t one_logits = logits == TG_REQUEST_LOGITS_LAST || logits == TG_REQUEST_LOGITS_ALL;
  uint32_t logprobs = request->sampling.logprobs;
  if (request->prompt_tokens == 0u || request->stop_count > TG_MAX_STOP_IDS || logits != request->flags) return 0u;
  if (request->max_new_tokens == 0u ? !one_logits : logits != 0u) return 0u;
  if (logprobs != TG_LOGPROBS_NONE && logprobs > TG_MAX_LOGPROBS) return 0u;
  if (request->sampling.bias_count > state->config.bias_capacity) return 0u;
  return tokens <= state->config.max_context && tg_pages_of(state, tokens) <= state->config.pages;
}

TG_FN uint32_t tg_pages_of_request(const tg_state *state, const tg_request *request) {
  return tg_pages_of(state, (uint64_t)request->prompt_tokens + request->max_new_tokens);
}

/* Why the front of the queue ends without a slot; TG_END_NONE: it does not. */
TG_FN uint32_t tg_front_end(tg_state *state, const tg_request *front, uint64_t seen_ns) {
  uint64_t number = state->requests_taken;
  if (*tg_cancel_word(state, number) & tg_cancel_bit(state, number)) return TG_END_CANCELLED;
  if (state->inputs.now_ns >= TG_MUT(8, tg_add_saturating(seen_ns, front->timeout_ns), TG_NO_TIMEOUT)) {
    return TG_END_TIMEOUT;
  }
  return tg_is_servable(state, front) ? TG_END_NONE : TG_END_REFUSED;
}

/* The lowest free slot, or TG_NONE. */
TG_FN uint32_t tg_free_slot(tg_state *state) {
  const uint32_t *words = tg_words(state, state->free_slot_table);
  for (uint32_t word = 0u; word < (state->config.slots + 31u) / 32u; word++) {
    if (words[word]) return word * 32u + tg_lowest_bit(words[word]);
  }
  return TG_NONE;
}

TG_FN void tg_fill_slot(tg_slot *slot, const tg_request *request, uint64_t number, uint64_t seen_ns, uint64_t now_ns) {
  slot->request = number;
  slot->token_start = request->token_start;
  slot->deadline_ns = tg_add_saturating(seen_ns, request->timeout_ns);
  slot->seen_ns = seen_ns;
  slot->phase = TG_SLOT_PREFILL;
  slot->end_reason = TG_END_NONE;
  slot->steps = 0u;
  slot->generated = 0u;
  slot->max_new_tokens = request->max_new_tokens;
  slot->prompt_tokens = request->prompt_tokens;
  slot->composed = 0u;
  slot->admitted_ns = now_ns;
  slot->first_ns = 0u;
  slot->last_token = -1;
  slot->flags = request->flags;
  slot->stop_count = request->stop_count;
  slot->sampling = request->sampling;
  for (uint32_t i = 0u; i < TG_MAX_STOP_IDS; i++) slot->stop_ids[i] = request->stop_ids[i];
}

/* Drops ended and ending slots from the prefill list: what is left of their prompts is never composed. */
TG_FN void tg_prune_prefill(tg_state *state) {
  uint32_t *list = tg_words(state, state->prefill_table);
  uint32_t kept = 0u;
  for (uint32_t i = 0u; i < state->prefill; i++) {
    const tg_slot *slot = &tg_slots(state)[list[i]];
    if (slot->phase == TG_SLOT_PREFILL && slot->end_reason == TG_END_NONE) list[kept++] = list[i];
  }
  state->prefill = kept;
}

/* Takes slots and pages for the front of the queue, strictly in order, until one must wait. `free_pages`
 * counts what is free; returns what is left. Events go to the pending table from `at` on. */
TG_FN uint32_t tg_admit_front(tg_state *state, uint32_t free_pages, uint32_t at) {
  tg_turn *turn = tg_scratch(state);
  uint64_t now_ns = state->inputs.now_ns;
  for (; turn->takes < TG_MAX_TAKES && state->requests_taken < state->requests_seen; turn->takes++) {
    uint64_t number = state->requests_taken;
    uint64_t seen_ns = *tg_seen_at(state, number);
    const tg_request *front = tg_waiting_at(state, number);
    uint32_t reason = tg_front_end(state, front, seen_ns);
    if (reason != TG_END_NONE) {
      tg_event *event = (tg_event *)tg_table(state, state->pending_table) + at;
      tg_slot none;
      none.request = number;
      none.end_reason = reason;
      none.generated = 0u;
      none.seen_ns = seen_ns;
      none.admitted_ns = 0u;
      none.first_ns = 0u;
      tg_fill_end(event, now_ns, &none);
      tg_words(state, state->pending_sample_table)[at++] = TG_NONE;
    } else {
      uint32_t pages = tg_pages_of_request(state, front);
      uint32_t index = tg_free_slot(state);
      if (index == TG_NONE || TG_MUT(9, pages > free_pages, pages >= free_pages)) break;
      free_pages -= pages;
      tg_taken *taken = &tg_taken_list(state)[turn->taken++];
      taken->slot = index;
      taken->pages = pages;
      taken->first_free = free_pages;
      tg_fill_slot(&tg_slots(state)[index], front, number, seen_ns, now_ns);
      tg_slots(state)[index].pages = pages;
      tg_words(state, state->free_slot_table)[index / 32u] &= ~(1u << (index % 32u));
      tg_words(state, state->prefill_table)[state->prefill++] = index;
      state->running++;
    }
    *tg_cancel_word(state, number) &= TG_MUT(10, ~tg_cancel_bit(state, number), 0xffffffffu);
    state->tokens_taken = front->token_start + front->prompt_tokens;
    state->requests_taken++;
  }
  turn->pending = at;
  return free_pages;
}

/* Phase: all lanes put the ended slots' pages back on the stack; lane 0 meanwhile does the bookkeeping and
 * admits. It touches no page entry: those of the admitted are handed out in the next phase. */
TG_FN void tg_phase_admit(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  uint32_t ended = TG_COUNTED(turn->totals, TG_ENDS);
  uint32_t free_pages = state->free_pages;
  for (uint32_t i = 0u; i < ended; i++) {
    const tg_ended *gone = &tg_ended_list(state)[i];
    const uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)gone->slot * state->max_pages;
    uint32_t *stack = tg_words(state, state->free_page_table) + free_pages;
    uint32_t count = TG_MUT(12, gone->pages, gone->pages - (gone->pages != 0u));
    if (count > state->config.pages - free_pages) {
      tg_set_bits(&state->broken, 1u); /* more pages than the pool has: every lane sees it */
      break;
    }
    for (uint32_t page = lane; page < count; page += lanes) stack[page] = pages[page];
    free_pages += count;
  }
  if (lane != 0u) return;

  for (uint32_t i = 0u; i < ended; i++) {
    uint32_t slot = tg_ended_list(state)[i].slot;
    tg_words(state, state->free_slot_table)[slot / 32u] |= 1u << (slot % 32u);
  }
  state->running -= ended;
  if (ended + TG_COUNTED(turn->totals, TG_MARKED) != 0u) tg_prune_prefill(state);
  if (turn->returned_step != TG_NO_STEP) state->steps_collected++;
  state->requests_seen = state->inputs.request_head;
  state->controls_taken = state->inputs.control_head;
  turn->taken = 0u;
  turn->takes = 0u;
  turn->pending = state->pending;
  if (turn->collecting) {
    free_pages = tg_admit_front(state, free_pages, TG_COUNTED(turn->totals, TG_TOKENS) + ended);
  }
  turn->free_pages = free_pages;
}

/* The pages of newly admitted slots, by all lanes. */
TG_FN void tg_take_pages(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  for (uint32_t i = 0u; i < turn->taken; i++) {
    const tg_taken *taken = &tg_taken_list(state)[i];
    const uint32_t *stack = tg_words(state, state->free_page_table) + taken->first_free;
    uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)taken->slot * state->max_pages;
    for (uint32_t page = lane; page < taken->pages; page += lanes) pages[page] = stack[page];
  }
}

/* And their biases, which lie in the ring until its entries are handed back (tg_release_events). */
TG_FN void tg_take_biases(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  for (uint32_t i = 0u; i < turn->taken; i++) {
    uint32_t index = tg_taken_list(state)[i].slot;
    const tg_slot *slot = &tg_slots(state)[index];
    const tg_bias *from = tg_biases_at(rings, TG_MUT(38, slot->request, slot->request + 1u));
    tg_bias *to = tg_biases_of(state, index);
    for (uint32_t entry = lane; entry < slot->sampling.bias_count; entry += lanes) to[entry] = from[entry];
  }
}

#endif
