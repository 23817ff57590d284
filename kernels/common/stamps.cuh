/* stamps.cuh: when the kernels of a step ran, by their own clock, for `trace --kernels`.
 *
 * The first thread of a grid notes by %globaltimer when it came to its wait for the kernels ahead, and when that was over. From then on
 * the kernel has the step to itself, until the next one's wait is over. So a step's kernels divide its time among them without a gap.
 * tg_stamps_close, the step's last kernel, has the last one's end.
 *
 * A launch orders a stamp by its amount of dynamic shared memory, which a kernel knows without a load: a launch without stamps costs a
 * jump. With them a kernel's time after its wait grows by one store: the place is taken before the wait, in no order, and what reads the
 * stamps sorts them by time. src/backend/cuda/device/stamps.rs says the layout again.
 */
#ifndef TAILGRAPH_STAMPS_CUH
#define TAILGRAPH_STAMPS_CUH

#include <stdint.h>

/* One kernel of a step. */
struct Stamp {
  uint64_t waits_ns, ready_ns;
};

/* In device memory; Stamp[capacity] follows. */
struct Stamps {
  uint64_t places;    /* of the step that runs: capacity, or 0 where it leaves none */
  uint32_t taken;     /* of them, by kernels so far */
  uint32_t pad;
  uint64_t written;   /* entries of the ring */
  uint64_t lost;      /* steps that found the ring full */
  uint64_t capacity;  /* stamps of a step, at most */
  uint64_t entries;   /* the ring's */
  uint64_t every;     /* of so many steps the last leaves no stamps: what they cost is the difference */
  uint64_t pad2;
};

/* Launches have a multiple of 32 bytes of dynamic shared memory, and this much more to ask for a stamp (driver/launch.rs). */
constexpr uint32_t STAMP_SIGN_BYTES = 16;

/* Set while launches bear the sign; each unit has one of its own. */
extern "C" __constant__ Stamps *tg_stamping = nullptr;

__device__ inline uint64_t stamp_clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/* A stamp in the making, in the first thread of a launch that bears the sign; `at` is 0 where there is none. */
struct Stamping {
  uint64_t at, waits_ns;
};

/* The wait begins. */
__device__ inline Stamping stamp_wait() {
  Stamping stamp;
  stamp.at = stamp.waits_ns = 0;
  uint32_t shared_bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(shared_bytes));
  if (!(shared_bytes & STAMP_SIGN_BYTES)) return stamp;
  if ((threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z) != 0) return stamp;
  uint64_t stamps, places;
  uint32_t index;
  stamp.waits_ns = stamp_clock_ns();
  asm volatile("ld.const.u64 %0, [%1];" : "=l"(stamps) : "l"(__cvta_generic_to_constant(&tg_stamping)));
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(places) : "l"(stamps + offsetof(Stamps, places)));
  if (!places) return stamp;
  /* Not add, of which the compiler makes one for a whole warp: there is a single thread here. */
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(index) : "l"(stamps + offsetof(Stamps, taken)));
  if (index < places) stamp.at = stamps + sizeof(Stamps) + index * sizeof(Stamp);
  return stamp;
}

/* The wait is over. */
__device__ inline void stamp_ready(const Stamping &stamp) {
  if (!stamp.at) return;
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(stamp.at), "l"(stamp.waits_ns), "l"(stamp_clock_ns()) : "memory");
}

#endif
