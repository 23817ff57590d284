/* select.cuh: block-wide reductions and weighted selection for sampling, in integers or fixed orders: every run gives the same. */
#pragma once

#include "common/base.cuh"
#include "sample/args.h"

constexpr int SAMPLE_THREADS = TG_SAMPLE_THREADS;
constexpr int SAMPLE_WARPS = SAMPLE_THREADS / WARP;
constexpr uint32_t BINS = 2048;
constexpr int BINS_PER_THREAD = BINS / SAMPLE_THREADS;

struct Max {
  __device__ inline unsigned long long operator()(unsigned long long a, unsigned long long b) const { return a > b ? a : b; }
};
struct Sum {
  template <typename T>
  __device__ inline T operator()(T a, T b) const { return a + b; }
};

/* `v` of all threads put together, in every thread. */
template <int THREADS = SAMPLE_THREADS, typename T, class Op>
__device__ inline T block_reduce(T v, Op op) {
  __shared__ T partial[THREADS / WARP];
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, offset));
  __syncthreads();  /* the last call's readers are done */
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = v;
  __syncthreads();
  v = partial[0];
#pragma unroll
  for (int w = 1; w < THREADS / WARP; w++) v = op(v, partial[w]);
  return v;
}

/* `v` and `of(id)` of all ids put together, in every thread. */
template <typename T, class Op, class Of>
__device__ inline T over_ids(uint32_t vocabulary, T v, Op op, Of of) {
  for (uint32_t id = threadIdx.x; id < vocabulary; id += SAMPLE_THREADS) v = op(v, of(id));
  return block_reduce(v, op);
}

/* What a selection needs of shared memory; one for all selections of a kernel. */
struct SelectScratch {
  unsigned long long sums[BINS], warp_sums[SAMPLE_WARPS], rest;
  uint32_t digit;
};

/* Finds the key at which the running sum of weight(i) reaches `target`, over the items 0 .. count - 1 that `in` admits, in descending order
 * of key(i). `target` becomes the part of it that items of that very key must reach.
 * Radix selection from the highest bits: three passes over the items, with sums by digit in shared memory. */
template <class In, class Key, class Weight>
__device__ inline uint32_t select_key(SelectScratch &scratch, uint32_t count, unsigned long long &target, In in, Key key,
                                      Weight weight) {
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  uint32_t prefix = 0, mask = 0;
  for (int pass = 0; pass < 3; pass++) {
    const uint32_t shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, digits = pass == 2 ? 1024 : 2048;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += SAMPLE_THREADS) scratch.sums[i] = 0;
    if (threadIdx.x == 0) scratch.digit = 0, scratch.rest = target;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += SAMPLE_THREADS) {
      if (!in(i)) continue;
      uint32_t k = key(i);
      if ((k & mask) == prefix) atomicAdd(&scratch.sums[k >> shift & (digits - 1)], weight(i));
    }
    __syncthreads();
    /* a thread has BINS_PER_THREAD digits, the first thread the highest */
    const uint32_t highest = BINS - 1 - threadIdx.x * BINS_PER_THREAD;
    unsigned long long mine = 0;
#pragma unroll
    for (int b = 0; b < BINS_PER_THREAD; b++) mine += scratch.sums[highest - b];
    const unsigned long long until = sum_up_to_lane(mine);
    if (lane == WARP - 1) scratch.warp_sums[warp] = until;
    __syncthreads();
    unsigned long long before = until - mine;
    for (uint32_t w = 0; w < warp; w++) before += scratch.warp_sums[w];
    if (before < target && target <= before + mine) {
#pragma unroll
      for (int b = 0; b < BINS_PER_THREAD; b++) {
        unsigned long long here = scratch.sums[highest - b];
        if (before < target && target <= before + here) scratch.digit = highest - b, scratch.rest = target - before;
        before += here;
      }
    }
    __syncthreads();
    prefix |= scratch.digit << shift;
    mask |= (digits - 1) << shift;
    target = scratch.rest;
  }
  return prefix;
}
