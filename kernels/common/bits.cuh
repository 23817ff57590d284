/* bits.cuh: some of a layer's experts, a bit each, in registers: in WORDS words, 1 for up to 32 experts, 2 for up to 64. One word is a
 * plain number, and what is done with it one or two instructions. Two are fields of a struct: no array, since registers have no index.
 */
#pragma once

#include "common/args.h"
#include "common/base.cuh"
#include <type_traits>

struct ExpertWords {
  uint32_t low, high;
};
static_assert(TG_MOST_BIT_WORDS == 2, "low and high");
template <uint32_t WORDS>
using ExpertBits = std::conditional_t<WORDS == 1, uint32_t, ExpertWords>;

/* The bit of one expert; none from 32 WORDS on. */
template <uint32_t WORDS>
__device__ inline ExpertBits<WORDS> bit_of(uint32_t expert) {
  if constexpr (WORDS == 1) return expert < WARP ? 1u << expert : 0;
  else return {bit_of<1>(expert), bit_of<1>(expert - WARP)};
}

/* The r-th of an array of them in memory, words[r][WORDS]; and whether it has an expert, which is below 32 WORDS. */
template <uint32_t WORDS>
__device__ inline ExpertBits<WORDS> bits_at(const uint32_t *words, uint32_t r) {
  if constexpr (WORDS == 1) return words[r];
  else return {words[2 * r], words[2 * r + 1]};
}
template <uint32_t WORDS>
__device__ inline bool has_at(const uint32_t *words, uint32_t r, uint32_t expert) {
  if constexpr (WORDS == 1) return words[r] >> expert & 1;
  else return words[r * WORDS + expert / WARP] >> expert % WARP & 1;
}

/* ---- of one word; experts below 32 -------------------------------------------------------------- */

__device__ inline bool any(uint32_t bits) { return bits; }
__device__ inline uint32_t count(uint32_t bits) { return __popc(bits); }
/* Whether an expert is one of them; none is from 32 on. */
__device__ inline bool has(uint32_t bits, uint32_t expert) { return expert < WARP && (bits >> expert & 1); }
/* How many of them come before an expert. */
__device__ inline uint32_t count_before(uint32_t bits, uint32_t expert) { return __popc(bits & ((1u << expert) - 1)); }
/* The lowest of them, of which there is one. */
__device__ inline uint32_t lowest(uint32_t bits) { return __ffs(bits) - 1; }
__device__ inline uint32_t without_lowest(uint32_t bits) { return bits & (bits - 1); }
__device__ inline uint32_t without(uint32_t bits, uint32_t others) { return bits & ~others; }

/* ---- the same of two words ----------------------------------------------------------------------- */

__device__ inline ExpertWords operator&(const ExpertWords &a, const ExpertWords &b) { return {a.low & b.low, a.high & b.high}; }
__device__ inline ExpertWords operator|(const ExpertWords &a, const ExpertWords &b) { return {a.low | b.low, a.high | b.high}; }
__device__ inline ExpertWords without(const ExpertWords &bits, const ExpertWords &others) {
  return {without(bits.low, others.low), without(bits.high, others.high)};
}
__device__ inline bool any(const ExpertWords &bits) { return any(bits.low) || any(bits.high); }
__device__ inline uint32_t count(const ExpertWords &bits) { return count(bits.low) + count(bits.high); }
__device__ inline bool has(const ExpertWords &bits, uint32_t expert) {
  return expert < WARP ? has(bits.low, expert) : has(bits.high, expert - WARP);
}
__device__ inline uint32_t count_before(const ExpertWords &bits, uint32_t expert) {
  return expert < WARP ? count_before(bits.low, expert) : count(bits.low) + count_before(bits.high, expert - WARP);
}
__device__ inline uint32_t lowest(const ExpertWords &bits) { return any(bits.low) ? lowest(bits.low) : WARP + lowest(bits.high); }
__device__ inline ExpertWords without_lowest(const ExpertWords &bits) {
  if (any(bits.low)) return {without_lowest(bits.low), bits.high};
  return {bits.low, without_lowest(bits.high)};
}

/* ---- a warp's choice --------------------------------------------------------------------------- */

/* One warp chooses the k of a row's experts with the largest score + bias, of several alike the lowest. A lane has expert lane + 32 w;
 * score[w] is the gate's product before the row's scale, and then what the router makes of it. Bit l of chosen[w] is expert 32 w + l. k
 * are chosen whatever the scores. */
template <uint32_t WORDS>
__device__ inline void choose_best(uint32_t (&chosen)[WORDS], float (&score)[WORDS], float scale, const float (&bias)[WORDS],
                                   uint32_t expert_count, uint32_t k) {
  const uint32_t lane = threadIdx.x % WARP;
  uint32_t key[WORDS];
  bool left[WORDS];
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) {
    score[w] = 1.0f / (1.0f + expf(-(scale * score[w])));
    key[w] = sortable(score[w] + bias[w]);
    left[w] = lane + w * WARP < expert_count;
  }
#pragma unroll 1
  for (uint32_t i = 0; i < k; i++) {
    uint32_t mine = left[0] ? key[0] : 0;
#pragma unroll
    for (uint32_t w = 1; w < WORDS; w++) mine = max(mine, left[w] ? key[w] : 0);
    const uint32_t best = __reduce_max_sync(0xffffffffu, mine);
    uint32_t found = (WORDS - 1) * WARP + lowest(__ballot_sync(0xffffffffu, left[WORDS - 1] && key[WORDS - 1] == best));
#pragma unroll
    for (uint32_t w = WORDS - 1; w-- > 0;) {
      const uint32_t those = __ballot_sync(0xffffffffu, left[w] && key[w] == best);
      found = those ? w * WARP + lowest(those) : found;
    }
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++)
      if (lane + w * WARP == found) left[w] = false;
  }
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) chosen[w] = __ballot_sync(0xffffffffu, lane + w * WARP < expert_count && !left[w]);
}
