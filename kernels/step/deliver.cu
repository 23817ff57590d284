/* deliver.cu: logits on their way to the host, tile by tile, through a ring of two tiles in pinned memory.
 *
 * The ring's head is the tiles posted (ours, released) with the lines of each tile beside it, and on the next cache line the tiles taken
 * (the host's, acquired); then two tiles, each of `lines` LogitsLine and, on the next 256 bytes, f32 [lines, V]. `counter`, in device
 * memory, is our own copy of the tiles posted. For each part of a step's logits tg_logits_wait waits for a free tile, tg_logits_copy
 * fills it, and tg_logits_post hands it over, and after the last one waits until the host has taken all: a request ends only after its
 * logits are where they belong. A wait has no limit: the host, which its disk may hold up, takes tiles whatever becomes of them.
 *
 * Bound: the bus, 4V bytes a row. `bench score --logits all`, 1,024 prompts of 32 on an H200: 8.6 GB in 343 ms, steps included, 25 GB/s.
 */
#include "common/base.cuh"
#include "common/pdl.cuh"
#include "sched/platform.h"
#include "step/args.h"

constexpr uint64_t TILES = 2;
constexpr uint64_t TAKEN = 128 / sizeof(uint64_t), HEAD_BYTES = 256;

/* What the logits of one line are; LogitsLine of src/backend/cuda/engine/delivery.rs. */
struct LogitsLine {
  uint64_t request;
  uint32_t position;
  uint32_t wanted;  /* 0: the request did not ask for this one, and its logits are not there */
};

__device__ inline uint64_t line_bytes(uint32_t lines) { return (lines * sizeof(LogitsLine) + 255) / 256 * 256; }

/* Launch: one thread. */
extern "C" __global__ void tg_logits_wait(const uint64_t *ring, const uint64_t *counter) {
  begin_kernel();
  while (*counter - tg_acquire(ring + TAKEN) >= TILES) __nanosleep(1000);
}

/* Line i is sampled row i, or with `tile_rows` row first + i of the step.
 * Launch: grid = (lines of the part, pieces of V), block = TG_LOGITS_COPY_THREADS. */
extern "C" __global__ void __launch_bounds__(TG_LOGITS_COPY_THREADS)
    tg_logits_copy(const tg_logits_copy_args a) {
  begin_kernel();
  const tg_state *state = a.state;
  const tg_step *step = a.step;
  const uint32_t vocabulary = a.vocabulary, lines = a.lines, first = a.first, tile_rows = a.tile_rows;
  const uint32_t i = blockIdx.x;
  const uint64_t tile_bytes = line_bytes(lines) + ((uint64_t)lines * vocabulary * sizeof(float) + 255) / 256 * 256;
  char *tile = reinterpret_cast<char *>(a.ring) + HEAD_BYTES + *a.counter % TILES * tile_bytes;
  LogitsLine line = {0, 0, 0};
  if (tile_rows > 0 ? first + i < step->rows : i < step->sample_rows) {
    const uint32_t r = tile_rows > 0 ? first + i : table<uint32_t>(state, step->sample_table)[i];
    const tg_row row = table<tg_row>(state, step->row_table)[r];
    const tg_sequence sequence = table<tg_sequence>(state, step->sequence_table)[row.sequence];
    const tg_slot *slot = table<tg_slot>(state, state->slot_table) + row.slot;
    const bool last = sequence.sample != TG_NONE && r == sequence.first_row + sequence.rows - 1;
    line.request = slot->request;
    line.position = row.position;
    line.wanted = (slot->flags & TG_REQUEST_LOGITS_ALL) || (last && (slot->flags & TG_REQUEST_LOGITS_LAST));
  }
  if (blockIdx.y == 0 && threadIdx.x == 0) reinterpret_cast<LogitsLine *>(tile)[i] = line;
  if (!line.wanted) return;
  float *to = reinterpret_cast<float *>(tile + line_bytes(lines)) + (uint64_t)i * vocabulary;
  const float *from = a.logits + (uint64_t)i * vocabulary;
  const uint32_t pitch = gridDim.y * TG_LOGITS_COPY_THREADS;
  for (uint32_t v = blockIdx.y * TG_LOGITS_COPY_THREADS + threadIdx.x; v < vocabulary; v += pitch) to[v] = from[v];
}

/* `part_lines`: the grid of tg_logits_copy; the host looks at no more lines. Launch: one thread. */
extern "C" __global__ void tg_logits_post(uint64_t *ring, uint64_t *counter, uint32_t part_lines, uint32_t last) {
  begin_kernel();
  const uint64_t posted = *counter + 1;
  *counter = posted;
  tg_store(ring + 1 + (posted - 1) % TILES, part_lines);
  tg_release(ring, posted);
  while (last && tg_acquire(ring + TAKEN) != posted) __nanosleep(1000);
}
