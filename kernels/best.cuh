/* best.cuh: where the best of a row's logits is, as words of which the largest says it for the whole row. Whoever has some of
 * a row's logits leaves a word of them, best[S, words of a row]:
 *
 *   bits 63 .. 32  the largest of these logits, as it sorts
 *   bits 31 .. 0   ~id: the first that has this logit is among the `span` ids from `id` on, `span` being the same for all words
 *
 * so that of equal logits the lowest ids win. A row with a logit that is not finite has BEST_BROKEN, which is more than any.
 */
#ifndef TAILGRAPH_BEST_CUH
#define TAILGRAPH_BEST_CUH

#include "common.cuh"

constexpr unsigned long long BEST_NONE = 0;  /* less than any: of no logits */
constexpr unsigned long long BEST_BROKEN = ~0ull;

/* A score and its id: sorts by score, then the lower id first, largest first. */
__device__ inline unsigned long long ranked(float score, uint32_t id) {
  return (unsigned long long)sortable(score) << 32 | (uint32_t)~id;
}

__device__ inline float score_of(unsigned long long rank) { return from_sortable(rank >> 32); }
__device__ inline uint32_t id_of(unsigned long long rank) { return ~(uint32_t)rank; }

/* The word of one logit. */
__device__ inline unsigned long long best_word(float logit, uint32_t id) {
  return isfinite(logit) ? ranked(logit, id) : BEST_BROKEN;
}

#endif
