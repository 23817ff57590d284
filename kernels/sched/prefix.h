/* prefix.h: beginnings that several prompts share, as the host has found them (tg_request.borders).
 *
 * A prefix has pages, which hold its tokens behind those of the prefix that it goes on from, and a snapshot of the state that a slot has
 * at its border. The first request that has it computes it, in chunks of which the last ends at the border. Others that have come meanwhile
 * wait for that step to be composed, and begin behind the border: with the prefix's pages in their page tables, and from its snapshot. A
 * last page that the prefix does not fill is copied to a page of each one's own, so nobody writes to a page that others read.
 *
 * Who computes a prefix is found out whenever a step is composed. So nothing is to be done where that sequence ends or is preempted: the
 * first one that waits computes what is left, from the border before it on.
 *
 * A prefix without users stays until its pages or its place are wanted. Then it goes, and its pages come back in the next turn. What
 * all waiting requests want that a slot is free for goes in one turn, so that they do not wait a turn each. A request shares only what
 * leaves it room in the pool if it is alone there, so no request waits for a prefix for ever. */
#pragma once

#include "sched/inputs.h"

/* Pages that the tokens of a prefix fill; of none, none. */
TG_FN uint32_t tg_pages_filled(tg_state *state, uint32_t place) {
  return place == TG_NONE ? 0u : tg_prefix_at(state, place)->tokens / state->config.page_tokens;
}

/* Page `index` of a sequence that has this prefix: that of the first in its chain that reaches so far. */
TG_FN uint32_t tg_page_of_prefix(tg_state *state, uint32_t place, uint32_t index) {
  const tg_prefix *prefix = tg_prefix_at(state, place);
  while (index < prefix->first_page) {
    place = prefix->parent;
    prefix = tg_prefix_at(state, place);
  }
  if (prefix->made != state->turn) return tg_prefix_pages(state, place)[index];
  return tg_words(state, state->free_page_table)[prefix->first_free + index - prefix->first_page];
}

/* The page that holds the end of a prefix, which does not fill it; TG_NONE: all its pages are full. */
TG_FN uint32_t tg_border_page(tg_state *state, uint32_t place) {
  const tg_prefix *prefix = tg_prefix_at(state, place);
  if (TG_MUT(61, prefix->tokens % state->config.page_tokens == 0u, 1)) return TG_NONE;
  return tg_prefix_pages(state, place)[prefix->tokens / state->config.page_tokens];
}

TG_FN void tg_let_go(tg_state *state, uint32_t place) {
  tg_prefix_at(state, place)->phase = TG_PREFIX_GOING;
  tg_words(state, state->going_table)[state->going++] = place;
}

TG_FN uint32_t tg_is_idle(const tg_prefix *prefix) { return prefix->phase == TG_PREFIX_READY && prefix->users == 0u; }

TG_FN void tg_let_idle_go(tg_state *state, uint32_t place) {
  if (!tg_is_idle(tg_prefix_at(state, place))) return;
  state->idle_prefixes--;
  tg_let_go(state, place);
}

TG_FN void tg_use_prefix(tg_state *state, uint32_t place) {
  tg_prefix *prefix = tg_prefix_at(state, place);
  state->idle_prefixes -= tg_is_idle(prefix);
  prefix->users++;
}

/* One of its users is no more: without any it is idle, or goes where it is not ready. */
TG_FN void tg_leave_prefix(tg_state *state, uint32_t place) {
  if (place == TG_NONE) return;
  tg_prefix *prefix = tg_prefix_at(state, place);
  prefix->used = state->turn;
  if (--prefix->users != 0u) return;
  if (TG_MUT(62, prefix->phase == TG_PREFIX_READY, 1)) {
    state->idle_prefixes++;
  } else {
    tg_let_go(state, place);
  }
}

/* Whether a prefix could go that a request does not need: `spared` is the longest that it has. */
TG_FN uint32_t tg_some_can_go(tg_state *state, uint32_t spared) {
  return state->idle_prefixes > (spared != TG_NONE && tg_is_idle(tg_prefix_at(state, spared)));
}

/* Lane 0: pages that come back in the next turn. */
TG_FN uint32_t tg_pages_going(tg_state *state) {
  const uint32_t *list = tg_words(state, state->going_table);
  uint32_t pages = 0u;
  for (uint32_t i = tg_scratch(state)->going; i < state->going; i++) pages += tg_prefix_at(state, list[i])->pages;
  return pages;
}

/* Lane 0: lets idle prefixes go, those first that were used longest ago, until `pages` come back or there are no more. Whether any do. */
TG_FN uint32_t tg_make_room(tg_state *state, uint32_t pages, uint32_t spared) {
  uint32_t found = tg_pages_going(state);
  while (found < pages && tg_some_can_go(state, spared)) {
    uint32_t oldest = TG_NONE;
    for (uint32_t place = 0u; place < state->config.prefixes; place++) {
      const tg_prefix *prefix = tg_prefix_at(state, place);
      if (!tg_is_idle(prefix) || place == TG_MUT(63, spared, TG_NONE)) continue;
      if (oldest == TG_NONE || prefix->used < tg_prefix_at(state, oldest)->used) oldest = place;
    }
    found += tg_prefix_at(state, oldest)->pages;
    tg_let_idle_go(state, oldest);
  }
  return found != 0u;
}

/* Lane 0, when the pages of those that went lie on the stack: their places are free. */
TG_FN void tg_free_places(tg_state *state) {
  const tg_turn *turn = tg_scratch(state);
  uint32_t *list = tg_words(state, state->going_table);
  for (uint32_t i = 0u; i < turn->going; i++) {
    tg_prefix *prefix = tg_prefix_at(state, list[i]);
    prefix->phase = TG_PREFIX_FREE;
    state->prefixes--;
    tg_leave_prefix(state, prefix->parent);
  }
  state->going -= turn->going;
  for (uint32_t i = 0u; i < state->going; i++) list[i] = list[i + turn->going];
}

/* Lane 0: the first prefix in a slot's chain that is not ready; TG_NONE: all are. */
TG_FN uint32_t tg_missing_prefix(tg_state *state, const tg_slot *slot) {
  uint32_t missing = TG_NONE;
  for (uint32_t place = slot->prefix; place != TG_NONE; place = tg_prefix_at(state, place)->parent) {
    if (tg_prefix_at(state, place)->phase == TG_PREFIX_READY) break;
    missing = place;
  }
  return missing;
}

/* Lane 0: whether this slot computes that prefix, which is so from now on if nobody else does. */
TG_FN uint32_t tg_computes(tg_state *state, uint32_t place, uint32_t index) {
  tg_prefix *prefix = tg_prefix_at(state, place);
  if (prefix->slot != TG_NONE) {
    const tg_slot *slot = &tg_slots(state)[prefix->slot];
    uint32_t goes_on = slot->request == prefix->request && slot->phase == TG_SLOT_PREFILL && slot->end_reason == TG_END_NONE &&
                       slot->prefix != TG_NONE; /* one that was preempted and is recomputed has none */
    if (TG_MUT(64, goes_on, 1)) return prefix->slot == index;
  }
  prefix->slot = index;
  prefix->request = tg_slots(state)[index].request;
  return 1u;
}

/* What comes next of a slot in prefill. */
typedef struct tg_stretch {
  uint32_t waits;    /* 1: nothing, until another slot has computed a prefix */
  uint32_t from;     /* its first token */
  uint32_t end;      /* behind its last one, as far as no border comes before */
  uint32_t starts;   /* the place of the prefix whose snapshot it starts from; TG_NONE: it goes on */
  uint32_t computes; /* the place of the prefix that it is of; TG_NONE */
} tg_stretch;

/* Lane 0: of a slot that is to be read up to `end`. */
TG_FN tg_stretch tg_next_stretch(tg_state *state, uint32_t index, uint32_t end) {
  const tg_slot *slot = &tg_slots(state)[index];
  tg_stretch next = {0u, slot->composed, end, TG_NONE, TG_NONE};
  if (slot->prefix == TG_NONE) return next;
  uint32_t behind = slot->prefix; /* the prefix that it could begin behind */
  uint32_t missing = tg_missing_prefix(state, slot);
  if (missing != TG_NONE) {
    next.waits = !tg_computes(state, missing, index);
    next.computes = missing;
    next.end = tg_prefix_at(state, missing)->tokens;
    behind = tg_prefix_at(state, missing)->parent;
  }
  if (behind == TG_NONE || next.from > tg_prefix_at(state, behind)->tokens) return next;
  next.waits |= TG_MUT(65, tg_prefix_at(state, behind)->ready >= state->steps_composed, 0u);
  next.from = tg_prefix_at(state, behind)->tokens;
  next.starts = behind;
  return next;
}
