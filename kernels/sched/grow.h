/* grow.h: pages of requests that name no limit (TG_REQUEST_UNLIMITED).
 *
 * Such a request is admitted with pages for its prompt and grow_tokens tokens, and takes pages for as many more one token before
 * these are used up, older requests before newer ones and all of them before any request is admitted.
 *
 * Where the pool is dry, the newest request without a limit is preempted: once its steps in flight have come back it gives its pages
 * back, and it is recomputed when there is room for its tokens so far, which are kept by position, and grow_tokens more. It goes on at the
 * same position with the same key, so its tokens are what they would have been. It keeps its slot.
 *
 * Every request ends. The oldest one without a limit never gives its pages back, and newer ones give theirs while it wants some. Alone it
 * fits the pool, else it was refused. So it ends, and another is the oldest of finitely many: while one leaves, is preempted or finds no
 * pages, none is admitted. */
#pragma once

#include "sched/prefix.h"

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

/* Drops slots that have ended, or are no longer in `phase`, from a list of `*count`. */
TG_FN void tg_prune(tg_state *state, uint64_t list_table, uint32_t *count, uint32_t phase) {
  uint32_t *list = tg_words(state, list_table);
  uint32_t kept = 0u;
  for (uint32_t i = 0u; i < *count; i++) {
    const tg_slot *slot = &tg_slots(state)[list[i]];
    if (slot->phase == phase && slot->end_reason == TG_END_NONE) list[kept++] = list[i];
  }
  *count = kept;
}

/* Lane 0: `pages` of the `free_pages` go to a slot. Returns what is left. */
TG_FN uint32_t tg_give_pages(tg_state *state, uint32_t index, uint32_t pages, uint32_t free_pages) {
  tg_turn *turn = tg_scratch(state);
  tg_slot *slot = &tg_slots(state)[index];
  const tg_taken taken = {index, pages, free_pages - pages, slot->pages};
  tg_taken_list(state)[turn->taken++] = taken;
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
  tg_prune(state, state->prefill_table, &state->prefill, TG_SLOT_PREFILL);
}

/* Lane 0: pages for the slots that want some, in order; where there are none (`*dry`), one is marked to leave. Returns what is left. */
TG_FN uint32_t tg_grow(tg_state *state, uint32_t free_pages, uint32_t lanes, uint32_t *dry) {
  tg_turn *turn = tg_scratch(state);
  for (uint32_t i = 0u; i < turn->wants; i++) {
    uint32_t index = tg_wanting_list(state)[i];
    const tg_slot *slot = &tg_slots(state)[index];
    if (slot->phase != TG_SLOT_DECODE) continue; /* it has begun to leave */
    uint64_t tokens = (uint64_t)slot->prompt_tokens + slot->generated + slot->steps;
    uint64_t all_tokens = tg_all_tokens(slot->prompt_tokens, slot->max_new_tokens);
    uint32_t more = tg_pages_to_grow(state, tokens, all_tokens) - slot->pages;
    if (free_pages == 0u) {
      *dry = 1u;
      if (!tg_make_room(state, more, TG_NONE) && state->leaving == TG_NONE) tg_mark_newest(state, index, lanes);
      break;
    }
    free_pages = tg_give_pages(state, index, tg_min(more, free_pages), free_pages);
  }
  return free_pages;
}

/* Lane 0: recomputes preempted slots, the oldest first, while there are pages. Returns what is left. */
TG_FN uint32_t tg_recompute(tg_state *state, uint32_t free_pages) {
  uint32_t *list = tg_words(state, state->prefill_table);
  while (state->preempted != 0u) {
    uint32_t index = tg_words(state, state->preempted_table)[state->preempted - 1u];
    tg_slot *slot = &tg_slots(state)[index];
    uint64_t all_tokens = tg_all_tokens(slot->prompt_tokens, slot->max_new_tokens);
    uint32_t pages = tg_pages_to_grow(state, (uint64_t)slot->prompt_tokens + slot->generated, all_tokens);
    if (pages > free_pages) {
      tg_make_room(state, pages - free_pages, TG_NONE);
      break;
    }
    state->preempted--;
    free_pages = tg_give_pages(state, index, pages, free_pages);
    slot->phase = TG_SLOT_PREFILL;
    slot->recomputes++;
    uint32_t at = state->prefill++; /* in the order of requests */
    for (; at > 0u && tg_slots(state)[list[at - 1u]].request > slot->request; at--) list[at] = list[at - 1u];
    list[at] = index;
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
