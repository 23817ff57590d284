/* platform.h: what the core needs of the machine under it. Two branches: the host's C compiler, where the core's functions have external
 * linkage and lanes are a loop, and nvcc, where the dispatcher kernel includes sched.c and lanes are threads.
 *
 * On a GPU a turn costs as much as its chains of dependent loads and stores. So what every turn uses lies in shared memory: the head of
 * the state, which the dispatcher loads and stores (its tables stay: tg_block), and the scratch (tg_scratch). The rings lie across the
 * bus: a turn loads what it needs of them at once and before it has to (tg_look), knows their layout from a copy (tg_layout), and releases
 * all its indices behind one fence (tg_release_later, tg_flush). */
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

/* Accesses to words that others see, too:
 *
 *   tg_acquire   loads an index that the other side releases, at system scope
 *   tg_release   makes all that was written before it, by any lane before the last barrier, visible to who acquires the word
 *   tg_load      loads a word that the other side may write at any time; it orders no other
 *   tg_store     stores one that the other side may read at any time; what orders it is a later release
 *   tg_read      and tg_write: a word that one side alone has at a time, as releases and acquires settle
 *   tg_swap      replaces `expected` by `to`, with acquire and release; returns what was there
 *
 * Tests that take apart who sees what when compile the core with -DTG_EXPLORE: then they decide what each access reads. */
#ifdef TG_EXPLORE
enum { TG_EXPLORE_READ, TG_EXPLORE_WRITE, TG_EXPLORE_LOAD, TG_EXPLORE_STORE, TG_EXPLORE_ACQUIRE, TG_EXPLORE_RELEASE, TG_EXPLORE_SWAP };
uint64_t tg_explore(uint32_t access, const uint64_t *word, uint64_t to, uint64_t expected);
#define tg_acquire(word) tg_explore(TG_EXPLORE_ACQUIRE, word, 0u, 0u)
#define tg_release(word, to) (void)tg_explore(TG_EXPLORE_RELEASE, word, to, 0u)
#define tg_load(word) tg_explore(TG_EXPLORE_LOAD, word, 0u, 0u)
#define tg_store(word, to) (void)tg_explore(TG_EXPLORE_STORE, word, to, 0u)
#define tg_read(word) tg_explore(TG_EXPLORE_READ, word, 0u, 0u)
#define tg_write(word, to) (void)tg_explore(TG_EXPLORE_WRITE, word, to, 0u)
#define tg_swap(word, expected, to) tg_explore(TG_EXPLORE_SWAP, word, to, expected)
#else
#define tg_read(word) (*(word))
#define tg_write(word, to) (*(word) = (to))
#ifdef __CUDACC__
#define TG_LOADS_AND_STORES(LOAD, LOADS, STORE, STORES)                                         \
  TG_FN uint64_t LOAD(const uint64_t *word) {                                                   \
    uint64_t loaded;                                                                            \
    asm volatile("ld." LOADS ".sys.global.u64 %0, [%1];" : "=l"(loaded) : "l"(word) : "memory"); \
    return loaded;                                                                              \
  }                                                                                             \
  TG_FN void STORE(uint64_t *word, uint64_t to) {                                               \
    asm volatile("st." STORES ".sys.global.u64 [%0], %1;" ::"l"(word), "l"(to) : "memory");      \
  }
TG_LOADS_AND_STORES(tg_acquire, "acquire", tg_release, "release")
TG_LOADS_AND_STORES(tg_load, "relaxed", tg_store, "relaxed")

TG_FN uint64_t tg_swap(uint64_t *word, uint64_t expected, uint64_t to) {
  uint64_t found;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found) : "l"(word), "l"(expected), "l"(to) : "memory");
  return found;
}
#else
#define tg_acquire(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
#define tg_release(word, to) __atomic_store_n(word, to, __ATOMIC_RELEASE)
#define tg_load(word) __atomic_load_n(word, __ATOMIC_RELAXED)
#define tg_store(word, to) __atomic_store_n(word, to, __ATOMIC_RELAXED)

TG_FN uint64_t tg_swap(uint64_t *word, uint64_t expected, uint64_t to) {
  __atomic_compare_exchange_n(word, &expected, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
#endif
#endif

/* What differs, too:
 *
 *   tg_release_later  lane 0 releases by the end of the turn, and nothing on this side reads the word before
 *   tg_flush          lane 0: what was released in this turn becomes visible, as on the host it is at once
 *   tg_layout         the head of the rings, for what never changes in it: offsets, capacities and `record`
 *   tg_block          where the state block is, which offsets of tables count from
 *   tg_set_bits       sets bits of a word in a phase in which other lanes may do so too: OR commutes, so their order does not show
 *   tg_add            adds to such a word
 *   tg_lowest_bit     the index of the lowest set bit of a word that is not 0 */
#ifdef __CUDACC__
#define TG_RELEASES 8u

/* What the dispatcher's threads share during a turn. */
static __shared__ struct __align__(16) {
  tg_rings layout;        /* from `bytes` on, copied in 16s; the rest is not set */
  tg_state *block;        /* in device memory */
  uint64_t returned_end;  /* steps before this one have come back */
  uint32_t rows_held;     /* decode rows of the step that has come back which tg_device_rows has */
  uint64_t request_head, control_head, event_tail, trace_tail, flags; /* as last looked at, in the rings' order, */
  uint64_t pushed, claims_tail; /* and, where a replica claims, the queue's */
  uint64_t *released[TG_RELEASES]; /* what lane 0 has released since the last flush, and to what */
  uint64_t released_to[TG_RELEASES];
  uint32_t releases;
} tg_device;

/* What was loaded or stored before comes before all that is loaded or stored after, for the host and other GPUs too. */
TG_FN void tg_fence(void) {
#ifndef TG_EXPLORE
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

TG_FN void tg_flush(void) {
  if (tg_device.releases == 0u) return;
  tg_fence();
  for (uint32_t i = 0u; i < tg_device.releases; i++) tg_store(tg_device.released[i], tg_device.released_to[i]);
  tg_device.releases = 0u;
}

TG_FN void tg_release_later(uint64_t *word, uint64_t to) {
  if (tg_device.releases == TG_RELEASES) tg_flush();
  tg_device.released[tg_device.releases] = word;
  tg_device.released_to[tg_device.releases++] = to;
}

TG_FN const tg_rings *tg_layout(const tg_rings *) { return &tg_device.layout; }

TG_FN tg_state *tg_block(tg_state *) { return tg_device.block; }

TG_FN void tg_set_bits(uint32_t *word, uint32_t bits) { atomicOr(word, bits); }

TG_FN void tg_add(uint32_t *word, uint32_t more) { atomicAdd(word, more); }

TG_FN uint32_t tg_lowest_bit(uint32_t word) { return (uint32_t)__ffs((int)word) - 1u; }
#else
#define tg_release_later(word, to) tg_release(word, to)
#define tg_layout(rings) (rings)
#define tg_block(state) (state)
#define tg_set_bits(word, bits) (void)(*(word) |= (bits))
#define tg_add(word, more) (void)(*(word) += (more))
#define tg_lowest_bit(word) ((uint32_t)__builtin_ctz(word))
#endif

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
