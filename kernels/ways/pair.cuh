/* pair.cuh: what kernels of a step over two GPUs (pair.h) share. */
#pragma once

#include "sched/platform.h"
#include "ways/pair.h"
#include "ways/step.cuh"

/* Nothing is left to do, or something went wrong. Read past the first-level cache, which may have what an earlier kernel saw. */
__device__ inline bool pair_over(const tg_pair *pair) {
  return __ldcg(&pair->step) >= __ldcg(&pair->limit) || __ldcg(&pair->failed) != TG_PAIR_FINE;
}

/* One thread. */
__device__ inline void pair_fail(tg_pair *pair, uint32_t what, uint32_t error) {
  if (atomicCAS(&pair->failed, (uint32_t)TG_PAIR_FINE, what) != TG_PAIR_FINE) return;
  pair->error = error;
  pair->block = blockIdx.x;
  __threadfence();
}

/* Looks at the word between two looks at the clock. */
constexpr uint32_t PAIR_LOOKS = 256;

/* One thread: waits until the other GPU has released `goal`. Whether it did in time. */
__device__ inline bool pair_await(tg_pair *pair, const uint64_t *flag, uint64_t goal, uint32_t what) {
  const uint64_t start = ways_now_ns(), limit_ns = pair->limit_ns;
  do {
    for (uint32_t look = 0; look < PAIR_LOOKS; look++)
      if (tg_acquire(flag) >= goal) return true;
  } while (ways_now_ns() - start <= limit_ns);
  pair_fail(pair, what, 0);
  return false;
}

/* All threads of a block, of a kernel whose blocks come here once each: whether it is the last one. It sees what the others wrote. */
__device__ inline bool pair_last_block(tg_pair *pair) {
  __shared__ uint32_t done;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    done = atomicAdd(&pair->blocks_done, 1u);
    if (done == gridDim.x - 1) {
      __threadfence_system();
      pair->blocks_done = 0;
    }
  }
  __syncthreads();
  return done == gridDim.x - 1;
}

/* A bf16 by 16 bits that say which: whole numbers from -128 to 127, doubled up to 7 times. */
__device__ inline uint32_t pair_bf16(uint32_t bits) {
  const int32_t value = ((int32_t)(bits & 0xff) - 128) * (1 << (bits >> 8 & 7));
  return __float_as_uint((float)value) >> 16;
}

__device__ inline uint32_t pair_word(uint64_t token, uint32_t gpu, uint32_t i) {
  const uint32_t bits = ways_mix((uint32_t)token + i * 0x9e3779b9u + gpu * 0x7feb352du);
  return pair_bf16(bits & 0xffff) | pair_bf16(bits >> 16) << 16;
}

/* To the nearest bf16, to even where two are as near. Two bf16 have a sum whose f32 rounding changes nothing of that. */
__device__ inline uint32_t pair_rounded(float sum) {
  const uint32_t bits = __float_as_uint(sum);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* The sum of two words of two bf16. */
__device__ inline uint32_t pair_sum(uint32_t a, uint32_t b) {
  const uint32_t low = pair_rounded(__uint_as_float(a << 16) + __uint_as_float(b << 16));
  const uint32_t high = pair_rounded(__uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u));
  return low | high << 16;
}

/* A thread's share of a row, in words. */
struct alignas(16) PairPart {
  uint32_t word[4];
};

__device__ inline PairPart *pair_part(uint32_t *rows, uint32_t row) {
  return reinterpret_cast<PairPart *>(rows + (size_t)row * TG_PAIR_ROW_WORDS) + threadIdx.x;
}

/* Past the first-level cache: another GPU may have written it. */
__device__ inline PairPart pair_read(const uint32_t *rows, uint32_t row) {
  const uint4 *at = reinterpret_cast<const uint4 *>(rows + (size_t)row * TG_PAIR_ROW_WORDS) + threadIdx.x;
  const uint4 found = __ldcg(at);
  return {{found.x, found.y, found.z, found.w}};
}

/* A block's rows, to another place. */
__device__ inline void pair_copy(uint32_t *to, const uint32_t *from, uint32_t rows) {
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) *pair_part(to, row) = pair_read(from, row);
}

/* One thread: the step is over. False where no other may begin. */
__device__ inline bool pair_end(tg_pair *pair) {
  if (__ldcg(&pair->failed) != TG_PAIR_FINE) return false;
  const uint64_t step = __ldcg(&pair->step);
  reinterpret_cast<uint64_t *>(pair->stamps)[step % TG_PAIR_STAMPS] = ways_now_ns();
  pair->step = step + 1;
  __threadfence();
  tg_release(reinterpret_cast<uint64_t *>(pair->told), step + 1);
  return step + 1 < pair->limit;
}
