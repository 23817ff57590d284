/* stamps.cuh: when the kernels of a step ran, by their own word, for `trace --kernels`.
 *
 * The first thread of a grid notes two times by %globaltimer: when it began, and when its wait for the kernels ahead
 * was over. From then on the kernel has the step to itself, until the next one's wait is over, since every kernel
 * waits for all ahead of it. So a step's kernels divide its time among them without a gap, and how long before its
 * turn a kernel was on the SMs already is known too. tg_stamps_close, the step's last kernel, has the last one's end.
 *
 * Where nobody asks, `tg_stamping` is null: one warp of a grid loads and compares it twice, in what is the shadow of
 * the kernel ahead. Where somebody does, a stamp costs no kernel any time after its wait but that of a store: the
 * place to store to is taken before the wait, in no order, and what reads the stamps sorts them by time.
 *
 * src/backend/cuda/stamps.rs says the layout again.
 */
#ifndef TAILGRAPH_STAMPS_CUH
#define TAILGRAPH_STAMPS_CUH

#include <stdint.h>

/* One kernel of a step. */
struct Stamp {
  uint64_t began_ns, ready_ns;
};

/* Between its two halves a kernel keeps its first time by where its thread runs: SM and warp slot, which no other
 * resident thread shares. */
constexpr uint32_t STAMP_SMS = 512, STAMP_WARPS = 64;

/* In device memory; Stamp[capacity] follows. */
struct Stamps {
  uint64_t on;        /* 0: the step that runs leaves none */
  uint64_t taken;     /* places given out in this step */
  uint64_t written;   /* entries of the ring */
  uint64_t lost;      /* steps that found the ring full */
  uint64_t capacity;  /* stamps of a step, at most */
  uint64_t entries;   /* the ring's */
  uint64_t every;     /* of so many steps the last leaves no stamps: what they cost is the difference */
  uint64_t pad;
  uint64_t began_ns[STAMP_SMS * STAMP_WARPS];
};

/* Null but for `trace --kernels`. */
extern "C" __constant__ Stamps *tg_stamping;

/* Where a kernel is going to put its stamp, in its first thread; null where it puts none. */
struct StampPlace {
  Stamp *at;
  uint64_t began_ns;
};

__device__ inline uint64_t stamp_clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/* Of the first thread; null in all others, and where nobody asks. */
__device__ inline Stamps *stamps_wanted() {
  if ((threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z) != 0) return nullptr;
  Stamps *stamps;  /* volatile, so that no other thread loads it too */
  asm volatile("ld.const.u64 %0, [%1];" : "=l"(stamps) : "l"(__cvta_generic_to_constant(&tg_stamping)));
  return stamps;
}

__device__ inline uint64_t stamp_global(const void *p) { return __cvta_generic_to_global(p); }

/* Where this thread keeps its first time. */
__device__ inline uint64_t stamp_kept(Stamps *stamps) {
  uint32_t sm, warp;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %warpid;" : "=r"(warp));
  return stamp_global(&stamps->began_ns[sm % STAMP_SMS * STAMP_WARPS + warp % STAMP_WARPS]);
}

__device__ inline void stamp_begin() {
  Stamps *stamps = stamps_wanted();
  if (stamps) asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(stamp_kept(stamps)), "l"(stamp_clock_ns()));
}

__device__ inline StampPlace stamp_place() {
  StampPlace place = {nullptr, 0};
  Stamps *stamps = stamps_wanted();
  if (!stamps) return place;
  uint64_t on, index;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(on) : "l"(stamp_global(&stamps->on)));
  if (!on) return place;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(place.began_ns) : "l"(stamp_kept(stamps)));
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(index) : "l"(stamp_global(&stamps->taken)));
  if (index < stamps->capacity) place.at = reinterpret_cast<Stamp *>(stamps + 1) + index;
  return place;
}

__device__ inline void stamp_ready(const StampPlace &place) {
  if (!place.at) return;
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(stamp_global(place.at)), "l"(place.began_ns),
               "l"(stamp_clock_ns())
               : "memory");
}

#endif
