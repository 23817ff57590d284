/* step.cuh: the bodies of a step's kernels (ways.h), which every way of launching runs: as kernels of their own, or as phases of
 * one that stays. */
#pragma once

#include "ways/ways.h"

__device__ inline uint32_t ways_mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

__device__ inline uint64_t ways_mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

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
  to[i] = ways_mix(__ldcg(&from[n - 1 - i]) + layer + seed);
}

/* A step's end, one block of TG_WAYS_THREADS. */
__device__ inline void ways_decide(tg_ways *ways) {
  __shared__ unsigned long long sum;
  const uint32_t bucket = __ldcg(&ways->bucket), n = ways_blocks(bucket) * TG_WAYS_THREADS;
  const uint32_t *last = ways_values(ways, ways->layers);
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  uint64_t part = 0;
  for (uint32_t i = threadIdx.x; i < n; i += TG_WAYS_THREADS) part += ways_mix64((uint64_t)i << 32 | __ldcg(&last[i]));
  atomicAdd(&sum, (unsigned long long)part);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t digest = ways_mix64(__ldcg(&ways->digest) + sum), step = __ldcg(&ways->step);
  const uint32_t next = (uint32_t)(digest >> 32) % TG_WAYS_BUCKETS;
  ways->digest = digest;
  ways->seed = (uint32_t)digest;
  ways->bucket = next;
  reinterpret_cast<uint64_t *>(ways->stamps)[step % TG_WAYS_STAMPS] = ways_now_ns();
  ways->step = step + 1;
  __threadfence();
  const uint64_t word = (step + 1) * TG_WAYS_BUCKETS + next;
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(ways->told), "l"(word) : "memory");
#else
  *reinterpret_cast<volatile uint64_t *>(ways->told) = word;
#endif
}
