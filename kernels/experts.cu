/* experts.cu: before and after the experts' matrix products.
 *
 * Token sort: the pairs (row, one of its experts) in order of expert, rows ascending within one. A pair's
 * number is row K + index; its rank in that order is its place.
 *
 *   rows[place] = row          place[pair] = place
 *   tiles[...]                 each expert's places in runs of at most tile_rows, experts ascending
 *   tile_count                 how many
 *
 * Combine: h[r,:] += sum over i of weights[r,i] y[place[r K + i],:], i and with it the expert ascending.
 *
 * Bound: the sort by latency (one block, two passes over 4RK bytes in L2), the combine by memory
 * (4H (K + 2) bytes a row).
 */
#include "common.cuh"
#include "experts.cuh"
#include "pdl.cuh"

constexpr int SORT_THREADS = 1024;
constexpr int SORT_WARPS = SORT_THREADS / WARP;

/* Each warp counts, then places, a range of pairs of its own; a warp's places of an expert come after those of
 * the warps before it. Launch: one block of SORT_THREADS. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    tg_sort_tokens(ExpertTile *tiles, uint32_t *tile_count, uint32_t *rows, uint32_t *place, const uint32_t *experts,
                   const tg_step *step, uint32_t expert_count, uint32_t k, uint32_t tile_rows) {
  __shared__ uint32_t next[SORT_WARPS][MAX_EXPERTS];  /* counts, then the next place of this warp and expert */
  __shared__ uint32_t first[MAX_EXPERTS + 1], first_tile[MAX_EXPERTS + 1];
  begin_kernel();
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t pairs = step->rows * k;
  const uint32_t share = (pairs + SORT_THREADS - 1) / SORT_THREADS * WARP;  /* of a warp */
  const uint32_t from = min(warp * share, pairs), to = min(from + share, pairs);

  for (uint32_t e = lane; e < MAX_EXPERTS; e += WARP) next[warp][e] = 0;
  __syncwarp();
  for (uint32_t i = from + lane; i < to; i += WARP) atomicAdd(&next[warp][experts[i]], 1u);
  __syncthreads();

  /* a thread an expert: its total, and each warp's offset within it */
  if (threadIdx.x < MAX_EXPERTS) {
    uint32_t total = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
      uint32_t count = next[w][threadIdx.x];
      next[w][threadIdx.x] = total;
      total += count;
    }
    first[threadIdx.x + 1] = total;
    first_tile[threadIdx.x + 1] = (total + tile_rows - 1) / tile_rows;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first[0] = first_tile[0] = 0;
    for (uint32_t e = 1; e <= expert_count; e++) {
      first[e] += first[e - 1];
      first_tile[e] += first_tile[e - 1];
    }
    *tile_count = first_tile[expert_count];
  }
  __syncthreads();
  if (threadIdx.x < expert_count) {
    uint32_t e = threadIdx.x, tile = first_tile[e];
    for (uint32_t at = first[e]; at < first[e + 1]; at += tile_rows)
      tiles[tile++] = ExpertTile{e, at, min(tile_rows, first[e + 1] - at), 0};
  }

  for (uint32_t base = from; base < to; base += WARP) {
    uint32_t pair = base + lane;
    bool mine = pair < to;
    uint32_t expert = mine ? experts[pair] : MAX_EXPERTS;
    uint32_t same = __match_any_sync(0xffffffffu, expert);
    if (mine) {
      uint32_t at = first[expert] + next[warp][expert] + __popc(same & ((1u << lane) - 1));
      rows[at] = pair / k;
      place[pair] = at;
    }
    __syncwarp();
    if (mine && lane == __ffs(same) - 1) next[warp][expert] += __popc(same);
    __syncwarp();
  }
}

constexpr int COMBINE_THREADS = 256;

/* h[R,H], y[R K,H] by place, weights[R,K]. Launch: grid = rows of the bucket. */
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    tg_combine_experts(float *h, const float *y, const float *weights, const uint32_t *place, const tg_step *step,
                       uint32_t hidden, uint32_t k) {
  begin_kernel();
  const uint32_t r = blockIdx.x;
  if (r >= step->rows) return;
  for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * COMBINE_THREADS) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t i = 0; i < k; i++) {
      float w = weights[(size_t)r * k + i];
      float4 v = load4(y + (size_t)place[(size_t)r * k + i] * hidden + c);
      sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
    }
    float4 old = load4(h + (size_t)r * hidden + c);
    store4(h + (size_t)r * hidden + c, make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w));
  }
}
