/* queue.cu: items that threads claim from one counter, in each way to claim them, and the same items split beforehand: what
 * claiming costs, and what it saves where items differ.
 *
 * Item i takes rounds(i) dependent steps of arithmetic: all alike, or skewed, a quarter as many doubled as often as a coin that
 * item i throws says, at most 6 times (about as many in all).
 * Bound: atomics of one address in the second-level cache, or arithmetic. Launch: grid = any, block = QUEUE_THREADS. */
#include "ways/step.cuh"

constexpr uint32_t QUEUE_THREADS = 128, AT_ONCE = 32;

enum { CLAIM_ONE = 0, CLAIM_MANY = 1, CLAIM_BY_WARP = 2, SPLIT = 3 };

__device__ inline uint32_t rounds_of(uint32_t item, uint32_t rounds, uint32_t skewed) {
  if (skewed == 0) return rounds;
  return rounds / 4 << min(__clz(__brev(mix(item))), 6);
}

__device__ inline uint64_t work(uint32_t item, uint32_t rounds, uint32_t skewed) {
  uint64_t value = mix64(item + 1);
  const uint32_t count = rounds_of(item, rounds, skewed);
  for (uint32_t round = 0; round < count; round++) value = mix64(value + round);
  return value;
}

/* The compiler would have one lane claim for all that ask at once: here a claim is what it says. */
__device__ inline uint32_t claim(uint32_t *next, uint32_t count) {
  uint32_t first;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(first) : "l"(next), "r"(count) : "memory");
  return first;
}

/* sum[1] (zero before): of what all items come to. times[warps, 2]: when each warp began and ended. next[1]: zero before. */
extern "C" __global__ void __launch_bounds__(QUEUE_THREADS)
    tg_ways_queue(uint32_t *next, unsigned long long *sum, uint64_t *times, uint32_t items, uint32_t rounds, uint32_t skewed,
             uint32_t how) {
  const uint32_t thread = blockIdx.x * QUEUE_THREADS + threadIdx.x, threads = gridDim.x * QUEUE_THREADS, lane = threadIdx.x % 32;
  const uint64_t start = ways_now_ns();
  uint64_t mine = 0;
  if (how == CLAIM_ONE) {
    for (uint32_t item = claim(next, 1); item < items; item = claim(next, 1)) mine += work(item, rounds, skewed);
  } else if (how == CLAIM_MANY) {
    for (uint32_t first = claim(next, AT_ONCE); first < items; first = claim(next, AT_ONCE))
      for (uint32_t item = first; item < min(first + AT_ONCE, items); item++) mine += work(item, rounds, skewed);
  } else if (how == CLAIM_BY_WARP) {
    for (;;) {
      uint32_t first = lane == 0 ? claim(next, 32) : 0;
      first = __shfl_sync(0xffffffffu, first, 0);
      if (first >= items) break;
      if (first + lane < items) mine += work(first + lane, rounds, skewed);
      __syncwarp();
    }
  } else {
    const uint32_t each = (items + threads - 1) / threads;
    for (uint32_t item = thread * each; item < min((thread + 1) * each, items); item++) mine += work(item, rounds, skewed);
  }
  __syncwarp();
  for (uint32_t other = 16; other > 0; other /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, other);
  if (lane != 0) return;
  times[thread / 32 * 2] = start;
  times[thread / 32 * 2 + 1] = ways_now_ns();
  atomicAdd(sum, (unsigned long long)mine);
}
