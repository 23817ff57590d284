/* platform.h: what the core needs of the machine under it. Two branches: the host's C compiler, where the core's functions have external
 * linkage and lanes are a loop, and nvcc, where the dispatcher kernel includes sched.c and lanes are threads.
 *
 * A turn is short chains of dependent loads and stores, so on a GPU it costs as much as they do. What every turn uses lies in shared
 * memory there, a tenth as far away as the cache: the head of the state, which the dispatcher loads and stores (its tables stay:
 * tg_block), and the scratch (tg_scratch, tg_notes). The rings lie across the bus, where a load takes a microsecond and a fence about as
 * long: a turn loads what it needs of them at once and before it has to (tg_look), knows their layout from a copy (tg_layout), and
 * releases all its indices behind one fence (tg_release_later, tg_flush). */
#pragma once

#include "abi.h"

/* TG_FN: inner functions. TG_API: the functions of abi.h. */
#ifdef __CUDACC__
#define TG_FN static __device__ __forceinline__
#define TG_API static __device__
#else
#define TG_FN static inline
#define TG_API
#endif

/* Tests compile the core with -DTG_MUTATION=n and must then fail: site n becomes its bug. */
#ifdef TG_MUTATION
#define TG_MUT(n, good, bad) (TG_MUTATION == (n) ? (bad) : (good))
#else
#define TG_MUT(n, good, bad) (good)
#endif

/* Tests that take apart who sees what when compile the core with -DTG_EXPLORE: every access to memory that others see
 * goes through tests/explore, which decides what it reads. */
#ifdef TG_EXPLORE
#define TG_EXPLORE_READ 0u
#define TG_EXPLORE_WRITE 1u
#define TG_EXPLORE_LOAD 2u
#define TG_EXPLORE_STORE 3u
#define TG_EXPLORE_ACQUIRE 4u
#define TG_EXPLORE_RELEASE 5u
#define TG_EXPLORE_SWAP 6u
uint64_t tg_explore(uint32_t access, const uint64_t *word, uint64_t to, uint64_t expected);
#endif

/* Reads an index that the other side of a ring releases, at system scope. */
TG_FN uint64_t tg_acquire(const uint64_t *value) {
#ifdef TG_EXPLORE
  return tg_explore(TG_EXPLORE_ACQUIRE, value, 0u, 0u);
#elif defined(__CUDACC__)
  uint64_t loaded;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(loaded) : "l"(value) : "memory");
  return loaded;
#else
  return __atomic_load_n(value, __ATOMIC_ACQUIRE);
#endif
}

/* Makes everything written before it (by any lane before the last barrier) visible to a reader that acquires `value`, at once. */
TG_FN void tg_release(uint64_t *value, uint64_t to) {
#ifdef TG_EXPLORE
  tg_explore(TG_EXPLORE_RELEASE, value, to, 0u);
#elif defined(__CUDACC__)
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(value), "l"(to) : "memory");
#else
  __atomic_store_n(value, to, __ATOMIC_RELEASE);
#endif
}

/* Writes a word that the other side may read at any time; what orders it is a later release. */
TG_FN void tg_store(uint64_t *value, uint64_t to) {
#ifdef TG_EXPLORE
  tg_explore(TG_EXPLORE_STORE, value, to, 0u);
#elif defined(__CUDACC__)
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(value), "l"(to) : "memory");
#else
  __atomic_store_n(value, to, __ATOMIC_RELAXED);
#endif
}

/* Reads a word that the other side may write at any time. It orders no other word. */
TG_FN uint64_t tg_load(const uint64_t *value) {
#ifdef TG_EXPLORE
  return tg_explore(TG_EXPLORE_LOAD, value, 0u, 0u);
#elif defined(__CUDACC__)
  uint64_t loaded;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(loaded) : "l"(value) : "memory");
  return loaded;
#else
  return __atomic_load_n(value, __ATOMIC_RELAXED);
#endif
}

/* A word that one side alone has at a time, as releases and acquires settle. */
TG_FN uint64_t tg_read(const uint64_t *value) {
#ifdef TG_EXPLORE
  return tg_explore(TG_EXPLORE_READ, value, 0u, 0u);
#else
  return *value;
#endif
}

TG_FN void tg_write(uint64_t *value, uint64_t to) {
#ifdef TG_EXPLORE
  tg_explore(TG_EXPLORE_WRITE, value, to, 0u);
#else
  *value = to;
#endif
}

/* Replaces `expected` by `to`, with acquire and release; returns what was there. */
TG_FN uint64_t tg_swap(uint64_t *value, uint64_t expected, uint64_t to) {
#ifdef TG_EXPLORE
  return tg_explore(TG_EXPLORE_SWAP, value, to, expected);
#elif defined(__CUDACC__)
  uint64_t found;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found) : "l"(value), "l"(expected), "l"(to) : "memory");
  return found;
#else
  __atomic_compare_exchange_n(value, &expected, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
#endif
}

#ifdef __CUDACC__
/* What was loaded or stored before comes before all that is loaded or stored after, for the host and other GPUs too. */
TG_FN void tg_fence(void) {
#ifndef TG_EXPLORE
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

#define TG_RELEASES 8u

/* What the dispatcher's threads share during a turn. */
static __shared__ struct __align__(16) {
  tg_rings layout;        /* from `bytes` on, copied in 16s; the rest is not set */
  tg_state *block;        /* in device memory */
  uint64_t returned_end;  /* steps before this one have come back */
  uint64_t rows_step;     /* the step whose rows tg_device_rows has; TG_NO_STEP: none */
  uint64_t flags, control_head, request_head, event_tail, trace_tail; /* as last looked at, */
  uint64_t pushed, claims_tail; /*   ... and, of a replica that claims, of the queue */
  uint64_t *released[TG_RELEASES]; /* what lane 0 has released since the last flush, and to what */
  uint64_t released_to[TG_RELEASES];
  uint32_t releases;
} tg_device;
#endif

/* Lane 0: what was released in this turn becomes visible. On the host it is already. */
TG_FN void tg_flush(void) {
#ifdef __CUDACC__
  if (tg_device.releases == 0u) return;
  tg_fence();
  for (uint32_t i = 0u; i < tg_device.releases; i++) tg_store(tg_device.released[i], tg_device.released_to[i]);
  tg_device.releases = 0u;
#endif
}

/* Lane 0 releases by the end of the turn (tg_flush). Nothing reads `value` on this side before. */
TG_FN void tg_release_later(uint64_t *value, uint64_t to) {
#ifdef __CUDACC__
  if (tg_device.releases == TG_RELEASES) tg_flush();
  tg_device.released[tg_device.releases] = value;
  tg_device.released_to[tg_device.releases++] = to;
#else
  tg_release(value, to);
#endif
}

/* The head of the rings, for what never changes in it: offsets, capacities and `record`. */
TG_FN const tg_rings *tg_layout(const tg_rings *rings) {
#ifdef __CUDACC__
  (void)rings;
  return &tg_device.layout;
#else
  return rings;
#endif
}

/* Where the state block is, which offsets of tables count from. */
TG_FN tg_state *tg_block(tg_state *state) {
#ifdef __CUDACC__
  (void)state;
  return tg_device.block;
#else
  return state;
#endif
}

/* Sets bits of a word that several lanes may set in one phase: OR commutes, so their order does not show. */
TG_FN void tg_set_bits(uint32_t *word, uint32_t bits) {
#ifdef __CUDACC__
  atomicOr(word, bits);
#else
  *word |= bits;
#endif
}

/* Index of the lowest set bit of a word that is not 0. */
TG_FN uint32_t tg_lowest_bit(uint32_t word) {
#ifdef __CUDACC__
  return (uint32_t)__ffs((int)word) - 1u;
#else
  return (uint32_t)__builtin_ctz(word);
#endif
}

/* A build with the address sanitizer traps every access between two tables. */
#ifdef __SANITIZE_ADDRESS__
void __asan_poison_memory_region(const volatile void *address, __SIZE_TYPE__ bytes);
void __asan_unpoison_memory_region(const volatile void *address, __SIZE_TYPE__ bytes);
#define TG_POISON(address, bytes) __asan_poison_memory_region(address, bytes)
#define TG_UNPOISON(address, bytes) __asan_unpoison_memory_region(address, bytes)
#else
#define TG_POISON(address, bytes) ((void)(address), (void)(bytes))
#define TG_UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif
