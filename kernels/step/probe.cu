/* probe.cu: a step without a model, in as many kernels as asked for, to try a machine and ways of launching with. It touches what a
 * model's step does: rows, sequences, slots, the page table and memory behind it.
 *
 *   cells[page(q), q]  = mix(token(q), q)                   every row, as KV is written
 *   values[s]          = sum over positions q <= p of cells[page(q), q]    p the sampled row's position: as KV is read
 *   values[s]          = mix(values[s] + layer)             once a layer
 *   token              = values[s] mod V
 *
 * Integers only, so any order of additions gives the same bits. tests/common/probe.rs says the same in Rust.
 * Launch: block = PROBE_THREADS; grids stand beside the kernels. R rows of the bucket, S its most sampled rows.
 */
#include "common/base.cuh"
#include "common/mix.cuh"
#include "common/pdl.cuh"

constexpr uint32_t PROBE_THREADS = 128;

/* Where a position's cell lies: as the page table has it. */
__device__ inline uint64_t cell(const tg_state *state, uint32_t slot, uint32_t position) {
  uint32_t page_tokens = state->config.page_tokens;
  const uint32_t *pages = table<uint32_t>(state, state->page_table) + (uint64_t)slot * state->max_pages;
  return (uint64_t)pages[position / page_tokens] * page_tokens + position % page_tokens;
}

/* cells[pages, page_tokens]. Grid: R / PROBE_THREADS, rounded up. */
extern "C" __global__ void tg_probe_write(uint32_t *cells, const tg_state *state, const tg_step *step) {
  begin_kernel();
  uint32_t r = blockIdx.x * PROBE_THREADS + threadIdx.x;
  if (r >= step->rows) return;
  const tg_row *at = table<tg_row>(state, step->row_table) + r;
  const tg_row row = *at;
  uint32_t token = row_token(state, step, at);
  cells[cell(state, row.slot, row.position)] = mix(token * 0x9e3779b9u + row.position);
}

/* values[S] from cells. Grid: S, a block for each sampled row. */
extern "C" __global__ void tg_probe_read(uint32_t *values, const uint32_t *cells, const tg_state *state,
                                         const tg_step *step) {
  __shared__ uint32_t sum;
  begin_kernel();
  if (blockIdx.x >= step->sample_rows) return;
  uint32_t r = table<uint32_t>(state, step->sample_table)[blockIdx.x];
  tg_row row = table<tg_row>(state, step->row_table)[r];
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  uint32_t part = 0;
  for (uint32_t q = threadIdx.x; q <= row.position; q += PROBE_THREADS) part += cells[cell(state, row.slot, q)];
  atomicAdd(&sum, part);
  __syncthreads();
  if (threadIdx.x == 0) values[blockIdx.x] = sum;
}

/* to[S] from from[S]. The order of blocks is turned round in every other layer, so that a block never reads what it
 * wrote itself. Grid: S / PROBE_THREADS, rounded up. */
extern "C" __global__ void tg_probe_mix(uint32_t *to, const uint32_t *from, const tg_step *step, uint32_t layer) {
  begin_kernel();
  uint32_t block = layer % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  uint32_t s = block * PROBE_THREADS + threadIdx.x;
  if (s < step->sample_rows) to[s] = mix(from[s] + layer);
}

/* The step's samples from values[S]; V is `vocabulary`. Logprobs where asked for are any numbers.
 * Grid: S / PROBE_THREADS, rounded up. */
extern "C" __global__ void tg_probe_sample(const uint32_t *values, tg_state *state, const tg_step *step,
                                           uint32_t vocabulary) {
  begin_kernel();
  uint32_t s = blockIdx.x * PROBE_THREADS + threadIdx.x;
  if (s >= step->sample_rows) return;
  uint32_t row = table<uint32_t>(state, step->sample_table)[s];
  uint32_t slot = table<tg_row>(state, step->row_table)[row].slot;
  uint32_t logprobs = table<tg_slot>(state, state->slot_table)[slot].sampling.logprobs;
  tg_sampled *sampled = (tg_sampled *)((char *)state + step->sampled_table) + s;
  sampled->token = (int32_t)(values[s] % vocabulary);
  if (logprobs == TG_LOGPROBS_NONE) return;
  sampled->logprob = values[s] & 0x3fffffffu; /* finite */
  for (uint32_t i = 0; i < logprobs; i++) {
    sampled->top_ids[i] = (int32_t)((values[s] + i) % vocabulary);
    sampled->top_logprobs[i] = mix(values[s] + i) & 0x3fffffffu;
  }
}

/* What `count` words of a descriptor add to its fingerprint: words `field` and on of entry `index`. */
__device__ inline uint64_t words(uint64_t index, uint32_t field, const void *of, uint32_t count = 1) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += mix64(static_cast<const uint32_t *>(of)[i] + mix64(index << 8 | (field + i)));
  return sum;
}

/* log[step % entries] = {step, fingerprint of its descriptor}: what kernels saw, to be compared with what the core
 * composes in a replay. Grid: 1. */
extern "C" __global__ void tg_probe_log(ulonglong2 *log, uint32_t entries, const tg_state *state, const tg_step *step) {
  __shared__ unsigned long long sum;
  begin_kernel();
  if (threadIdx.x == 0) sum = mix64(step->number) + mix64(~step->start_ns);
  __syncthreads();
  uint64_t part = 0;
  if (threadIdx.x < 7) part += words(threadIdx.x, 0, &step->kind + threadIdx.x); /* up to sample_rows */
  for (uint32_t i = threadIdx.x; i < step->rows; i += PROBE_THREADS) {
    const tg_row *row = table<tg_row>(state, step->row_table) + i;
    const uint32_t at = (uint32_t)cell(state, row->slot, row->position);
    part += words(i, 1, row, 4) + words(i, 5, &at);
  }
  for (uint32_t i = threadIdx.x; i < step->sequences; i += PROBE_THREADS) {
    const tg_sequence *s = table<tg_sequence>(state, step->sequence_table) + i;
    part += words(i, 6, s, 6) + words(i, 12, table<uint32_t>(state, step->slot_sequence_table) + s->slot);
  }
  for (uint32_t i = threadIdx.x; i < step->sample_rows; i += PROBE_THREADS)
    part += words(i, 13, table<uint32_t>(state, step->sample_table) + i);
  atomicAdd(&sum, part);
  __syncthreads();
  if (threadIdx.x == 0) log[step->number % entries] = make_ulonglong2(step->number, sum);
}

/* Waits until wait_ns after `start`; returns when that was. */
__device__ inline uint64_t stand_still(uint64_t start, uint64_t wait_ns) {
  uint64_t now = start;
  while (now - start < wait_ns) now = stamp_clock_ns();
  return now;
}

/* orders[3] (pinned): in step orders[0], stand still for orders[1] ns, then, where orders[2] is not 0, write where
 * nothing is. For trying what the host makes of it. Grid: 1. */
extern "C" __global__ void tg_probe_disturb(const uint64_t *orders, const tg_step *step) {
  begin_kernel();
  if (threadIdx.x != 0 || step->number != orders[0]) return;
  const uint64_t wait_ns = orders[1], now = stand_still(stamp_clock_ns(), wait_ns);
  if (orders[2] != 0) *(volatile uint64_t *)8 = now;
}

/* at[2]: when it began to stand still, and when it had done so for wait_ns. For timing what times, and for
 * holding SMs: all threads stay. Grid, block: any; of several blocks each notes its own over the others'. */
extern "C" __global__ void tg_probe_spin(uint64_t *at, uint64_t wait_ns) {
  begin_kernel();
  const uint64_t start = stamp_clock_ns(), now = stand_still(start, wait_ns);
  if (threadIdx.x != 0) return;
  at[0] = start;
  at[1] = now;
}
