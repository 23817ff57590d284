/* argmax.cuh: where the best of a row's logits is, as words of which the largest is the whole row's. A block that has some of a row's
 * logits stores a word of them, best[S, words of a row]:
 *
 *   bits 63 .. 32  the largest of these logits, as it sorts
 *   bits 31 .. 0   ~id of the first that has it
 *
 * so that of equal logits the lowest id wins. A row with a logit that is not finite has BEST_BROKEN, which is more than any.
 */
#pragma once

#include "common/base.cuh"

constexpr unsigned long long BEST_NONE = 0;  /* less than any: of no logits */
constexpr unsigned long long BEST_BROKEN = ~0ull;

/* A score and its id: sorts by score, then the lower id first, largest first. */
__device__ inline unsigned long long ranked(float score, uint32_t id) {
  return (unsigned long long)sortable(score) << 32 | (uint32_t)~id;
}

__device__ inline float score_of(unsigned long long rank) { return from_sortable(rank >> 32); }
__device__ inline uint32_t id_of(unsigned long long rank) { return ~(uint32_t)rank; }

/* How a slot samples, past the first-level cache, in loads of 16 bytes. */
__device__ inline tg_sampling sampling_of(const tg_slot *slot) {
  static_assert(sizeof(tg_sampling) == 3 * sizeof(uint4), "three loads");
  static_assert(offsetof(tg_slot, sampling) % sizeof(uint4) == 0 && sizeof(tg_slot) % sizeof(uint4) == 0, "aligned in a table");
  const uint4 *from = reinterpret_cast<const uint4 *>(&slot->sampling);
  const uint4 words[3] = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
  tg_sampling sampling;
  memcpy(&sampling, words, sizeof sampling);
  return sampling;
}

/* Whether these words are all that is read of the logits of sampled row `sample`: it is greedy, without biases, penalties, stop ids that
 * must not come yet, and logprobs. It may be called before a kernel's wait. */
__device__ inline bool needs_best_only(const tg_state *state, const tg_step *step, uint32_t sample) {
  const uint32_t index = __ldcg(table<uint32_t>(state, __ldcg(&step->sample_table)) + sample);
  const tg_row *row = &table<tg_row>(state, __ldcg(&step->row_table))[index];
  const uint32_t slot = __ldcg(&row->slot), position = __ldcg(&row->position);
  const tg_sampling how = sampling_of(&table<tg_slot>(state, __ldcg(&state->slot_table))[slot]);
  return __uint_as_float(how.temperature) == 0.0f && __uint_as_float(how.repetition_penalty) == 1.0f &&
         __uint_as_float(how.presence_penalty) == 0.0f && __uint_as_float(how.frequency_penalty) == 0.0f &&
         how.bias_count == 0 && position + 1 >= how.stop_from && how.logprobs == TG_LOGPROBS_NONE;
}

/* The word of one logit. */
__device__ inline unsigned long long best_word(float logit, uint32_t id) {
  return isfinite(logit) ? ranked(logit, id) : BEST_BROKEN;
}
