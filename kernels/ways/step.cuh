/* step.cuh: a step of small kernels whose shape the step before decides, which every way of launching runs: as kernels of their own, or
 * as phases of one that stays.
 *
 * values[0] and values[1] are u32 [128 * TG_WAYS_WIDEST]. A step has so many layers, one kernel each, and a last kernel:
 *
 *   layer l:  to[i] = mix(from[n - 1 - i] + l + seed)      n = 128 * blocks of the bucket; from, to by turns; the first
 *                                                          reads values[0]
 *   last:     digest = mix64(digest + sum over i of mix64(i << 32 | last[i]))
 *             seed, bucket of the next step = the digest's low word, its high word modulo TG_WAYS_BUCKETS
 *
 * So the next step's shape is known only once a step has ended, and a kernel that is missing, or ran too early, shows in the digest.
 * Integers only: every order of additions gives the same bits. profiles/lab/ways/step.rs says the same in Rust. */
#pragma once

#include "common/mix.cuh"
#include "sched/platform.h"

#include <stddef.h>

#define TG_WAYS_BUCKETS 4
#define TG_WAYS_WIDEST 128  /* blocks of the widest bucket; of bucket b: 1, 8, 32, 128 */
#define TG_WAYS_THREADS 128
#define TG_WAYS_STAMPS 1024  /* steps whose ends are kept, the newest */
#define TG_WAYS_COPIES 2  /* graphs of each bucket: a sibling is launched while the graph of the step before has not left the GPU */

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

__device__ inline uint64_t ways_now_ns() {
  uint64_t now = 0;
#ifdef __CUDA_ARCH__
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
#endif
  return now;
}

/* Blocks of a bucket. */
__device__ inline uint32_t ways_blocks(uint32_t bucket) { return bucket == 0 ? 1 : 2u << (2 * bucket); }

__device__ inline uint32_t *ways_values(const tg_ways *ways, uint32_t which) {
  return reinterpret_cast<uint32_t *>(ways->values[which % 2]);
}

/* Nothing is left to do, or something went wrong. Read past the first-level cache: a kernel that stays looks again. */
__device__ inline bool ways_over(const tg_ways *ways) {
  return __ldcg(&ways->step) >= __ldcg(&ways->limit) || __ldcg(&ways->failure.what) != TG_WAYS_FINE;
}

/* One thread. */
__device__ inline void ways_fail(tg_ways *ways, uint32_t what, uint32_t error, uint32_t count) {
  if (atomicCAS(&ways->failure.what, (uint32_t)TG_WAYS_FINE, what) != TG_WAYS_FINE) return;
  ways->failure.error = error;
  ways->failure.step = ways->step;
  ways->failure.bucket = ways->bucket;
  ways->failure.count = count;
  __threadfence();
}

/* A block's share of a layer. Blocks read what the block opposite wrote. */
__device__ inline void ways_layer(uint32_t *to, const uint32_t *from, uint32_t seed, uint32_t layer, uint32_t blocks) {
  const uint32_t i = blockIdx.x * TG_WAYS_THREADS + threadIdx.x, n = blocks * TG_WAYS_THREADS;
  to[i] = mix(__ldcg(&from[n - 1 - i]) + layer + seed);
}

/* One thread: the step is over, which `told` tells the host. */
__device__ inline void ways_end(tg_ways *ways, uint64_t told) {
  const uint64_t step = __ldcg(&ways->step);
  reinterpret_cast<uint64_t *>(ways->stamps)[step % TG_WAYS_STAMPS] = ways_now_ns();
  ways->step = step + 1;
  __threadfence();
  tg_release(reinterpret_cast<uint64_t *>(ways->told), told);
}

/* A step's end, one block of TG_WAYS_THREADS. */
__device__ inline void ways_decide(tg_ways *ways) {
  __shared__ unsigned long long sum;
  const uint32_t bucket = __ldcg(&ways->bucket), n = ways_blocks(bucket) * TG_WAYS_THREADS;
  const uint32_t *last = ways_values(ways, ways->layers);
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  uint64_t part = 0;
  for (uint32_t i = threadIdx.x; i < n; i += TG_WAYS_THREADS) part += mix64((uint64_t)i << 32 | __ldcg(&last[i]));
  atomicAdd(&sum, (unsigned long long)part);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t digest = mix64(__ldcg(&ways->digest) + sum), step = __ldcg(&ways->step);
  const uint32_t next = (uint32_t)(digest >> 32) % TG_WAYS_BUCKETS;
  ways->digest = digest;
  ways->seed = (uint32_t)digest;
  ways->bucket = next;
  ways_end(ways, (step + 1) * TG_WAYS_BUCKETS + next);
}
