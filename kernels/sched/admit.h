/* admit.h: pages and slots come back, and go to those that run and want more, and to the first in the queue. Events leave for the host, as
 * many as fit. */
#pragma once

#include "sched/collect.h"

/* How many prefixes a request names. */
TG_FN uint32_t tg_borders_of(const tg_request *request) {
  uint32_t count = 0u;
  while (count < TG_MAX_BORDERS && request->borders[count].prefix != 0u) count++;
  return count;
}

/* Whether this request could ever be admitted. */
TG_FN uint32_t tg_is_servable(const tg_state *state, const tg_request *request) {
  uint64_t tokens = tg_all_tokens(request->prompt_tokens, request->max_new_tokens);
  uint32_t flags = request->flags;
  uint32_t scores = flags == TG_REQUEST_LOGITS_LAST || flags == TG_REQUEST_LOGITS_ALL;
  uint32_t generates = flags == 0u || flags == TG_REQUEST_UNLIMITED;
  uint32_t logprobs = request->sampling.logprobs;
  if (request->prompt_tokens == 0u || request->stop_count > TG_MAX_STOP_IDS) return 0u;
  if (request->max_new_tokens == 0u ? !scores : !generates) return 0u;
  if (logprobs != TG_LOGPROBS_NONE && logprobs > TG_MAX_LOGPROBS) return 0u;
  if (request->sampling.bias_count > state->config.bias_capacity) return 0u;
  uint32_t border = 0u;
  for (uint32_t i = 0u; i < tg_borders_of(request); i++) {
    if (request->borders[i].tokens <= border || flags == TG_REQUEST_LOGITS_ALL) return 0u;
    border = request->borders[i].tokens;
  }
  if (border >= request->prompt_tokens) return 0u;
  return tokens <= state->config.max_context && tg_pages_of(state, tokens) <= state->config.pages;
}

/* Pages that a request is admitted with: all that it can need, or without a limit what it needs at first. */
TG_FN uint32_t tg_pages_of_request(const tg_state *state, const tg_request *request) {
  uint64_t all_tokens = tg_all_tokens(request->prompt_tokens, request->max_new_tokens);
  if (!(request->flags & TG_REQUEST_UNLIMITED)) return tg_pages_of(state, all_tokens);
  return tg_pages_to_grow(state, request->prompt_tokens, all_tokens);
}

/* What a request would share if it were admitted now. */
typedef struct tg_share {
  uint32_t base;                 /* the longest of its prefixes that is there or pending: its place; TG_NONE: none is */
  uint32_t count;                /* prefixes that it would make, each of which goes on from the one before, */
  uint32_t made[TG_MAX_BORDERS]; /* by their index among its borders */
  uint32_t pages;                /* that it takes from the pool, for these and for itself, */
  uint32_t own;                  /* and for itself alone */
  uint32_t in_the_way;           /* the place of a prefix without users that has to go first, or does; TG_NONE */
} tg_share;

TG_FN uint32_t tg_place_of(const tg_state *state, const tg_border *border) { return border->prefix % state->config.prefixes; }

/* A prefix is not made where its place is in use: then its tokens are the next one's, or the request's own. */
TG_FN tg_share tg_share_of(tg_state *state, const tg_request *request) {
  const uint32_t page_tokens = state->config.page_tokens;
  const uint32_t pages = tg_pages_of_request(state, request);
  tg_share share = {TG_NONE, 0u, {0u}, pages, pages, TG_NONE};
  const tg_share nothing = share;
  const uint32_t borders = state->config.prefixes ? tg_borders_of(request) : 0u;
  if (borders == 0u) return nothing;
  uint32_t first = borders;
  while (first > 0u && share.base == TG_NONE) {
    const tg_border *border = &request->borders[--first];
    const tg_prefix *prefix = tg_prefix_at(state, tg_place_of(state, border));
    uint32_t is_there = prefix->phase == TG_PREFIX_READY || prefix->phase == TG_PREFIX_PENDING;
    if (is_there && prefix->number == border->prefix && prefix->tokens == border->tokens) share.base = tg_place_of(state, border);
  }
  uint32_t filled = tg_pages_filled(state, share.base);
  uint32_t chain = share.base == TG_NONE ? 0u : tg_prefix_at(state, share.base)->chain_pages;
  share.pages = 0u;
  for (uint32_t i = first + (share.base != TG_NONE); i < borders; i++) {
    const uint32_t place = tg_place_of(state, &request->borders[i]);
    uint32_t taken = tg_prefix_at(state, place)->phase != TG_PREFIX_FREE;
    uint32_t goes = tg_is_idle(tg_prefix_at(state, place)) || tg_prefix_at(state, place)->phase == TG_PREFIX_GOING;
    if (goes && place != share.base) share.in_the_way = place;
    for (uint32_t j = 0u; j < share.count; j++) taken |= tg_place_of(state, &request->borders[share.made[j]]) == place;
    if (taken) continue;
    share.made[share.count++] = i;
    share.pages += tg_ceil_div(request->borders[i].tokens, page_tokens) - filled;
    filled = request->borders[i].tokens / page_tokens;
  }
  uint64_t all_tokens = tg_all_tokens(request->prompt_tokens, request->max_new_tokens);
  if (TG_MUT(69, chain + share.pages + tg_pages_of(state, all_tokens) - filled > state->config.pages, 0)) return nothing;
  share.own = pages - filled;
  share.pages += share.own;
  return share;
}

/* Lane 0: makes what the request shares, and pages for it. Returns the place of its longest prefix; TG_NONE: it has none. */
TG_FN uint32_t tg_make_prefixes(tg_state *state, const tg_request *request, const tg_share *share, uint32_t *free_pages) {
  tg_turn *turn = tg_scratch(state);
  uint32_t parent = share->base;
  for (uint32_t i = 0u; i < share->count; i++) {
    const tg_border *border = &request->borders[share->made[i]];
    const uint32_t place = tg_place_of(state, border);
    const uint32_t first = tg_pages_filled(state, parent);
    const uint32_t pages = tg_ceil_div(border->tokens, state->config.page_tokens) - first;
    const uint32_t before = parent == TG_NONE ? 0u : tg_prefix_at(state, parent)->chain_pages;
    if (parent != TG_NONE) tg_use_prefix(state, parent);
    *free_pages -= pages;
    const tg_prefix prefix = {border->prefix, border->tokens, parent,  TG_PREFIX_PENDING, 0u, first, pages, before + pages,
                              TG_NONE,        *free_pages,    TG_NONE, state->turn,       0u, 0u};
    *tg_prefix_at(state, place) = prefix;
    tg_words(state, state->made_table)[turn->made++] = place;
    state->prefixes++;
    parent = place;
  }
  if (parent != TG_NONE) tg_use_prefix(state, parent);
  return parent;
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
  const tg_slot empty = {0};
  *slot = empty;
  slot->request = number;
  slot->token_start = request->token_start;
  slot->deadline_ns = tg_add_saturating(seen_ns, request->timeout_ns);
  slot->seen_ns = seen_ns;
  slot->phase = TG_SLOT_PREFILL;
  slot->max_new_tokens = request->max_new_tokens;
  slot->prompt_tokens = request->prompt_tokens;
  slot->admitted_ns = now_ns;
  slot->last_token = -1;
  slot->flags = request->flags;
  slot->stop_count = request->stop_count;
  slot->prefix = TG_NONE;
  slot->sampling = request->sampling;
  for (uint32_t i = 0u; i < TG_MAX_STOP_IDS; i++) slot->stop_ids[i] = request->stop_ids[i];
}

/* Lane 0: the front waits for prefixes to go. Those go that it wants gone, and the requests behind it that there are slots for. */
TG_FN void tg_make_way(tg_state *state, const tg_share *share, uint32_t free_pages) {
  const uint64_t front = state->requests_taken;
  const uint64_t slots = TG_MUT(71, state->config.slots - state->running, 1u);
  uint64_t pages = share->pages;
  for (uint64_t number = front; number < state->requests_seen && number < front + slots; number++) {
    const tg_request *request = tg_waiting_at(state, number);
    if (!tg_is_servable(state, request)) continue;
    const tg_share of = tg_share_of(state, request);
    if (of.in_the_way != TG_NONE && of.in_the_way != TG_MUT(72, share->base, TG_NONE)) tg_let_idle_go(state, of.in_the_way);
    if (number != front) pages += of.own;
  }
  if (pages > free_pages) tg_make_room(state, (uint32_t)(pages - free_pages), share->base);
}

/* Lane 0: slots and pages for the front of the queue, strictly in order, until one must wait. Returns the pages that are left. */
TG_FN uint32_t tg_admit_front(tg_state *state, uint32_t free_pages, uint32_t at) {
  tg_turn *turn = tg_scratch(state);
  uint64_t now_ns = state->inputs.now_ns;
  for (; turn->takes < TG_MAX_TAKES && state->requests_taken < state->requests_seen; turn->takes++) {
    uint64_t number = state->requests_taken;
    uint64_t seen_ns = *tg_seen_at(state, number);
    const tg_request *front = tg_waiting_at(state, number);
    uint32_t reason = tg_front_end(state, front, seen_ns);
    if (reason != TG_END_NONE) {
      const tg_event end = {number, now_ns, TG_EVENT_END, reason, 0, 0u, seen_ns, 0u, 0u, 0u};
      tg_pending(state)[at] = end;
      tg_words(state, state->pending_sample_table)[at++] = TG_NONE;
    } else {
      const tg_share share = tg_share_of(state, front);
      uint32_t index = tg_free_slot(state);
      if (index == TG_NONE) break;
      if (share.in_the_way != TG_NONE || TG_MUT(9, share.pages > free_pages, share.pages >= free_pages)) {
        tg_make_way(state, &share, free_pages);
        break;
      }
      tg_fill_slot(&tg_slots(state)[index], front, number, seen_ns, now_ns);
      tg_slots(state)[index].prefix = tg_make_prefixes(state, front, &share, &free_pages);
      tg_slots(state)[index].pages = tg_pages_filled(state, tg_slots(state)[index].prefix);
      if (tg_claims(state)) *tg_number_of_slot(state, index) = *tg_number_at(state, number);
      free_pages = tg_give_pages(state, index, share.own, free_pages);
      tg_words(state, state->free_slot_table)[index / 32u] &= ~(1u << (index % 32u));
      tg_words(state, state->prefill_table)[state->prefill++] = index;
      state->running++;
      if (front->sampling.logprobs != TG_LOGPROBS_NONE) {
        state->most_unread = TG_MUT(59, state->config.sampled_capacity, state->config.event_capacity);
      }
    }
    *tg_cancel_word(state, number) &= TG_MUT(10, ~tg_cancel_bit(state, number), 0xffffffffu);
    state->tokens_taken = front->token_start + front->prompt_tokens;
    state->requests_taken++;
  }
  turn->pending = at;
  return free_pages;
}

/* All lanes: pages go back on the stack, which holds `free_pages`. Returns what it holds then. */
TG_FN uint32_t tg_put_pages(tg_state *state, const uint32_t *pages, uint32_t count, uint32_t free_pages, uint32_t lane,
                            uint32_t lanes) {
  uint32_t *stack = tg_words(state, state->free_page_table) + free_pages;
  if (count > state->config.pages - free_pages) {
    tg_set_bits(&state->broken, 1u); /* more pages than the pool has: every lane sees it */
    return free_pages;
  }
  for (uint32_t page = lane; page < count; page += lanes) stack[page] = pages[page];
  return free_pages + count;
}

TG_FN uint32_t tg_put_pages_of(tg_state *state, const tg_ended *gone, uint32_t free_pages, uint32_t lane, uint32_t lanes) {
  const uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)gone->slot * state->max_pages;
  return tg_put_pages(state, pages + gone->first, gone->count, free_pages, lane, lanes);
}

/* Phase: all lanes put the pages of slots that ended, and of one that left, back on the stack; lane 0 meanwhile does the
 * bookkeeping and hands pages out. It touches no page entry: those follow in the next phase. */
TG_FN void tg_phase_admit(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  uint32_t ended = TG_COUNTED(turn->totals, TG_ENDS);
  uint32_t free_pages = state->free_pages;
  for (uint32_t i = 0u; i < ended; i++) free_pages = tg_put_pages_of(state, &tg_ended_list(state)[i], free_pages, lane, lanes);
  if (turn->back.slot != TG_NONE) free_pages = tg_put_pages_of(state, &turn->back, free_pages, lane, lanes);
  for (uint32_t i = 0u; i < turn->going; i++) {
    const uint32_t place = tg_words(state, state->going_table)[i];
    const tg_prefix *prefix = tg_prefix_at(state, place);
    const uint32_t *pages = tg_prefix_pages(state, place) + prefix->first_page;
    free_pages = tg_put_pages(state, pages, prefix->pages, free_pages, lane, lanes);
  }
  if (lane != 0u) return;

  for (uint32_t i = 0u; i < ended; i++) {
    uint32_t slot = tg_ended_list(state)[i].slot;
    tg_words(state, state->free_slot_table)[slot / 32u] |= 1u << (slot % 32u);
    if (slot == state->leaving) state->leaving = TG_NONE;
    tg_leave_prefix(state, tg_slots(state)[slot].prefix);
  }
  state->running -= ended;
  if (ended + TG_COUNTED(turn->totals, TG_MARKED) != 0u) {
    tg_prune(state, state->prefill_table, &state->prefill, TG_SLOT_PREFILL);
  }
  if (turn->preempted_ends) tg_prune(state, state->preempted_table, &state->preempted, TG_SLOT_PREEMPTED);
  if (turn->back.slot != TG_NONE) { /* those that are preempted already are newer than it, and than all that run */
    tg_slot *slot = &tg_slots(state)[turn->back.slot];
    tg_leave_prefix(state, slot->prefix);
    slot->prefix = TG_NONE; /* it is recomputed without */
    slot->phase = TG_SLOT_PREEMPTED;
    slot->pages = 0u;
    slot->composed = TG_MUT(41, 0u, slot->composed);
    state->leaving = TG_NONE;
    tg_words(state, state->preempted_table)[state->preempted++] = turn->back.slot;
  }
  if (turn->returned_step != TG_NO_STEP) state->steps_collected++;
  const tg_claimer *claimer = &state->claimer;
  if (tg_claims(state) && state->inputs.request_head != state->requests_seen) { /* before a step can deliver anything of it */
    tg_release(&claimer->queue->claims_head[claimer->replica].value, state->inputs.request_head);
  }
  state->requests_seen = state->inputs.request_head;
  state->controls_taken = state->inputs.control_head;
  turn->taken = 0u;
  turn->takes = 0u;
  turn->made = 0u;
  turn->skipped = 0u;
  turn->marked = TG_NONE;
  turn->recomputed = 0u;
  turn->pending = state->pending;
  if (turn->collecting) {
    /* Those that run come first, then those that are preempted. While one of them waits for pages, nothing newer is let in. */
    uint32_t dry = 0u;
    turn->pending = TG_COUNTED(turn->totals, TG_TOKENS) + ended;
    free_pages = tg_grow(state, free_pages, lanes, &dry);
    if (!dry && TG_MUT(50, state->leaving == TG_NONE, 1)) {
      free_pages = tg_recompute(state, free_pages);
      if (TG_MUT(46, state->preempted == 0u, 1)) free_pages = tg_admit_front(state, free_pages, turn->pending);
    }
  }
  turn->free_pages = free_pages;
}

/* All lanes: the pages that were handed out go into the page tables of their slots, and of the prefixes that were made. */
TG_FN void tg_take_pages(tg_state *state, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  const uint32_t *all = tg_words(state, state->free_page_table);
  for (uint32_t i = 0u; i < turn->taken; i++) {
    const tg_taken *taken = &tg_taken_list(state)[i];
    const uint32_t *stack = all + taken->first_free;
    uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)taken->slot * state->max_pages;
    for (uint32_t page = lane; page < taken->pages; page += lanes) pages[taken->held + page] = stack[page];
  }
  for (uint32_t i = 0u; i < turn->made; i++) {
    const uint32_t place = tg_words(state, state->made_table)[i];
    const tg_prefix *prefix = tg_prefix_at(state, place);
    uint32_t *pages = tg_prefix_pages(state, place) + prefix->first_page;
    for (uint32_t page = lane; page < prefix->pages; page += lanes) pages[page] = all[prefix->first_free + page];
  }
}

/* All lanes: a slot that was admitted with a prefix gets the pages that this fills, and keeps the tokens that it may not read itself. */
TG_FN void tg_take_prefix(tg_state *state, tg_rings *rings, uint32_t index, uint32_t lane, uint32_t lanes) {
  const tg_slot *slot = &tg_slots(state)[index];
  if (slot->prefix == TG_NONE) return;
  uint32_t *pages = tg_words(state, state->page_table) + (uint64_t)index * state->max_pages;
  uint32_t filled = tg_pages_filled(state, slot->prefix);
  for (uint32_t page = lane; page < filled; page += lanes) pages[page] = tg_page_of_prefix(state, slot->prefix, page);
  if (!(slot->flags & TG_REQUEST_UNLIMITED)) return;
  uint32_t tokens = TG_MUT(70, tg_prefix_at(state, slot->prefix)->tokens, 0u);
  for (uint32_t at = lane; at < tokens; at += lanes) {
    tg_kept(state, index)[at] = tg_prompt_token(state, rings, slot->token_start + at);
  }
}

/* All lanes: what the requests that this turn has admitted bring with them. Their biases lie in the ring until its entries are handed
 * back (tg_release_events). A slot that takes pages once more has all of it already. */
TG_FN void tg_take_in(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  uint64_t first = state->requests_taken - turn->takes;
  for (uint32_t i = 0u; i < turn->taken; i++) {
    uint32_t index = tg_taken_list(state)[i].slot;
    const tg_slot *slot = &tg_slots(state)[index];
    if (slot->request < first) continue;
    tg_take_prefix(state, rings, index, lane, lanes);
    const tg_bias *from = tg_biases_at(state, rings, TG_MUT(51, slot->request, slot->request + 1u));
    tg_bias *to = tg_biases_of(state, index);
    for (uint32_t entry = lane; entry < slot->sampling.bias_count; entry += lanes) to[entry] = from[entry];
  }
}

/* Lanes share the pending events that go out now: turn->publish of them, from the first unpublished on. */
TG_FN void tg_copy_events(tg_state *state, tg_rings *rings, uint32_t publish, uint32_t lane, uint32_t lanes) {
  const tg_event *pending = tg_pending(state) + state->pending_published;
  const uint32_t *samples = tg_words(state, state->pending_sample_table) + state->pending_published;
  const tg_sampled *sampled = tg_samples(state, &state->steps[tg_scratch(state)->sampled_place]);
  for (uint32_t i = lane; i < publish; i += lanes) {
    uint64_t number = state->events_published + i;
    *tg_event_at(rings, number) = pending[i];
    if (samples[i] != TG_NONE) *tg_sampled_at(rings, number) = sampled[samples[i]];
  }
}

/* Phase: slots get their pages, new ones their biases, and events their ring entries. Until the last is out, nothing more is collected. */
TG_FN void tg_phase_publish(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  uint32_t left = turn->pending - state->pending_published;
  uint64_t most = TG_MUT(13, state->most_unread, state->most_unread + 1u);
  uint64_t unread = state->events_published - state->inputs.event_tail; /* may be more, since more may have been allowed once */
  uint64_t room = TG_MUT(60, most > unread, 1) ? most - unread : 0u;
  uint32_t publish = left < room ? left : (uint32_t)room;
  tg_take_pages(state, lane, lanes);
  tg_take_in(state, rings, lane, lanes);
  tg_keep_prompt(state, rings, lane, lanes);
  tg_copy_events(state, rings, publish, lane, lanes);
  if (lane != 0u) return;
  turn->publish = publish;
  /* Ahead of a step in flight only what comes anyway, a decode row for each running sequence: nothing that comes of that is too late. */
  uint32_t in_flight = (uint32_t)tg_in_flight(state);
  uint32_t is_due = !tg_runs_ahead(state) || in_flight == 0u ||
                    TG_MUT(26, TG_COUNTED(turn->totals, TG_CANDIDATES) == state->running, 1);
  tg_free_places(state);
  turn->composing = TG_MUT(14, publish == left, 1) && in_flight < tg_most_in_flight(state) && is_due;
  state->free_pages = turn->free_pages;
}

/* Lane 0 of the next phase, with every entry written, lets the host see all of them, and gives entries of requests and controls back. */
TG_FN void tg_release_events(tg_state *state, tg_rings *rings) {
  tg_turn *turn = tg_scratch(state);
  state->events_published += turn->publish;
  state->pending = turn->pending;
  state->pending_published += turn->publish;
  if (TG_MUT(15, state->pending_published == state->pending, turn->publish != 0u)) {
    state->pending = 0u;
    state->pending_published = 0u;
  }
  if (turn->publish != 0u) tg_release_later(&rings->event_head.value, state->events_published);
  if (turn->takes != 0u) tg_release_later(&rings->request_tail.value, state->requests_taken);
  if (turn->controls_taken != state->controls_taken) tg_release_later(&rings->control_tail.value, state->controls_taken);
}
