/* sample.cu: from logits to a token, as the CPU reference does it (src/backend/cpu/sample.rs), in this order:
 *
 *   1. biases: l + bias; stop ids before position stop_from are out: l is -infinity
 *   2. repetition penalty p over the ids of the sequence so far: l < 0 ? l p : l / p
 *   3. presence and frequency penalty of an id that stands n > 0 times in the answer: l - (presence + frequency n)
 *   4. temperature t: l / t; 0 is greedy, the largest l, ties to the lower id, and ends here
 *   5. top-k: keeps l >= the k-th largest
 *   6. top-p: in descending order of l (ties: lower id first), keeps while the softmax mass before is below top_p
 *   7. min-p: keeps exp(l - max l) >= min_p
 *   8. the largest l + g, ties to the lower id, with g = -ln(-ln u), u = ((word >> 8) + 0.5) 2^-24, word = element
 *      (id mod 4) of Philox4x32-10(counter = (id / 4, position of the new token, "samp", 0), key = sampling.key)
 *
 * Each operation up to 4 rounds to f32; exponentials, u and g are f64. Thresholds of 5 and 6 are found by radix selection, the masses of
 * 6 as integers (mass_one). A row with a logit that is not finite has no distribution: its token is -1. Logprobs are the log-softmax of
 * the raw logits at the token and at the best ids, best first, ties to the lower id.
 *
 * tg_sample, a block a row, begins with the words of common/argmax.cuh: each row's largest logit, and whether all are finite. In decode
 * steps the kernels that stream the LM head's weights store them (swap_ab/head.cuh, skinny/norm.cu); elsewhere tg_sample_best does. It is
 * done at once where those are the row's scores: greedy without biases, penalties, forbidden stop ids and logprobs.
 *
 * Bound: latency for greedy; memory for tg_sample_best, 4V bytes a row, and once more (from L2) for each pass of the other steps. A
 * greedy row with biases or penalties takes one such pass, with penalties V / 8 bytes of `seen` and 8 for each four ids of which one has
 * a bit there: of 65536 tokens one SM reads 264 KiB in 2.4 us at 1.755 GHz.
 * Measured on an H200, 65536 logits, greedy (how: profiles/README.md): tg_sample 2.4 us at 1 row, 2.6 at 64, 3.0 at 256.
 */
#include "common/pdl.cuh"
#include "common/philox.cuh"
#include "sample/args.h"
#include "sample/scores.cuh"

constexpr uint32_t SAMPLE_STREAM = 0x73616d70;  /* "samp": keeps these draws apart from all others */
constexpr uint32_t BEST_FOURS = 4;  /* of a part's logits, that a thread has under way */

/* Blocks of tg_sample that fit an SM, so that 256 greedy rows go round once; on sm_100 two would spill. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int SAMPLE_BLOCKS = 1;
#else
constexpr int SAMPLE_BLOCKS = 2;
#endif

/* What penalties know of a slot begins as its prefix left it, without one empty. */
__device__ inline void begin_bits(uint32_t *bits, const uint32_t *before, uint32_t vocabulary) {
  for (uint32_t i = threadIdx.x; i < (vocabulary + 31) / 32; i += TG_SEEN_THREADS) bits[i] = before ? before[i] : 0;
  __syncthreads();
}

/* Notes the step's tokens, for slots with penalties, before tg_sample, which notes them itself in decode steps. Tokens past the prompt
 * are of the answer, which a sequence that is recomputed has before its decode rows. The bits of shared prefixes lie behind those of slots:
 * whoever computes one notes its tokens there too, whether it has penalties or not, for others that start from it.
 * Launch: grid = most sequences of a step. */
extern "C" __global__ void __launch_bounds__(TG_SEEN_THREADS)
    tg_mark_seen(uint32_t *seen, uint16_t *counts, const tg_state *state, const tg_step *step, uint32_t vocabulary) {
  begin_kernel();
  if (blockIdx.x >= step->sequences) return;
  const tg_sequence sequence = table<tg_sequence>(state, step->sequence_table)[blockIdx.x];
  const tg_slot &slot = table<tg_slot>(state, state->slot_table)[sequence.slot];
  const Penalties penalties = penalties_of(slot.sampling, seen, counts, sequence.slot, vocabulary);
  const tg_row *rows = table<tg_row>(state, step->row_table) + sequence.first_row;
  auto of_prefix = [&](uint32_t place) { return place == TG_NONE ? nullptr : bits_of(seen, state->config.slots + place, vocabulary); };
  const uint32_t *before = of_prefix(sequence.from);
  const bool first = before || sequence.flags & TG_SEQUENCE_FIRST;
  if (uint32_t *computed = of_prefix(sequence.computes)) {
    if (first) begin_bits(computed, before, vocabulary);
    for (uint32_t i = threadIdx.x; i < sequence.rows; i += TG_SEEN_THREADS) mark(computed, row_token(state, step, rows + i));
  }
  if (!penalties.any()) return;
  const uint32_t prompt = max(slot.prompt_tokens, sequence.first_position) - sequence.first_position; /* rows of it, or more */
  if (first) begin_bits(penalties.seen, penalties.repeats() ? before : nullptr, vocabulary);
  for (uint32_t i = (penalties.repeats() ? 0 : prompt) + threadIdx.x; i < sequence.rows; i += TG_SEEN_THREADS)
    mark(penalties.seen, row_token(state, step, rows + i));
  if (!penalties.counted()) return;
  if (first) {
    uint4 *words = reinterpret_cast<uint4 *>(penalties.counts);
    for (uint32_t i = threadIdx.x; i < count_stride(vocabulary) / 8; i += TG_SEEN_THREADS) words[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  for (uint32_t i = prompt; i < sequence.rows; i++) count(penalties.counts, row_token(state, step, rows + i));
}

/* The most likely token's mass: 2^44, of more than 2^19 tokens less, so that all of them together fit 64 bits. */
__device__ inline double mass_one(uint32_t vocabulary) {
  const int bits = 32 - __clz(vocabulary - 1); /* vocabulary <= 2^bits */
  return exp2((double)min(44, 63 - bits));
}

/* exp(score - best), the difference in f32 */
__device__ inline double weight_of(float score, float best) { return exp((double)(score - best)); }

/* The ids that steps 3 to 5 keep: key >= least, of key == least only ids <= last_of_least, and weight >= min_p. */
struct Survivors {
  uint32_t least;
  uint32_t last_of_least;
  float min_p;
  float best;

  __device__ inline bool operator()(float score, uint32_t id) const {
    uint32_t key = sortable(score);
    if (key < least || (key == least && id > last_of_least)) return false;
    return min_p <= 0.0f || score == best || weight_of(score, best) >= (double)min_p;
  }
};

__device__ inline Survivors survivors(SelectScratch &scratch, const Scores &score, const tg_sampling &sampling, uint32_t vocabulary,
                                      float best) {
  Survivors s = {0, 0xffffffffu, __uint_as_float(sampling.min_p), best};
  auto key = [&](uint32_t id) { return sortable(score(id)); };
  if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
    unsigned long long target = sampling.top_k;
    s.least = select_key(scratch, vocabulary, target, [](uint32_t) { return true; }, key, [](uint32_t) { return 1ull; });
  }
  const float top_p = __uint_as_float(sampling.top_p);
  if (top_p < 1.0f) {
    const uint32_t kept = s.least;
    auto in = [&](uint32_t id) { return key(id) >= kept; };
    const double one = mass_one(vocabulary);
    auto mass = [&](uint32_t id) { return (unsigned long long)(weight_of(score(id), best) * one); };
    const unsigned long long total = over_ids(vocabulary, 0ull, Sum(), [&](uint32_t id) { return in(id) ? mass(id) : 0ull; });
    /* kept while the mass before is below top_p of the total, and the first always */
    unsigned long long removable = (unsigned long long)((1.0 - (double)top_p) * (double)total);
    unsigned long long target = removable < total ? total - removable : 1;
    s.least = select_key(scratch, vocabulary, target, in, key, mass);
    /* of the ids that tie there, as many as it takes, the lower first */
    const uint32_t least = s.least;
    const unsigned long long each = (unsigned long long)(weight_of(from_sortable(least), best) * one);
    unsigned long long wanted = each > 0 ? (target + each - 1) / each : 1;
    auto tied = [&](uint32_t id) { return (unsigned long long)(key(id) == least); };
    if (wanted < over_ids(vocabulary, 0ull, Sum(), tied))
      s.last_of_least = ~select_key(scratch, vocabulary, wanted, tied, [](uint32_t id) { return ~id; }, [](uint32_t) { return 1ull; });
  }
  return s;
}

struct Draw {
  double value;
  uint32_t id;
};

__device__ inline Draw better(Draw a, Draw b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

__device__ inline double gumbel(uint32_t word) { return -log(-log(((double)(word >> 8) + 0.5) / 16777216.0)); }

__device__ inline uint32_t draw(const Scores &score, const Survivors &survive, const tg_sampling &sampling,
                                uint32_t vocabulary, uint32_t position) {
  __shared__ Draw partial[SAMPLE_WARPS];
  const uint2 key = make_uint2((uint32_t)sampling.key, (uint32_t)(sampling.key >> 32));
  Draw best = {-INFINITY, 0xffffffffu};
  for (uint32_t block = threadIdx.x; block * 4 < vocabulary; block += SAMPLE_THREADS) {
    const uint4 words = philox4x32_10(make_uint4(block, position, SAMPLE_STREAM, 0), key);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t id = block * 4 + i;
      if (id >= vocabulary) break;
      float s = score(id);
      if (!survive(s, id)) continue;
      uint32_t word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
      best = better(best, Draw{(double)s + gumbel(word), id});
    }
  }
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2)
    best = better(best, Draw{__shfl_xor_sync(0xffffffffu, best.value, offset), __shfl_xor_sync(0xffffffffu, best.id, offset)});
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = best;
  __syncthreads();
  best = partial[0];
#pragma unroll
  for (int w = 1; w < SAMPLE_WARPS; w++) best = better(best, partial[w]);
  return best.id;
}

/* Thread 0 writes into `sampled`. */
__device__ inline void logprobs(tg_sampled *sampled, const float *logits, uint32_t vocabulary, uint32_t token, uint32_t count) {
  unsigned long long best = over_ids(vocabulary, 0ull, Max(), [&](uint32_t id) { return ranked(logits[id], id); });
  const float max = logits[~(uint32_t)best];
  const double log_sum = log(over_ids(vocabulary, 0.0, Sum(), [&](uint32_t id) { return weight_of(logits[id], max); }));
  auto logprob = [&](uint32_t id) { return __float_as_uint((float)((double)logits[id] - (double)max - log_sum)); };
  if (threadIdx.x == 0) sampled->logprob = logprob(token);
  count = min(min(count, TG_MAX_LOGPROBS), vocabulary);
  for (uint32_t i = 0; i < count; i++) {
    auto below = [&](uint32_t id) {
      const unsigned long long rank = ranked(logits[id], id);
      return rank < best ? rank : 0ull;
    };
    if (i > 0) best = over_ids(vocabulary, 0ull, Max(), below);
    if (threadIdx.x == 0) {
      sampled->top_ids[i] = ~(uint32_t)best;
      sampled->top_logprobs[i] = logprob(~(uint32_t)best);
    }
  }
}

/* A sampled row that a launch is about, and where its logits are. With `tile_rows`, as in a score step, line i of them is row first + i
 * of the step, and sampled rows outside are left to other tiles. It is read before the wait. */
struct Sampled {
  bool there;
  uint32_t row;       /* of the step's rows */
  float *line;        /* [V] */

  __device__ inline Sampled(uint32_t sample, const tg_state *state, float *logits, const tg_step *step,
                            uint32_t vocabulary, uint32_t first, uint32_t tile_rows) {
    there = sample < __ldcg(&step->sample_rows);
    if (!there) return;
    row = __ldcg(table<uint32_t>(state, __ldcg(&step->sample_table)) + sample);
    there = tile_rows == 0 || row - first < tile_rows;
    line = logits + (size_t)(tile_rows > 0 ? row - first : sample) * vocabulary;
  }
};

/* best[S,gridDim.x]: common/argmax.cuh's words. Launch: grid = (parts of a row, most sampled rows), block = TG_BEST_THREADS. */
extern "C" __global__ void __launch_bounds__(TG_BEST_THREADS)
    tg_sample_best(const __grid_constant__ tg_sample_best_args a) {
  let_next_kernel_start();
  const uint32_t vocabulary = a.vocabulary;
  const Sampled at(blockIdx.y, a.state, a.logits, a.step, vocabulary, a.first, a.tile_rows);
  wait_for_earlier_kernels();
  if (!at.there) return;
  const uint32_t share = (vocabulary + 4 * gridDim.x - 1) / (4 * gridDim.x) * 4;
  const uint32_t begin = blockIdx.x * share, end = min(vocabulary, begin + share);
  unsigned long long mine = BEST_NONE;
  auto take = [&](float l, uint32_t id) { mine = Max()(mine, best_word(l, id)); };
  if (vocabulary % 4 == 0) {  /* then every line starts on 16 bytes */
#pragma unroll 1
    for (uint32_t id = begin + 4 * threadIdx.x; id < end; id += BEST_FOURS * 4 * TG_BEST_THREADS) {
      float4 v[BEST_FOURS];
#pragma unroll
      for (uint32_t i = 0; i < BEST_FOURS; i++)
        if (id + i * 4 * TG_BEST_THREADS < end) v[i] = load4(at.line + id + i * 4 * TG_BEST_THREADS);
#pragma unroll
      for (uint32_t i = 0; i < BEST_FOURS; i++) {
        const uint32_t of = id + i * 4 * TG_BEST_THREADS;
        if (of < end) take(v[i].x, of), take(v[i].y, of + 1), take(v[i].z, of + 2), take(v[i].w, of + 3);
      }
    }
  } else {
#pragma unroll 8
    for (uint32_t id = begin + threadIdx.x; id < end; id += TG_BEST_THREADS) take(at.line[id], id);
  }
  mine = block_reduce<TG_BEST_THREADS>(mine, Max());
  if (threadIdx.x == 0) a.best[blockIdx.y * gridDim.x + blockIdx.x] = mine;
}

/* best[S,parts]: common/argmax.cuh's words, up to SAMPLE_THREADS of a row; logits where these are not enough (needs_best_only), which are
 * as before in the end. With `marks` a sampled row is all that its sequence has in the step, and its token is noted here (tg_mark_seen).
 * The blocks of a row share its ids where only the highest score is needed, and that is not the highest logit; meetings[S] has their
 * results. The first block does any other row alone.
 * Launch: grid = (most sampled rows, blocks of a row), block = SAMPLE_THREADS. */
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, SAMPLE_BLOCKS)
    tg_sample(const __grid_constant__ tg_sample_args a) {
  __shared__ tg_sampled sampled;
  __shared__ SelectScratch scratch;
  __shared__ Altered altered;
  __shared__ uint32_t logprob_count;
  let_next_kernel_start();
  tg_state *state = a.state;
  const tg_step *step = a.step;
  const uint32_t vocabulary = a.vocabulary;
  const Sampled at(blockIdx.x, state, a.logits, step, vocabulary, a.first, a.tile_rows);
  Scores score = {};
  bool there = at.there;
  if (at.there) {
    /* How its slot samples was there before the step began, too. */
    const tg_row *row = table<tg_row>(state, __ldcg(&step->row_table)) + at.row;
    const uint32_t index = __ldcg(&row->slot);
    const tg_slot *slot = table<tg_slot>(state, __ldcg(&state->slot_table)) + index;
    const tg_sampling how = sampling_of(slot);
    const Penalties penalties = penalties_of(how, a.seen, a.counts, index, vocabulary);
    const Edits edits = {how.bias_count, __ldcg(&row->position) + 1 < how.stop_from ? __ldcg(&slot->stop_count) : 0};
    score = {at.line, &altered.penalties, __uint_as_float(how.temperature), penalties.any()};
    const bool shared = gridDim.y > 1 && score.temperature == 0.0f && (score.penalized || edits.any()) && how.logprobs == TG_LOGPROBS_NONE;
    const Ids ids = shared ? ids_of_share(blockIdx.y, gridDim.y, vocabulary) : Ids{0, vocabulary};
    there = shared || blockIdx.y == 0;
    if (there) {
      if (threadIdx.x == 0) {
        altered.row = row, altered.slot = slot, altered.penalties = penalties, altered.edits = edits;
        altered.looked_at = ids, altered.shared = shared;
        logprob_count = how.logprobs;
      }
      if (edits.any()) altered.take_edits(state, slot, index, edits, ids);
#if __CUDA_ARCH__ >= 900 /* where a kernel starts before those ahead of it have ended */
      if (a.marks && threadIdx.x == 0 && score.penalized) altered.note_newest(state, step);
      if (penalties.counted()) prefetch_counts(penalties.seen, penalties.counts, ids);
#endif
    }
  }
  /* Nothing to do: the row's first block waits for earlier kernels, and so does whoever waits for this one. */
  if (!there && blockIdx.y > 0) return;
  if (threadIdx.x == 0) sampled = tg_sampled{};
  wait_for_earlier_kernels();
  if (!there) return;
  unsigned long long highest = threadIdx.x < a.parts ? a.best[blockIdx.x * a.parts + threadIdx.x] : BEST_NONE;
#if __CUDA_ARCH__ < 900
  if (a.marks && threadIdx.x == 0 && score.penalized) altered.note_newest(state, step);
#endif
  __syncthreads(); /* all threads see what the first has stored */
  const bool other = score.penalized || altered.edits.any(), greedy = score.temperature == 0.0f;
  if (other) {
    altered.apply(at.line);
    if (highest != BEST_BROKEN) highest = best_score(score, altered.looked_at, vocabulary);
  }
  highest = block_reduce(highest, Max());
  auto store = [&](uint32_t token) {
    sampled.token = token;
    tg_sampled *to = reinterpret_cast<tg_sampled *>(reinterpret_cast<char *>(state) + step->sampled_table);
    to[blockIdx.x] = sampled;
  };
  auto token_of = [](unsigned long long rank) { return rank == BEST_BROKEN ? 0xffffffffu : id_of(rank); };
  if (altered.shared) {
    altered.undo(at.line);
    if (threadIdx.x == 0 && last_to_come(a.meetings[blockIdx.x], highest, gridDim.y)) store(token_of(highest));
    return;
  }
  const bool finite = highest != BEST_BROKEN;
  uint32_t token = token_of(highest);
  if (finite && !greedy) {
    /* the largest logit's score is the largest: a division keeps the order */
    const float largest = other ? score_of(highest) : score_of(highest) / score.temperature;
    const tg_sampling how = altered.slot->sampling;
    const Survivors survive = survivors(scratch, score, how, vocabulary, largest);
    token = draw(score, survive, how, vocabulary, altered.row->position + 1);
  }
  altered.undo(at.line);
  if (finite && logprob_count != TG_LOGPROBS_NONE) logprobs(&sampled, at.line, vocabulary, token, logprob_count);
  if (threadIdx.x == 0) store(token);
}
