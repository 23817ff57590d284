/* grow.h: pages of requests that name no limit (TG_REQUEST_UNLIMITED).
 *
 * Such a request could fill the whole context, and seldom does. So it is admitted with pages for its prompt and
 * grow_tokens tokens, and takes pages for as many more whenever these are nearly used up, before any request is
 * admitted and the older requests before the newer. It does so one token before: the step that the turn composes needs none of them.
 *
 * Where the pool is dry, the newest request without a limit is preempted: it leaves (its steps in flight come back first, since they
 * write to its pages), gives its pages back, and is recomputed once there is room for what it has so far and grow_tokens more: prompt and
 * tokens, which are kept by position. Then it goes on at the same position with the same key, so its tokens are what they would have
 * been. It keeps its slot; that costs no other request anything, since none is admitted while one leaves, is preempted or finds no pages.
 * One that wants pages and is itself the newest waits with what it has: to give it back would help no other.
 *
 * Every request ends. Take the oldest request without a limit that has a slot. It never gives its pages back, since one
 * that does is newer than one that wants pages. While it wants some, newer ones without a limit give theirs back, one
 * after the other, and none of them gets any before it, since it is served first. What is left belongs to requests with a
 * limit, which hold all they need and end by themselves. And alone it fits the pool: a larger one was refused. So it ends,
 * and another is the oldest. While a request is preempted no newer one is admitted, so the oldest is always one of finitely
 * many, and those in the queue come when all of them have ended, at the latest.
 *
 * The kept tokens take 4 bytes a position of each slot's context (1,024 slots of 32,768 tokens: 128 MiB). Tokens by pages
 * would take no less: preempted ones hold none, and their tokens together can be many times the pool's. */
#pragma once

#include "sched/inputs.h"

TG_FN uint32_t tg_pages_hold(const tg_state *state, uint32_t pages, uint64_t tokens) {
  return (uint64_t)pages * state->config.page_tokens >= tokens;
}

/* Whether a sequence has no room for the token after those that it will have with this turn's step. `tokens`: with it. */
TG_FN uint32_t tg_wants_pages(const tg_state *state, uint32_t pages, uint64_t tokens, uint64_t all_tokens) {
  return !tg_pages_hold(state, pages, tokens < all_tokens ? tokens : all_tokens);
}

/* The most tokens that a request may come to hold. */
TG_FN uint64_t tg_all_tokens(uint32_t prompt_tokens, uint32_t max_new_tokens) {
  return (uint64_t)prompt_tokens + max_new_tokens;
}

/* Pages for `tokens` and what a sequence without a limit may grow by. */
TG_FN uint32_t tg_pages_to_grow(const tg_state *state, uint64_t tokens, uint64_t all_tokens) {
  uint64_t grown = tokens + TG_MUT(38, state->config.grow_tokens, (uint64_t)state->config.max_context);
  return tg_pages_of(state, grown < all_tokens ? grown : all_tokens);
}

/* In the collect phase: a slot that decodes, with its returned step collected. */
TG_FN void tg_note_wanting(tg_state *state, uint32_t index, const tg_slot *slot) {
  uint64_t all_tokens = tg_all_tokens(slot->prompt_tokens, slot->max_new_tokens);
  uint64_t tokens = (uint64_t)slot->prompt_tokens + slot->generated + slot->steps + 1u;
  if (!tg_wants_pages(state, slot->pages, tokens, all_tokens)) return;
  tg_set_bits(&tg_scratch(state)->some_want, 1u);
  tg_set_bits(&tg_scratch(state)->wanting[index / 32u], 1u << (index % 32u));
}

/* In the place phase: each slot that wants pages finds its place among all of them, the oldest request first. */
TG_FN void tg_rank_wanting(tg_state *state, uint32_t index) {
  tg_turn *turn = tg_scratch(state);
  uint64_t request = tg_slots(state)[index].request;
  uint32_t rank = 0u;
  uint32_t wants = 0u;
  for (uint32_t word = 0u; word < (state->config.slots + 31u) / 32u; word++) {
    for (uint32_t bits = turn->wanting[word]; bits != 0u; bits &= bits - 1u, wants++) {
      uint32_t other = word * 32u + tg_lowest_bit(bits);
      rank += TG_MUT(39, tg_slots(state)[other].request < request, tg_slots(state)[other].request > request);
    }
  }
  tg_wanting_list(state)[rank] = index;
  if (rank == 0u) turn->wants = wants;
}

/* In the place phase: of slots `first` to `end` the one with the newest request without a limit that has pages, as its
 * request number + 1 above the 10 bits of its index; 0: none. */
TG_FN uint64_t tg_newest_of(tg_state *state, uint32_t first, uint32_t end) {
  uint64_t newest = 0u;
  for (uint32_t index = first; index < end; index++) {
    const tg_slot *slot = &tg_slots(state)[index];
    uint32_t runs = slot->phase == TG_SLOT_PREFILL || slot->phase == TG_SLOT_DECODE;
    if (!runs || slot->end_reason != TG_END_NONE || !(slot->flags & TG_REQUEST_UNLIMITED)) continue;
    uint64_t found = (slot->request + 1u) << 10u | index;
    if (found > newest) newest = found;
  }
  return newest;
}

/* Drops slots that are no longer in prefill from the prefill list: what is left of their prompts is never composed, or is read later. */
TG_FN void tg_prune_prefill(tg_state *state) {
  uint32_t *list = tg_words(state, state->prefill_table);
  uint32_t kept = 0u;
  for (uint32_t i = 0u; i < state->prefill; i++) {
    const tg_slot *slot = &tg_slots(state)[list[i]];
    if (slot->phase == TG_SLOT_PREFILL && slot->end_reason == TG_END_NONE) list[kept++] = list[i];
  }
  state->prefill = kept;
}

/* Drops slots that ended while they were preempted from the list of these. */
TG_FN void tg_prune_preempted(tg_state *state) {
  uint32_t *list = tg_words(state, state->preempted_table);
  uint32_t kept = 0u;
  for (uint32_t i = 0u; i < state->preempted; i++) {
    const tg_slot *slot = &tg_slots(state)[list[i]];
    if (slot->phase == TG_SLOT_PREEMPTED && slot->end_reason == TG_END_NONE) list[kept++] = list[i];
  }
  state->preempted = kept;
}

/* Lane 0: `pages` of the `free_pages` go to a slot. Returns what is left. */
TG_FN uint32_t tg_give_pages(tg_state *state, uint32_t index, uint32_t pages, uint32_t free_pages) {
  tg_turn *turn = tg_scratch(state);
  tg_slot *slot = &tg_slots(state)[index];
  tg_taken *taken = &tg_taken_list(state)[turn->taken++];
  taken->slot = index;
  taken->pages = pages;
  taken->first_free = free_pages - pages;
  taken->held = slot->pages;
  slot->pages += pages;
  return free_pages - pages;
}

/* Lane 0: the newest request without a limit that has pages begins to leave, if it is newer than `wanting`'s. */
TG_FN void tg_mark_newest(tg_state *state, uint32_t wanting, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  uint64_t newest = (tg_slots(state)[wanting].request + 1u) << 10u | wanting;
  for (uint32_t lane = 0u; lane < lanes; lane++) {
    if (turn->newest[lane] <= newest || TG_MUT(40, 0, turn->marked != TG_NONE)) continue;
    newest = turn->newest[lane];
    turn->marked = (uint32_t)newest & 1023u;
  }
  if (turn->marked == TG_NONE) return;
  tg_slot *slot = &tg_slots(state)[turn->marked];
  turn->kept_from = slot->recomputes ? slot->prompt_tokens : tg_min(slot->composed, slot->prompt_tokens);
  slot->phase = TG_SLOT_LEAVING;
  state->leaving = turn->marked;
  tg_prune_prefill(state);
}

/* Lane 0: pages for the slots that want some, in order; where there are none, one is marked to leave. Returns the pages that
 * are left; `dry` says whether a slot got none. */
TG_FN uint32_t tg_grow(tg_state *state, uint32_t free_pages, uint32_t lanes, uint32_t *dry) {
  tg_turn *turn = tg_scratch(state);
  for (uint32_t i = 0u; i < turn->wants; i++) {
    uint32_t index = tg_wanting_list(state)[i];
    const tg_slot *slot = &tg_slots(state)[index];
    if (slot->phase != TG_SLOT_DECODE) continue; /* it has begun to leave */
    uint64_t tokens = (uint64_t)slot->prompt_tokens + slot->generated + slot->steps;
    uint32_t more =
        tg_pages_to_grow(state, tokens, tg_all_tokens(slot->prompt_tokens, slot->max_new_tokens)) - slot->pages;
    if (free_pages != 0u) {
      free_pages = tg_give_pages(state, index, tg_min(more, free_pages), free_pages);
    } else {
      *dry = 1u;
      if (state->leaving == TG_NONE) tg_mark_newest(state, index, lanes);
      break;
    }
  }
  return free_pages;
}

/* Lane 0 preempts the slot whose steps have come back. Those that are preempted already are newer than it, and than all that run: each
 * was the newest when it began to leave, and no newer one has been let in since. */
TG_FN void tg_preempt(tg_state *state) {
  uint32_t index = tg_scratch(state)->back;
  tg_slot *slot = &tg_slots(state)[index];
  slot->phase = TG_SLOT_PREEMPTED;
  slot->pages = 0u;
  slot->composed = TG_MUT(41, 0u, slot->composed);
  state->leaving = TG_NONE;
  tg_words(state, state->preempted_table)[state->preempted++] = index;
}

/* Lane 0: a slot enters the prefill list, in the order of requests. */
TG_FN void tg_insert_prefill(tg_state *state, uint32_t index) {
  uint32_t *list = tg_words(state, state->prefill_table);
  uint32_t at = state->prefill++;
  for (; at > 0u && tg_slots(state)[list[at - 1u]].request > tg_slots(state)[index].request; at--) list[at] = list[at - 1u];
  list[at] = index;
}

/* Pages without which a preempted slot is not recomputed. */
TG_FN uint32_t tg_pages_to_recompute(const tg_state *state, const tg_slot *slot) {
  uint64_t tokens = (uint64_t)slot->prompt_tokens + slot->generated;
  return tg_pages_to_grow(state, tokens, tg_all_tokens(slot->prompt_tokens, slot->max_new_tokens));
}

/* Lane 0: recomputes preempted slots, the oldest first, while there are pages. Returns what is left. */
TG_FN uint32_t tg_recompute(tg_state *state, uint32_t free_pages) {
  const uint32_t *list = tg_words(state, state->preempted_table);
  while (state->preempted != 0u) {
    uint32_t index = list[state->preempted - 1u];
    tg_slot *slot = &tg_slots(state)[index];
    uint32_t pages = tg_pages_to_recompute(state, slot);
    if (pages > free_pages) break;
    state->preempted--;
    free_pages = tg_give_pages(state, index, pages, free_pages);
    slot->phase = TG_SLOT_PREFILL;
    slot->recomputes++;
    tg_insert_prefill(state, index);
    tg_scratch(state)->recomputed++;
  }
  return free_pages;
}

/* All lanes, while the prompt of the slot that begins to leave is still in the ring: what was not read yet is kept. */
TG_FN void tg_keep_prompt(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  const tg_turn *turn = tg_scratch(state);
  if (turn->marked == TG_NONE || TG_MUT(42, 0, 1)) return;
  const tg_slot *slot = &tg_slots(state)[turn->marked];
  int32_t *kept = tg_kept(state, turn->marked);
  for (uint32_t at = turn->kept_from + lane; at < slot->prompt_tokens; at += lanes) {
    kept[at] = tg_prompt_token(state, rings, slot->token_start + at);
  }
}
