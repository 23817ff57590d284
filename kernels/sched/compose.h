/* compose.h: the next step's rows. Decode rows first, in slot order; then prompt chunks, in the order of requests, up to the row budget.
 * Running sequences wait for the prompt rows beside theirs, so chunk_tokens bounds these, or, where much is yet to be read, a share of
 * that: then few long steps read it in less time. Where no sequence runs, prompts fill whole steps. */
#pragma once

#include "sched/admit.h"

/* A slot's row; TG_NONE: none. `rank` counts the candidates below the slot. Rows are in the order of slots, but which slots get one goes
 * round from the cursor: while a candidate is passed over, no other slot gets a second row. */
TG_FN uint32_t tg_decode_row(const tg_turn *turn, uint32_t picks, uint32_t rank) {
  uint32_t above = TG_COUNTED(turn->totals, TG_CANDIDATES) - turn->below;
  uint32_t wrapped = picks > above ? picks - above : 0u;
  if (rank < turn->below) return rank < wrapped ? rank : TG_NONE;
  return rank - turn->below < picks ? wrapped + rank - turn->below : TG_NONE;
}

/* Whether this slot's row is the last one picked, going round from the cursor. */
TG_FN uint32_t tg_is_last_pick(const tg_turn *turn, uint32_t picks, uint32_t rank) {
  uint32_t above = TG_COUNTED(turn->totals, TG_CANDIDATES) - turn->below;
  return picks > above ? rank + 1u == picks - above : rank + 1u == turn->below + picks;
}

/* A decode row's token: the slot's newest, where it has been collected; else where it will be found. */
TG_FN int32_t tg_decode_token(tg_state *state, uint32_t index, const tg_slot *slot) {
  if (!tg_runs_ahead(state) || slot->steps == 0u) return -1;
  const tg_step *before = tg_step_at(state, state->steps_composed - 1u);
  uint32_t sequence = tg_words(state, before->slot_sequence_table)[index];
  return -2 - (int32_t)tg_sequences(state, before)[sequence].sample;
}

/* A decode row and its sequence. */
TG_FN void tg_fill_decode_row(tg_state *state, const tg_step *step, uint32_t row, uint32_t slot, uint32_t position,
                              int32_t token) {
  const tg_row entry = {slot, position, token, row};
  const tg_sequence sequence = {slot,    row,     1u,      position, row, TG_SEQUENCE_DECODE | TG_SEQUENCE_LAST,
                                TG_NONE, TG_NONE, TG_NONE, TG_NONE};
  tg_rows(state, step)[row] = entry;
  tg_sequences(state, step)[row] = sequence;
  tg_words(state, step->sample_table)[row] = row;
}

TG_FN void tg_compose_decode(tg_state *state, tg_step *step, uint32_t picks, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  uint32_t rank = TG_COUNTED(turn->before[lane], TG_CANDIDATES);
  uint32_t end = tg_first_slot(state, lane + 1u, lanes);
  for (uint32_t index = tg_first_slot(state, lane, lanes); index < end; index++) {
    uint32_t row = TG_NONE;
    if (turn->notes[index] & TG_NOTE_CANDIDATE) {
      row = tg_decode_row(turn, picks, rank);
      if (tg_is_last_pick(turn, picks, rank)) turn->next_cursor = index + 1u;
      rank++;
    }
    if (row != TG_NONE) {
      tg_slot *slot = &tg_slots(state)[index];
      uint32_t ahead = tg_runs_ahead(state) ? slot->steps : 0u; /* tokens not collected yet */
      uint32_t position = slot->prompt_tokens + slot->generated + ahead - 1u; /* of the newest token */
      tg_fill_decode_row(state, step, row, index, position, TG_MUT(27, tg_decode_token(state, index, slot), -1));
      slot->steps++;
    }
    tg_words(state, step->slot_sequence_table)[index] = row;
  }
}

/* Lane 0: prompt rows that a step may have beside decode rows. */
TG_FN uint32_t tg_rows_beside(tg_state *state) {
  const tg_config *config = &state->config;
  const uint32_t *list = tg_words(state, state->prefill_table);
  uint32_t beside = config->chunk_tokens;
  uint64_t unread = 0u;
  if (config->chunk_share == 0u) return beside;
  for (uint32_t i = 0u; i < state->prefill && beside < config->step_tokens; i++) {
    const tg_slot *slot = &tg_slots(state)[list[i]];
    const uint32_t end = slot->prompt_tokens + TG_MUT(52, slot->generated, 0u);
    const tg_stretch next = tg_next_stretch(state, list[i], end);
    const uint32_t read = TG_MUT(73, next.waits, slot->prefix != TG_NONE) ? tg_prefix_at(state, slot->prefix)->tokens : next.from;
    unread += end - TG_MUT(53, read, 0u);
    uint64_t share = unread / config->chunk_share;
    if (share > beside) beside = TG_MUT(54, (uint32_t)share, config->chunk_tokens);
  }
  return beside;
}

/* Rows that the step still has for prompts, given the rows that it has and those that prompts may have beside decode rows. */
TG_FN uint32_t tg_prompt_budget(const tg_config *config, uint32_t rows, uint32_t decode_rows, uint32_t most_beside) {
  uint32_t budget = config->step_tokens - rows;
  if (TG_MUT(36, decode_rows == 0u, 0)) return budget;
  uint32_t prompt_rows = rows - TG_MUT(37, decode_rows, 0u);
  uint32_t beside = most_beside > prompt_rows ? most_beside - prompt_rows : 0u;
  return TG_MUT(35, tg_min(budget, beside), budget);
}

/* Lane 0: one chunk, a sequence of the step, for each slot in prefill, in the order of their requests, until the budget is used or
 * cannot take the next one. Slots that are read to the end leave the list. */
TG_FN void tg_plan_chunks(tg_state *state, tg_step *step, uint32_t decode_rows) {
  tg_turn *turn = tg_scratch(state);
  uint32_t *list = tg_words(state, state->prefill_table);
  uint32_t kept = 0u;
  uint32_t full = 0u;
  uint32_t beside = decode_rows != 0u ? tg_rows_beside(state) : 0u;
  step->rows = step->decode_rows = step->sequences = step->sample_rows = decode_rows;
  step->kind = TG_KIND_DECODE;
  step->shares = 0u;
  for (uint32_t i = 0u; i < state->prefill; i++) {
    tg_slot *slot = &tg_slots(state)[list[i]];
    uint32_t end = slot->prompt_tokens + TG_MUT(43, slot->generated, 0u);
    const tg_stretch next = tg_next_stretch(state, list[i], end);
    uint32_t from = next.from;
    uint32_t budget = full || next.waits ? 0u : tg_prompt_budget(&state->config, step->rows, decode_rows, beside);
    uint32_t to = next.end - from > budget ? from + budget : next.end;
    if (to != next.end) to -= TG_MUT(16, to % state->config.chunk_align, 0u);
    if (to <= from) {
      full |= TG_MUT(17, !next.waits, 0u);
      list[kept++] = list[i];
      continue;
    }
    uint32_t last = to == end;
    uint32_t all_logits = (slot->flags & TG_REQUEST_LOGITS_ALL) != 0u;
    uint32_t sample = last && !TG_MUT(18, all_logits, 0u) ? step->sample_rows++ : TG_NONE;
    tg_sequence chunk = {list[i], step->rows, to - from, from,          sample, last ? TG_SEQUENCE_LAST : 0u, next.starts,
                         TG_NONE, next.computes, TG_NONE};
    if (from == 0u) chunk.flags |= TG_SEQUENCE_FIRST;
    if (next.starts != TG_NONE) {
      chunk.from_page = tg_border_page(state, next.starts);
      slot->skipped += from - slot->composed;
      turn->skipped += from - slot->composed;
    }
    if (next.computes != TG_NONE && to == next.end) {
      tg_prefix *prefix = tg_prefix_at(state, next.computes);
      chunk.flags |= TG_SEQUENCE_BORDER;
      chunk.border_page = tg_border_page(state, next.computes);
      prefix->phase = TG_PREFIX_READY;
      prefix->ready = state->steps_composed;
    }
    step->shares += chunk.from != TG_NONE || (chunk.flags & TG_SEQUENCE_BORDER) != 0u;
    tg_sequences(state, step)[step->sequences++] = chunk;
    step->rows += to - from;
    if (all_logits) step->kind = TG_KIND_SCORE;
    if (step->kind != TG_KIND_SCORE) step->kind = TG_KIND_MIXED;
    slot->composed = to;
    slot->steps++;
    if (last) slot->phase = TG_SLOT_DECODE;
    if (!last) list[kept++] = list[i];
  }
  state->prefill = kept;
}

/* The smallest bucket of the kind that holds the rows. */
TG_FN uint32_t tg_bucket(const tg_config *config, uint32_t kind, uint32_t rows) {
  uint32_t bucket = 0u;
  while (TG_MUT(19, config->bucket_rows[kind][bucket] < rows, config->bucket_rows[kind][bucket] <= rows) &&
         bucket + 1u < config->bucket_count[kind]) {
    bucket++;
  }
  return bucket;
}

/* Phase: decode rows by all lanes; the plan of the prompt chunks by lane 0. They touch different slots. */
TG_FN void tg_phase_compose(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open) return;
  tg_step *step = tg_step_at(state, state->steps_composed);
  /* In a pipeline a step gets its share of the sequences, so that each of those in flight finds some. */
  uint32_t steps = tg_runs_ahead(state) ? 1u : tg_most_in_flight(state);
  uint32_t picks = tg_min(TG_COUNTED(turn->totals, TG_CANDIDATES), tg_ceil_div(TG_COUNTED(turn->totals, TG_DECODING), steps));
  if (lane == 0u) {
    tg_release_events(state, rings);
    if (turn->composing) tg_plan_chunks(state, step, picks);
    turn->composed = turn->composing && step->rows != 0u;
  }
  if (turn->composing) tg_compose_decode(state, step, picks, lane, lanes);
}

/* Phase: the chunks' rows by all lanes, the step's head by lane 0. */
TG_FN void tg_phase_fill(tg_state *state, tg_rings *rings, uint32_t lane, uint32_t lanes) {
  tg_turn *turn = tg_scratch(state);
  if (!turn->open || !turn->composed) return;
  tg_step *step = tg_step_at(state, state->steps_composed);
  uint32_t decode_rows = step->decode_rows;
  uint32_t count = step->sequences - decode_rows;

  /* Rows of all chunks together are dealt out, so that many short prompts cost no more than one long one. */
  const tg_sequence *chunks = tg_sequences(state, step) + decode_rows;
  const tg_sequence *chunk = chunks;
  const tg_sequence *last = chunk + (count - (count != 0u));
  uint32_t rows_end = TG_MUT(22, step->rows, step->rows + (count != 0u));
  for (uint32_t at = decode_rows + lane; at < rows_end; at += lanes) {
    while (chunk < last && at - chunk->first_row >= chunk->rows) chunk++;
    const tg_slot *slot = &tg_slots(state)[chunk->slot];
    uint32_t position = chunk->first_position + (at - chunk->first_row);
    tg_row row = {chunk->slot, position, TG_TOKEN_KEPT, decode_rows + (uint32_t)(chunk - chunks)};
    if (!slot->recomputes) { /* and may be preempted: then its tokens are kept */
      row.token = tg_prompt_token(state, rings, slot->token_start + position);
      if (TG_MUT(47, slot->flags & TG_REQUEST_UNLIMITED, 0u)) tg_kept(state, chunk->slot)[position] = row.token;
    }
    tg_rows(state, step)[at] = row;
  }
  for (uint32_t i = lane; i < count; i += lanes) {
    tg_words(state, step->slot_sequence_table)[chunks[i].slot] = decode_rows + i;
    if (chunks[i].sample == TG_NONE) continue;
    tg_words(state, step->sample_table)[chunks[i].sample] = chunks[i].first_row + chunks[i].rows - 1u;
  }
  if (lane != 0u) return;
  step->number = state->steps_composed;
  step->start_ns = state->inputs.now_ns;
  step->bucket = tg_bucket(&state->config, step->kind, step->rows);
  step->bucket_rows = state->config.bucket_rows[step->kind][step->bucket];
}
