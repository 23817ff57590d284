/* stamps.cu: the last kernel of a step that is timed kernel by kernel: it hands the step's stamps to the host.
 *
 * The ring is in pinned memory. Its head is the entries written and the steps lost (ours, released), and on the next
 * cache line the entries read (the host's, acquired); then `entries` of them, each an Entry and Stamp[capacity]. A
 * step that finds the ring full is counted as lost. Bound: the bus, 16 bytes a kernel. */
#include "abi.h"
#include "common/pdl.cuh"
#include "sched/platform.h"

constexpr uint32_t CLOSE_THREADS = 256;
constexpr uint64_t LOST = 1, READ = 128 / sizeof(uint64_t), HEAD_BYTES = 256;

/* A step; StampedStep of src/backend/cuda/device/stamps.rs. */
struct Entry {
  uint64_t step;
  uint64_t end_ns;      /* when its last kernel had ended */
  uint32_t kind, bucket_rows, rows;
  uint32_t stamped;     /* 0: it was one of those that leave no stamps */
  uint64_t taken;       /* kernels that took a place; what is past `capacity` is not here */
  uint64_t pad;
};

/* No kernel may start beside this one, which takes the places back: it lets none.
 * Launch: grid = 1, block = CLOSE_THREADS. */
extern "C" __global__ void __launch_bounds__(CLOSE_THREADS)
    tg_stamps_close(Stamps *stamps, uint64_t *ring, const tg_step *step) {
  __shared__ uint64_t end_ns;
  await_earlier_kernels();
  if (threadIdx.x == 0) end_ns = stamp_clock_ns();
  const uint64_t written = stamps->written, taken = stamps->taken, capacity = stamps->capacity;
  const bool full = written - tg_acquire(ring + READ) >= stamps->entries;
  const uint64_t entry_bytes = sizeof(Entry) + capacity * sizeof(Stamp);
  Entry *entry = reinterpret_cast<Entry *>(reinterpret_cast<char *>(ring) + HEAD_BYTES + written % stamps->entries * entry_bytes);
  if (!full) {
    const ulonglong2 *from = reinterpret_cast<const ulonglong2 *>(stamps + 1);
    ulonglong2 *to = reinterpret_cast<ulonglong2 *>(entry + 1);
    for (uint64_t i = threadIdx.x; i < taken && i < capacity; i += CLOSE_THREADS) to[i] = from[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t number = step->number;
  if (full) {
    tg_store(ring + LOST, ++stamps->lost);
  } else {
    *entry = {number, end_ns, step->kind, step->bucket_rows, step->rows, stamps->places != 0, taken, 0};
    stamps->written = written + 1;
    tg_release(ring, written + 1);
  }
  stamps->taken = 0;
  stamps->places = (number + 1) % stamps->every == stamps->every - 1 ? 0 : capacity;
}
