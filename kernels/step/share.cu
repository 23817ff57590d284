/* share.cu: what sequences that start from a shared prefix find, and what those that compute one leave (sched/prefix.h): a snapshot of
 * each conv layer's state, which lies behind the slots', and of each attention layer the one page that the prefix does not fill.
 *
 * It runs before a step's first layer for sequences that start, and behind its last for those that end at a border: their slots have the
 * state after the step then, also in layers that compute their last rows alone. Nobody starts from a prefix in the step that ends it.
 *
 * Bound: latency; memory for many sequences, twice 147 KB and a page for each of LFM2-8B-A1B in bf16. Nothing is looked at but the step's
 * `shares` where that is 0.
 *
 * Launch: grid = (layers, sequences at a time), block = TG_SHARE_THREADS. A block has a layer of every gridDim.y-th sequence. */
#include "common/base.cuh"
#include "common/pdl.cuh"
#include "step/args.h"

/* All threads copy `bytes` bytes, a multiple of 16. */
__device__ inline void copy_place(char *to, const char *from, uint64_t bytes) {
  constexpr uint32_t AT_ONCE = 4;  /* words that a thread loads before it stores any */
  const uint32_t words = bytes / sizeof(uint4);
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < words; first += AT_ONCE * TG_SHARE_THREADS) {
    uint4 word[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++)
      if (first + i * TG_SHARE_THREADS < words) word[i] = reinterpret_cast<const uint4 *>(from)[first + i * TG_SHARE_THREADS];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++)
      if (first + i * TG_SHARE_THREADS < words) reinterpret_cast<uint4 *>(to)[first + i * TG_SHARE_THREADS] = word[i];
  }
}

extern "C" __global__ void __launch_bounds__(TG_SHARE_THREADS) tg_share_prefixes(const __grid_constant__ tg_share_args a) {
  begin_kernel();
  if (a.step->shares == 0) return;
  char *kept = a.kept[blockIdx.x], *values = a.values[blockIdx.x];
  const tg_state *state = a.state;
  const uint32_t sequences = a.step->sequences;
  for (uint32_t i = a.step->decode_rows + blockIdx.y; i < sequences; i += gridDim.y) {
    const tg_sequence sequence = table<tg_sequence>(state, a.step->sequence_table)[i];
    const uint32_t border = sequence.flags & TG_SEQUENCE_BORDER ? sequence.computes : TG_NONE;
    uint32_t of_prefix = a.ends ? border : sequence.from, of_slot = sequence.slot;
    if (of_prefix == TG_NONE) continue;
    of_prefix += state->config.slots;
    if (values) {
      const uint32_t position = sequence.first_position + (a.ends ? sequence.rows - 1 : 0);
      of_prefix = a.ends ? sequence.border_page : sequence.from_page;
      if (of_prefix == TG_NONE) continue;
      of_slot = table<uint32_t>(state, state->page_table)[(size_t)sequence.slot * state->max_pages + position / state->config.page_tokens];
    }
    const uint64_t bytes = values ? a.page_bytes : a.conv_bytes, to = a.ends ? of_prefix : of_slot, from = a.ends ? of_slot : of_prefix;
#pragma unroll 1
    for (char *all = kept; all; all = all == kept ? values : nullptr) copy_place(all + to * bytes, all + from * bytes, bytes);
  }
}
