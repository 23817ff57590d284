/* scores.cuh: a row's scores: its logits after steps 1 to 4 of sample.cu, and what penalties know of its sequence. */
#pragma once

#include "common/argmax.cuh"
#include "sample/select.cuh"

static_assert(TG_MAX_BIASES + TG_MAX_STOP_IDS <= SAMPLE_THREADS, "a thread edits one logit at most");

/* Consecutive ids of a row: what one of its blocks looks at. `begin` is a multiple of 32. */
struct Ids {
  uint32_t begin, end;

  __device__ inline bool has(uint32_t id) const { return id - begin < end - begin; }
};

/* Share `share` of a row's ids, of `shares` that are equal but for the last ones. */
__device__ inline Ids ids_of_share(uint32_t share, uint32_t shares, uint32_t vocabulary) {
  const uint32_t each = (vocabulary + 32 * shares - 1) / (32 * shares) * 32, begin = min(vocabulary, share * each);
  return Ids{begin, min(vocabulary, begin + each)};
}

/* Which ids a penalty may change: a bit for each, in `seen[slots,(V + 31) / 32]`. With a repetition penalty those of the sequence, with
 * the others alone those of its answer. */
__device__ inline uint32_t *bits_of(uint32_t *seen, uint32_t slot, uint32_t vocabulary) {
  return seen + (size_t)slot * ((vocabulary + 31) / 32);
}

__device__ inline void mark(uint32_t *bits, uint32_t token) { atomicOr(&bits[token / 32], 1u << (token % 32)); }

/* How often each id stands in its answer, in `counts[slots,V rounded up to 8]`: a slot's begin on 16 bytes. */
__device__ inline uint32_t count_stride(uint32_t vocabulary) { return (vocabulary + 7) / 8 * 8; }

__device__ inline uint16_t *counts_of(uint16_t *counts, uint32_t slot, uint32_t vocabulary) {
  return counts + (size_t)slot * count_stride(vocabulary);
}

/* By one thread of all: a step has one token of an answer. Past the first-level cache, since tg_sample counts before it waits. */
__device__ inline void count(uint16_t *counts, uint32_t token) {
  const uint16_t before = __ldcg(counts + token);
  if (before < 0xffff) counts[token] = before + 1;
}

/* All threads prefetch the counts of those of `ids` that have any, for the scan that comes later. */
__device__ inline void prefetch_counts(const uint32_t *bits, const uint16_t *counts, Ids ids) {
#pragma unroll 4
  for (uint32_t word = ids.begin / 32 + threadIdx.x; word * 32 < ids.end; word += SAMPLE_THREADS)
    if (__ldcg(bits + word)) prefetch_line(counts + word * 32);
}

/* What penalties do to a row. */
struct Penalties {
  uint32_t *seen;
  uint16_t *counts;
  float repetition, presence, frequency;

  __device__ inline bool repeats() const { return repetition != 1.0f; }
  __device__ inline bool counted() const { return presence != 0.0f || frequency != 0.0f; }
  __device__ inline bool any() const { return repeats() || counted(); }

  /* The logit of an id with a bit in `seen` after penalties. Each operation is rounded to f32: no product is added unrounded. */
  __device__ inline float of_marked(float l, uint32_t id) const {
    const uint32_t times = counted() ? counts[id] : 0;
    if (repeats()) l = l < 0.0f ? l * repetition : l / repetition;
    if (times > 0) l = __fsub_rn(l, __fadd_rn(presence, __fmul_rn(frequency, (float)times)));
    return l;
  }

  __device__ inline float of(float l, uint32_t id) const { return seen[id / 32] >> (id % 32) & 1 ? of_marked(l, id) : l; }
};

__device__ inline Penalties penalties_of(const tg_sampling &how, uint32_t *seen, uint16_t *counts, uint32_t slot, uint32_t vocabulary) {
  return {bits_of(seen, slot, vocabulary), counts_of(counts, slot, vocabulary), __uint_as_float(how.repetition_penalty),
          __uint_as_float(how.presence_penalty), __uint_as_float(how.frequency_penalty)};
}

/* A row's logits after penalties and temperature. */
struct Scores {
  const float *logits;
  const Penalties *penalties; /* where `penalized` */
  float temperature;
  bool penalized;

  __device__ inline float cooled(float l) const { return temperature == 0.0f ? l : l / temperature; }

  __device__ inline float operator()(uint32_t id) const {
    const float l = logits[id];
    return cooled(penalized ? penalties->of(l, id) : l);
  }
};

/* The highest rank of the scores of `ids` that this thread looks at, where scores are not the logits. The few ids with a penalty come
 * afterwards, one by one. A thread's ids descend, since the LM head stores the high ones last: they are still in the second-level cache. */
__device__ inline unsigned long long best_score(const Scores &score, Ids ids, uint32_t vocabulary) {
  constexpr uint32_t FOURS = 4, PITCH = 4 * SAMPLE_THREADS;  /* fours that a thread has under way; ids from one to the next */
  const bool by_four = vocabulary % 4 == 0;  /* then every line of logits starts on 16 bytes, and of four ids the bits lie in one word */
  const uint32_t first = ids.begin + (by_four ? 4 : 1) * threadIdx.x;
  if (first >= ids.end) return BEST_NONE;
  float highest = -INFINITY;
  uint32_t at = first;
  auto take = [&](float l, uint32_t id) {
    if (l > highest || (l == highest && id < at)) highest = l, at = id;
  };
  if (by_four) {
    const uint32_t *seen = score.penalties->seen;
#pragma unroll 1
    for (int left = (ids.end - first - 1) / PITCH + 1; left > 0; left -= FOURS) {
      const uint32_t last = first + (left - 1) * PITCH;
      float4 l[FOURS];
      uint32_t bits = 0;  /* four of each of them */
#pragma unroll
      for (int i = 0; i < FOURS; i++) {
        if (i >= left) break;
        const uint32_t id = last - i * PITCH;
        l[i] = load4(score.logits + id);
        if (score.penalized) bits |= (seen[id / 32] >> (id % 32) & 15) << 4 * i;
      }
#pragma unroll
      for (int i = 0; i < FOURS; i++) {
        if (i >= left) break;
        const float of[4] = {l[i].x, l[i].y, l[i].z, l[i].w};
#pragma unroll
        for (int j = 3; j >= 0; j--) /* ids descend, so of equal ones the last has the lowest */
          if (of[j] >= highest && !(bits >> (4 * i + j) & 1)) highest = of[j], at = last - i * PITCH + j;
      }
#pragma unroll 1
      for (; bits; bits &= bits - 1) {
        const uint32_t bit = __ffs(bits) - 1, id = last - bit / 4 * PITCH + bit % 4;
        take(score.penalties->of_marked(score.logits[id], id), id);
      }
    }
  } else {
#pragma unroll 4
    for (uint32_t id = first; id < ids.end; id += SAMPLE_THREADS) {
      const float l = score.logits[id];
      take(score.penalized ? score.penalties->of(l, id) : l, id);
    }
  }
  /* A division by the temperature keeps the order; greedy rows, whose ties the id decides, have none. */
  return ranked(score.cooled(highest), at);
}

/* The best rank of blocks that share a row's ids, and how many of them are done: all 0 before and after. */
struct Meeting {
  unsigned long long best;  /* of those that are done */
  uint32_t come, pad;
};
static_assert(sizeof(Meeting) == TG_MEETING_BYTES, "the launcher leaves room for them");

/* One thread of each of `blocks` blocks. Returns whether it is the last: then `highest` is that of all. */
__device__ inline bool last_to_come(Meeting &at, unsigned long long &highest, uint32_t blocks) {
  atomicMax(&at.best, highest);
  __threadfence();
  if (atomicAdd(&at.come, 1u) + 1 < blocks) return false;
  __threadfence();
  highest = __ldcg(&at.best);
  at.best = BEST_NONE, at.come = 0;
  return true;
}

/* How many logits change before penalties: those of tokens with a bias, and of stop ids that must not come yet. */
struct Edits {
  uint32_t biases, stops;

  __device__ inline bool any() const { return biases + stops > 0; }
};

/* What makes a row's scores other than its logits, in shared memory since registers are scarce. Thread i has the i-th of the edited logits,
 * first those with a bias. They are edited in their place while the row is sampled, and are back before any other thread looks. */
struct Altered {
  const tg_row *row;
  const tg_slot *slot;
  Penalties penalties;
  Edits edits;
  Ids looked_at;  /* by this block */
  bool shared;    /* other blocks look at the row's other ids */
  uint32_t ids[TG_MAX_BIASES + TG_MAX_STOP_IDS];  /* TG_NONE: another block's, or past the vocabulary, where there is no logit */
  float biases[TG_MAX_BIASES];
  float raw[TG_MAX_BIASES + TG_MAX_STOP_IDS];  /* what was there */

  /* The thread that has filled this notes the token that the sequence has since its last step, if its block looks at it. Nothing else
   * writes what penalties know of a sequence that decodes. */
  __device__ inline void note_newest(const tg_state *state, const tg_step *step) const {
    const uint32_t newest = row_token(state, step, row);
    if (!looked_at.has(newest)) return;
    mark(penalties.seen, newest);
    if (penalties.counted()) count(penalties.counts, newest);
  }

  /* By all threads: each its own of a slot's edits, those of `mine`. Biases and stop ids were there before the step began. */
  __device__ inline void take_edits(const tg_state *state, const tg_slot *of, uint32_t index, Edits all, Ids mine) {
    const uint32_t i = threadIdx.x;
    uint32_t id = TG_NONE;
    if (i < all.biases) {
      const tg_bias *bias = table<tg_bias>(state, __ldcg(&state->bias_table)) + (size_t)index * __ldcg(&state->config.bias_capacity) + i;
      id = __ldcg(&bias->id), biases[i] = __uint_as_float(__ldcg(&bias->bias));
    } else if (i - all.biases < all.stops) {
      id = (uint32_t)__ldcg(&of->stop_ids[i - all.biases]);
    }
    if (i < all.biases + all.stops) ids[i] = mine.has(id) ? id : TG_NONE;
  }

  /* The thread's id; TG_NONE: it has none. */
  __device__ inline uint32_t mine() const {
    return threadIdx.x < edits.biases + edits.stops ? ids[threadIdx.x] : TG_NONE;
  }

  /* By all threads. */
  __device__ inline void apply(float *line) {
    if (!edits.any()) return;
    const uint32_t i = threadIdx.x, id = mine();
    if (id != TG_NONE) raw[i] = line[id];
    __syncthreads();  /* a stop id may have a bias too: both have read it before either writes, and it stays out */
    if (id != TG_NONE && i < edits.biases) line[id] = __fadd_rn(raw[i], biases[i]);
    __syncthreads();
    if (edits.stops == 0) return;
    if (id != TG_NONE && i >= edits.biases) line[id] = -INFINITY;
    __syncthreads();
  }

  /* By all threads, once they have read what they want of the edited line. */
  __device__ inline void undo(float *line) const {
    if (!edits.any()) return;
    const uint32_t id = mine();
    __syncthreads();
    if (id != TG_NONE) line[id] = raw[threadIdx.x];
    __syncthreads();
  }
};
