/* ways.h: what all ways of launching share on the device: a step of small kernels whose shape the step before decides.
 *
 * values[0] and values[1] are u32 [128 * TG_WAYS_WIDEST]. A step has so many layers, one kernel each, and a last kernel:
 *
 *   layer l:  to[i] = mix(from[n - 1 - i] + l + seed)      n = 128 * blocks of the bucket; from, to by turns; the first
 *                                                          reads values[0]
 *   last:     digest = mix64(digest + sum over i of mix64(i << 32 | last[i]))
 *             seed, bucket of the next step = the digest's low word, its high word modulo TG_WAYS_BUCKETS
 *
 * So the next step's shape is known only once a step has ended, as in a run that serves; and a kernel that is missing, or
 * that ran before the one ahead of it had ended, shows in the digest. Integers only: every order of additions gives the
 * same bits. profiles/lab/ways/step.rs says the same in Rust.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TG_WAYS_BUCKETS 4
/* Blocks of the widest bucket; of bucket b: 1, 8, 32, 128. */
#define TG_WAYS_WIDEST 128
#define TG_WAYS_THREADS 128
/* Steps whose ends are kept, the newest. */
#define TG_WAYS_STAMPS 1024
/* Graphs of each bucket: a sibling is launched while the graph of the step before has not left the GPU. */
#define TG_WAYS_COPIES 2

/* What the GPU refused, or waited for in vain. */
enum {
  TG_WAYS_FINE = 0,
  TG_WAYS_TAIL = 1,     /* a tail launch of a step's graph */
  TG_WAYS_FORGET = 2,   /* a fire-and-forget launch of one */
  TG_WAYS_SELF = 3,     /* a tail launch of the graph that runs */
  TG_WAYS_KERNEL = 4,   /* a kernel launched by a kernel */
  TG_WAYS_TURN = 5,     /* the scheduler's own next turn, launched by a kernel */
  TG_WAYS_STREAM = 6,   /* a stream made by a kernel */
  TG_WAYS_BARRIER = 7,  /* a grid barrier that not all blocks came to */
};

/* The first failure; what came later is of it. */
typedef struct {
  uint32_t what;  /* TG_WAYS_* */
  uint32_t error; /* cudaError_t */
  uint64_t step;  /* steps done by then */
  uint32_t bucket;
  uint32_t count; /* launches by this graph or kernel before it */
} tg_ways_failure;

typedef struct {
  uint64_t step;   /* steps done */
  uint64_t limit;  /* no step begins once so many are done */
  uint64_t digest; /* of all steps so far */
  uint32_t seed, bucket;
  uint32_t layers;
  uint32_t renew;      /* siblings in a chain, the first graph included */
  uint32_t launched;   /* siblings launched so far */
  uint32_t not_taken;  /* siblings that the GPU did not take in time, so that the head went on */
  uint64_t idle_turns; /* of a scheduler that found nothing to do */
  uint64_t arrived;    /* blocks at grid barriers */
  tg_ways_failure failure;
  uint64_t values[2];
  uint64_t stamps; /* u64 [TG_WAYS_STAMPS]: when step s ended, at s % TG_WAYS_STAMPS */
  uint64_t told;   /* u64 in pinned memory: steps done * TG_WAYS_BUCKETS + the next one's bucket */
  uint64_t graphs[TG_WAYS_COPIES][TG_WAYS_BUCKETS];
} tg_ways;
