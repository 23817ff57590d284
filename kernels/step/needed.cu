/* needed.cu: the rows that the layers behind a model's last attention read, as a step of their own (src/plan/needed.rs).
 *
 *   tg_needed_rows   lists the last rows of each of the step's sequences, in the order of the step: a tg_step beside the step's
 *                    own, whose sequences are the same with fewer rows
 *   tg_gather_rows   copies these rows of the residual stream, and their queries
 *
 * Kernels read a step's descriptor before their grid dependency wait (common/pdl.cuh). So tg_gather_rows, or what else comes next, is
 * launched without overlap: then whatever starts later finds the list.
 *
 * Bound: latency; a gathered row moves 8 H and 2 heads D sizeof(T) bytes. Measured on an H200, of one sequence: 3.0 to 3.5 us the list, 1.5 to
 * 2.6 us the rows, once a step.
 *
 * Launch: tg_needed_rows one block of TG_NEEDED_THREADS, one thread a sequence. tg_gather_rows grid = needed rows of the bucket,
 * block = TG_GATHER_THREADS. */
#include "common/base.cuh"
#include "common/pdl.cuh"
#include "step/args.h"

static_assert(TG_NEEDED_THREADS == TG_MAX_SLOTS && TG_NEEDED_THREADS / WARP <= WARP, "a thread has a sequence, and a lane a warp's rows");

extern "C" __global__ void __launch_bounds__(TG_NEEDED_THREADS) tg_needed_rows(const __grid_constant__ tg_needed_args a) {
  __shared__ uint32_t warp_rows[TG_NEEDED_THREADS / WARP];
  begin_kernel();
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const bool there = threadIdx.x < a.step->sequences;
  tg_sequence sequence{};
  if (there) sequence = table<tg_sequence>(a.state, a.step->sequence_table)[threadIdx.x];
  const uint32_t count = min(sequence.rows, a.last_rows), skipped = sequence.rows - count;
  const uint32_t until = sum_up_to_lane(count);
  if (lane == WARP - 1) warp_rows[warp] = until;
  __syncthreads();
  const uint32_t before = sum_up_to_lane(warp_rows[lane]) - warp_rows[lane];
  const uint32_t first = __shfl_sync(0xffffffffu, before, warp) + until - count;
  if (there) {
    const tg_row *rows = table<tg_row>(a.state, a.step->row_table);
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t from = sequence.first_row + skipped + i;
      a.rows[first + i] = rows[from];
      a.from[first + i] = from;
    }
    if (sequence.sample != TG_NONE) a.samples[sequence.sample] = first + count - 1;
    sequence.first_row = first, sequence.rows = count, sequence.first_position += skipped;
    a.sequences[threadIdx.x] = sequence;
  }
  if (threadIdx.x != TG_NEEDED_THREADS - 1) return;
  auto offset = [&](const void *to) { return uint64_t(static_cast<const char *>(to) - reinterpret_cast<const char *>(a.state)); };
  tg_step needed = *a.step;
  needed.rows = first + count;
  needed.row_table = offset(a.rows), needed.sequence_table = offset(a.sequences), needed.sample_table = offset(a.samples);
  *a.needed = needed;
}

extern "C" __global__ void __launch_bounds__(TG_GATHER_THREADS) tg_gather_rows(const __grid_constant__ tg_gather_args a) {
  begin_kernel();
  const uint32_t r = blockIdx.x;
  if (r >= a.needed->rows) return;
  const uint32_t from = a.from ? a.from[r] : r;
  auto copy = [&](void *to, const void *all, uint32_t bytes, uint32_t pitch) {
    const uint4 *source = reinterpret_cast<const uint4 *>(static_cast<const char *>(all) + (size_t)from * pitch);
    uint4 *row = reinterpret_cast<uint4 *>(static_cast<char *>(to) + (size_t)r * pitch);
    for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint4); i += TG_GATHER_THREADS) row[i] = source[i];
  };
  copy(a.h_to, a.h, a.h_bytes, a.h_bytes);
  copy(a.qkv_to, a.qkv, a.q_bytes, a.qkv_bytes);
}
