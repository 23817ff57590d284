/* scores.cuh: a row's scores: its logits after all that comes before the draw (steps 1 to 4 of sample.cu), and what penalties
 * know of its sequence.
 */
#ifndef TAILGRAPH_SCORES_CUH
#define TAILGRAPH_SCORES_CUH

#include "common/argmax.cuh"
#include "sample/select.cuh"

static_assert(TG_MAX_BIASES + TG_MAX_STOP_IDS <= SAMPLE_THREADS, "a thread edits one logit at most");

/* What a slot's sequence holds: a bit for each id, in `seen[slots,(V + 31) / 32]`. */
__device__ inline uint32_t *bits_of(uint32_t *seen, uint32_t slot, uint32_t vocabulary) {
  return seen + (size_t)slot * ((vocabulary + 31) / 32);
}

__device__ inline void mark(uint32_t *bits, uint32_t token) { atomicOr(&bits[token / 32], 1u << (token % 32)); }

/* How often each id stands in its answer, in `counts[slots,V rounded up to 8]`: a slot's begin on 16 bytes. */
__device__ inline uint32_t count_stride(uint32_t vocabulary) { return (vocabulary + 7) / 8 * 8; }

__device__ inline uint16_t *counts_of(uint16_t *counts, uint32_t slot, uint32_t vocabulary) {
  return counts + (size_t)slot * count_stride(vocabulary);
}

/* By one thread of all: a step has one token of an answer. */
__device__ inline void count(uint16_t *counts, uint32_t token) {
  const uint16_t before = counts[token];
  if (before < 0xffff) counts[token] = before + 1;
}

__device__ inline bool has_repetition(const tg_sampling &sampling) {
  return __uint_as_float(sampling.repetition_penalty) != 1.0f;
}

__device__ inline bool counts_answer(const tg_sampling &sampling) {
  return __uint_as_float(sampling.presence_penalty) != 0.0f || __uint_as_float(sampling.frequency_penalty) != 0.0f;
}

/* What penalties do to a row: in shared memory, since few rows have any and registers are scarce. */
struct Penalties {
  uint32_t *seen;
  uint16_t *counts;
  float repetition, presence, frequency;

  __device__ inline bool repeats() const { return repetition != 1.0f; }
  __device__ inline bool counted() const { return presence != 0.0f || frequency != 0.0f; }
  __device__ inline bool any() const { return repeats() || counted(); }

  /* Each operation is rounded to f32: no product is added unrounded. */
  __device__ inline float of(float l, bool was_seen, uint32_t times) const {
    if (was_seen) l = l < 0.0f ? l * repetition : l / repetition;
    if (times > 0) l = __fsub_rn(l, __fadd_rn(presence, __fmul_rn(frequency, (float)times)));
    return l;
  }

  __device__ inline float of(float l, uint32_t id) const {
    return of(l, repeats() && seen[id / 32] >> (id % 32) & 1, counted() ? counts[id] : 0);
  }
};

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

/* The highest rank of all scores, where they are not the logits. A thread's ids ascend, so the first of its highest has the lowest
 * id. Nearly all ids of a row have no penalty, and a comparison is all that they take. */
__device__ inline unsigned long long best_score(const Scores &score, uint32_t vocabulary) {
  const uint32_t each = vocabulary % 4 == 0 ? 4 : 1, first = each * threadIdx.x;
  float highest = -INFINITY;
  uint32_t at = first;
  auto take = [&](float l, uint32_t id) {
    if (l > highest) highest = l, at = id;
  };
  if (each == 4) {  /* then every line of logits starts on 16 bytes, and of four ids the bits lie in one word */
    const Penalties with = *score.penalties;
    const bool repeats = with.repeats(), counted = with.counted();
#pragma unroll 4
    for (uint32_t id = first; id < vocabulary; id += 4 * SAMPLE_THREADS) {
      float4 l = load4(score.logits + id);
      const uint32_t bits = repeats ? with.seen[id / 32] >> (id % 32) & 15 : 0;
      const ushort4 times = counted ? *reinterpret_cast<const ushort4 *>(with.counts + id) : make_ushort4(0, 0, 0, 0);
      if (bits | times.x | times.y | times.z | times.w) {
        l.x = with.of(l.x, bits & 1, times.x), l.y = with.of(l.y, bits >> 1 & 1, times.y);
        l.z = with.of(l.z, bits >> 2 & 1, times.z), l.w = with.of(l.w, bits >> 3 & 1, times.w);
      }
      take(l.x, id), take(l.y, id + 1), take(l.z, id + 2), take(l.w, id + 3);
    }
  } else {
#pragma unroll 8
    for (uint32_t id = first; id < vocabulary; id += SAMPLE_THREADS) {
      const float l = score.logits[id];
      take(score.penalized ? score.penalties->of(l, id) : l, id);
    }
  }
  /* A division by the temperature keeps the order; greedy rows, whose ties the id decides, have none. */
  return block_reduce(first < vocabulary ? ranked(score.cooled(highest), at) : BEST_NONE, Max());
}

/* How many logits change before penalties: those of tokens with a bias, and of stop ids that must not come yet. */
struct Edits {
  uint32_t biases, stops;

  __device__ inline bool any() const { return biases + stops > 0; }
};

/* What makes a row's scores other than its logits. In shared memory: few rows have any, and registers are scarce. Thread i has the
 * i-th of the edited logits, first those with a bias. They are edited in their place while the row is sampled, and are back before
 * any other thread looks. */
struct Altered {
  const tg_row *row;
  const tg_slot *slot;
  Penalties penalties;
  Edits edits;
  float raw[TG_MAX_BIASES + TG_MAX_STOP_IDS];  /* what was there */

  __device__ inline const tg_bias *biases(const tg_state *state) const {
    return table<tg_bias>(state, state->bias_table) + (size_t)row->slot * state->config.bias_capacity;
  }

  /* The token that the sequence has since its last step. Nothing else writes what penalties know of a sequence that decodes, and
   * the token was there before the step began. The thread that has filled this. */
  __device__ inline void note_newest(const tg_state *state, const tg_step *step) const {
    const uint32_t newest = row_token(state, step, *row);
    if (penalties.repeats()) mark(penalties.seen, newest);
    if (penalties.counted()) count(penalties.counts, newest);
  }

  /* The thread's id; TG_NONE: it has none. One past the vocabulary has no logit. */
  __device__ inline uint32_t mine(const tg_state *state, uint32_t vocabulary) const {
    const uint32_t i = threadIdx.x, stop = i - edits.biases;
    const uint32_t id = i < edits.biases ? biases(state)[i].id : stop < edits.stops ? (uint32_t)slot->stop_ids[stop] : TG_NONE;
    return id < vocabulary ? id : TG_NONE;
  }

  /* By all threads. */
  __device__ inline void apply(float *line, const tg_state *state, uint32_t vocabulary) {
    if (!edits.any()) return;
    const uint32_t i = threadIdx.x, id = mine(state, vocabulary);
    if (id != TG_NONE) raw[i] = line[id];
    __syncthreads();  /* a stop id may have a bias too: both have read it before either writes, and it stays out */
    if (id != TG_NONE && i < edits.biases) line[id] = __fadd_rn(raw[i], __uint_as_float(biases(state)[i].bias));
    __syncthreads();
    if (id != TG_NONE && i >= edits.biases) line[id] = -INFINITY;
    __syncthreads();
  }

  /* By all threads, once they have read what they want of the edited line. */
  __device__ inline void undo(float *line, const tg_state *state, uint32_t vocabulary) const {
    if (!edits.any()) return;
    const uint32_t id = mine(state, vocabulary);
    __syncthreads();
    if (id != TG_NONE) line[id] = raw[threadIdx.x];
    __syncthreads();
  }
};

#endif
