/* simt.h: enough of CUDA C++ for a C++ compiler to take kernels, and to run them: a block's threads as fibers of one thread of the
 * host. Where a launch may be early, as many clusters run at once as is drawn, in their order, its own beside those before it;
 * elsewhere one. What sm_80 and sm_90a have beyond plain CUDA C++ is hopper.h's.
 *
 * A fiber runs until it must meet others or wait, or comes by a barrier; who goes on, or which copy or matrix instruction under way
 * is done next, is drawn at random, so that what only one order makes right goes wrong here. In most clusters somebody is slow, as
 * drawn: a warp, a block or all that is asynchronous is drawn seldom, or only where nobody else can go on. Plain loads and stores
 * between two such points are not taken apart, and are seen at once.
 *
 * Where no thread can go on, the launch fails, and who waits for what is listed on standard error with the seed of the launch:
 *
 *   TEST_SIMT_SEED=N     of every launch, with those that wait beside it    (1, 2, 3 ..., as they come)
 *   TEST_SIMT_SEED=N+    of the first; the others have N + 1, N + 2 ... */
#ifndef TEST_SIMT_H
#define TEST_SIMT_H

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <utility>
#include <vector>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Extent {
  uint32_t x, y, z;
};
extern Extent threadIdx, blockIdx, blockDim, gridDim; /* of the fiber that runs */

#undef __global__
#undef __shared__
#undef __constant__
#undef __grid_constant__
#define __global__
#define __shared__ thread_local __attribute__((aligned(16)))  /* a block at a time has a host thread; and `extern` goes with it */
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __noinline__

namespace simt {
/* Waits for all threads of the block that have not ended. */
void meet_block();
/* Waits for the lanes of `mask` in this fiber's warp that have not ended. */
void meet_warp(uint32_t mask);
uint32_t lane();
/* A word a lane, of this fiber's warp. */
uint64_t *words();

template <class T>
T exchange(uint32_t mask, T value, uint32_t from) {
  static_assert(sizeof(T) <= 8, "a word");
  memcpy(&words()[lane()], &value, sizeof value);
  meet_warp(mask);
  T found;
  memcpy(&found, &words()[from], sizeof found);
  meet_warp(mask);
  return found;
}

bool &all_of_block();

constexpr size_t SHARED_BYTES = 227 << 10; /* that a block may have */

struct Launched {
  const char *name;
  Extent grid, block;
  uint32_t cluster; /* blocks of one, along x */
  uint32_t shared_bytes; /* dynamic, of a block: poisoned before it runs */
  bool early; /* its blocks may begin when all before have let_next_kernel_start() */
  char *(*shared)(); /* where a block's dynamic shared memory is, of the host thread that calls */
  void (*kernel)(void *);
  void *argument;
};
/* Runs the kernels for every thread of every block; false: one failed, and why stands on standard error. */
bool run(const std::vector<Launched> &launches);
/* Others may go on before this thread does. */
void pause();
void pause_beside(); /* the same where several clusters may run at once */
/* Before a load of a word in global memory that threads of other blocks may store, and behind such a store. */
void look(const void *at);
void stored();
void let_next_start();
void await_earlier();
}  // namespace simt

using std::isfinite;
inline void __syncthreads() { simt::meet_block(); }
inline int __syncthreads_and(int holds) {
  bool &all = simt::all_of_block();
  all = true;
  simt::meet_block();
  all = all && holds != 0;
  simt::meet_block();
  const int found = all;
  simt::meet_block();
  return found;
}
inline void __syncwarp(uint32_t mask = 0xffffffffu) { simt::meet_warp(mask); }

template <class T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
  return simt::exchange(mask, value, simt::lane() / width * width + from % width);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return simt::exchange(mask, value, simt::lane() ^ bits);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t below) {
  return simt::exchange(mask, value, simt::lane() < below ? simt::lane() : simt::lane() - below);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t above) {
  return simt::exchange(mask, value, simt::lane() + above > 31 ? simt::lane() : simt::lane() + above);
}
/* What `fold(found, lane, its word)` makes of the lanes of `mask`, one after the other, from 0 on; `mine` is this lane's. */
template <class Fold>
uint32_t fold_lanes(uint32_t mask, uint64_t mine, Fold fold) {
  simt::words()[simt::lane()] = mine;
  simt::meet_warp(mask);
  uint32_t found = 0;
  for (uint32_t lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) found = fold(found, lane, simt::words()[lane]);
  simt::meet_warp(mask);
  return found;
}
template <class T>
uint32_t __match_any_sync(uint32_t mask, T value) {
  uint64_t mine = 0;
  memcpy(&mine, &value, sizeof value);
  return fold_lanes(mask, mine, [&](uint32_t same, uint32_t lane, uint64_t word) { return same | (uint32_t)(word == mine) << lane; });
}
inline uint32_t __ballot_sync(uint32_t mask, int holds) {
  return fold_lanes(mask, holds != 0, [](uint32_t found, uint32_t lane, uint64_t word) { return found | (uint32_t)word << lane; });
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return fold_lanes(mask, value, [](uint32_t most, uint32_t, uint64_t word) { return std::max(most, (uint32_t)word); });
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) { return ~__reduce_max_sync(mask, ~value); }
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  return fold_lanes(mask, value, [](uint32_t sum, uint32_t, uint64_t word) { return sum + (uint32_t)word; });
}
inline int __any_sync(uint32_t mask, int holds) { return __ballot_sync(mask, holds) != 0; }
inline int __all_sync(uint32_t mask, int holds) { return __ballot_sync(mask, !holds) == 0; }

/* One fiber runs at a time, so these are as they stand. */
#define ATOMIC(NAME, NEW)                 \
  template <class T, class U>             \
  T atomic##NAME(T *at, U value) {        \
    simt::pause_beside();                 \
    return std::exchange(*at, (T)(NEW));  \
  }
ATOMIC(Add, *at + (T)value)
ATOMIC(Max, std::max(*at, (T)value))
ATOMIC(Min, std::min(*at, (T)value))
ATOMIC(Or, *at | (T)value)
ATOMIC(Exch, value)
template <class T>
T atomicCAS(T *at, T expected, T value) {
  simt::pause_beside();
  const T found = *at;
  if (found == expected) *at = value;
  return found;
}
template <class T>
T __ldcg(const T *at) { return *at; }
template <class T>
T __ldg(const T *at) { return *at; }
template <class T>
T __ldca(const T *at) { return *at; }
template <class T>
void __stcg(T *at, T value) { *at = value; }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
inline int __float_as_int(float v) { return (int)__float_as_uint(v); }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __clz(uint32_t v) { return v ? __builtin_clz(v) : 32; }
inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }
inline uint32_t __brev(uint32_t v) {
  uint32_t reversed = 0;
  for (int bit = 0; bit < 32; bit++) reversed |= (v >> bit & 1) << (31 - bit);
  return reversed;
}
/* Each four bits of `which` name a byte of both words. */
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which) {
  const uint64_t both = (uint64_t)high << 32 | low;
  uint32_t found = 0;
  for (int byte = 0; byte < 4; byte++) found |= (uint32_t)(both >> (which >> 4 * byte & 7) * 8 & 0xff) << 8 * byte;
  return found;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
template <class A, class B>
auto min(A a, B b) { using C = decltype(a + b); return (C)a < (C)b ? (C)a : (C)b; }
template <class A, class B>
auto max(A a, B b) { using C = decltype(a + b); return (C)a > (C)b ? (C)a : (C)b; }

/* In place of common/pdl.cuh; nobody leaves a stamp. */
#define TAILGRAPH_PDL_CUH
#define TAILGRAPH_STAMPS_CUH
inline void let_next_kernel_start() { simt::let_next_start(); }
inline void await_earlier_kernels() { simt::await_earlier(); }
inline void wait_for_earlier_kernels() { simt::await_earlier(); }
inline void begin_kernel() { simt::let_next_start(), simt::await_earlier(); }
inline void wait_and_let_next_start() { simt::await_earlier(), simt::let_next_start(); }
inline void prefetch_line(const void *) {}
inline void bulk_prefetch(const void *, uint32_t) {}
inline void bulk_prefetch(const void *, uint32_t, uint64_t) {}
inline void prefetch(const void *, size_t, uint32_t, uint32_t) {}

#endif
