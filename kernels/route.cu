/* route.cu: norm, router and token sort in one kernel, for steps of up to 256 rows: what router.cu and experts.cu do in
 * two, whose formulas these are.
 *
 *   x[r] = rmsnorm(h[r])                                             rounded to the operand type
 *   s = sigmoid(gate rmsnorm(h[r])), of the row as it is; experts[r,:] and weights[r,:] from s; then the sort's arrays
 *
 * A cluster has all experts, a warp each, and some rows. A row's scores are linear in h but for its one scale, so a warp
 * keeps gate times norm weight in registers, before the wait, and passes over h once, for scores and scale together. The
 * first block of a cluster is sent all scores and chooses, while the others store x. What a row chose goes to the block
 * that sorts as one word, which is its own sign that it is there: no fence, which would wait for x too. That block is the
 * last of the first cluster. It waits for blocks of this kernel that may not have begun, but these wait for nothing except
 * the kernels before this one.
 *
 * Bound: latency. h comes from L2, the gate too, before it is needed.
 *
 * Launch: block = ROUTE_THREADS; clusters of E / ROUTE_WARPS blocks, rounded up to a power of two, rows of the bucket /
 * rows_each of them. A block of tg_route_few_* has an SM to itself and all of a row under way at once; two of
 * tg_route_many_* fit an SM, each with half a row under way, for more rows than clusters of the former fit the GPU. Both
 * give the same bits. E at most ROUTE_EXPERTS, H at most ROUTE_HIDDEN, rows_each at most ROUTE_ROWS, rows of the bucket at
 * most ROUTE_THREADS. Needs sm_90a.
 */
#include "common.cuh"
#include "experts.cuh"
#include "norm.cuh"
#include "pdl.cuh"
#include "warpgroup.cuh"

constexpr int ROUTE_THREADS = 256, ROUTE_WARPS = ROUTE_THREADS / WARP;
constexpr uint32_t ROUTE_EXPERTS = 32, ROUTE_HIDDEN = 2048, ROUTE_ROWS = 8;
[[maybe_unused]] constexpr uint32_t ROUTE_FOURS = ROUTE_HIDDEN / (4 * WARP);  /* of a row, in a lane */
static_assert(ROUTE_EXPERTS == WARP, "a lane an expert");

/* Where the sort's result goes, and chosen[R]: bits of the experts that a row chose, for who sorts; 0 between launches. */
struct RouteSort {
  ExpertTile *tiles;
  uint32_t *tile_count, *rows, *place, *chosen;
};

struct RouteScratch {
  float scores[ROUTE_ROWS][ROUTE_EXPERTS];
  uint32_t next[ROUTE_WARPS][ROUTE_EXPERTS]; /* counts, then where this warp's places of an expert begin */
};

/* One warp chooses for one row, as choose_experts does, a lane an expert: bits of the chosen, and in the lane of each its
 * weight. */
__device__ inline uint32_t choose_of_32(float score, float bias, uint32_t expert_count, Weighing weighing, float &weight) {
  const uint32_t lane = threadIdx.x % WARP, key = sortable(score + bias);
  bool left = lane < expert_count;
#pragma unroll 1
  for (uint32_t i = 0; i < weighing.k; i++) {  /* the best that is left, of several the lowest */
    const uint32_t best = __reduce_max_sync(0xffffffffu, left ? key : 0);
    if (lane == __ffs(__ballot_sync(0xffffffffu, left && key == best)) - 1) left = false;
  }
  const uint32_t chosen = __ballot_sync(0xffffffffu, lane < expert_count && !left);
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t those = chosen; those; those &= those - 1) sum += __shfl_sync(0xffffffffu, score, __ffs(those) - 1);
  weight = (weighing.normalize ? score / (sum + 1e-6f) : score) * weighing.scaling;
  return chosen;
}

/* All threads: the token sort (experts.cu), of rows whose experts are the bits of `chosen`, a thread a row. */
__device__ inline void sort_chosen(RouteScratch &scratch, const RouteSort &sort, uint32_t chosen, uint32_t k, uint32_t tile_rows) {
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  uint32_t rows = 0;  /* of this warp's, those that chose expert `lane` */
#pragma unroll
  for (uint32_t e = 0; e < ROUTE_EXPERTS; e++) {
    const uint32_t those = __ballot_sync(0xffffffffu, chosen >> e & 1);
    if (lane == e) rows = those;
  }
  scratch.next[warp][lane] = __popc(rows);
  __syncthreads();
  if (warp == 0) {  /* a lane an expert */
    uint32_t total = 0;
#pragma unroll
    for (uint32_t w = 0; w < ROUTE_WARPS; w++) total += scratch.next[w][lane];
    uint32_t places = total, tile = (total + tile_rows - 1) / tile_rows;
    const uint32_t own_tiles = tile;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
      const uint32_t places_below = __shfl_up_sync(0xffffffffu, places, offset);
      const uint32_t tiles_below = __shfl_up_sync(0xffffffffu, tile, offset);
      if (lane >= offset) places += places_below, tile += tiles_below;
    }
    if (lane < EXPERT_COUNTS - 1) sort.tile_count[1 + lane] = 0;
    if (lane == WARP - 1) *sort.tile_count = tile;
    places -= total, tile -= own_tiles;
    uint32_t next = places;
#pragma unroll
    for (uint32_t w = 0; w < ROUTE_WARPS; w++) {
      const uint32_t count = scratch.next[w][lane];
      scratch.next[w][lane] = next;
      next += count;
    }
    for (uint32_t at = places; at < next; at += tile_rows)
      sort.tiles[tile++] = ExpertTile{lane, at, min(tile_rows, next - at), 0};
  }
  __syncthreads();
  const uint32_t first = scratch.next[warp][lane];
  uint32_t left = chosen, pair = threadIdx.x * k;
#pragma unroll 1
  for (uint32_t i = 0; i < k; i++, pair++, left &= left - 1) {
    const uint32_t expert = left ? __ffs(left) - 1 : 0;
    const uint32_t at = __shfl_sync(0xffffffffu, first, expert) +
                        __popc(__shfl_sync(0xffffffffu, rows, expert) & ((1u << lane) - 1));
    if (!left) continue;
    sort.rows[at] = threadIdx.x;
    sort.place[pair] = at;
  }
}

/* experts[R,K], weights[R,K], x[R,H], h[R,H], norm_weight[H], gate[E,H], bias[E] or null. A lane asks for AT_ONCE of its
 * ROUTE_FOURS of a row at a time. */
template <typename X, uint32_t AT_ONCE>
__device__ inline void route_step(RouteSort sort, uint32_t *experts, float *weights, X *x, const float *h,
                                  const float *norm_weight, const float *gate, const float *bias, const tg_step *step,
                                  uint32_t hidden, uint32_t expert_count, Weighing weighing, uint32_t tile_rows,
                                  uint32_t rows_each, float eps) {
  __shared__ RouteScratch scratch;
  __shared__ uint64_t scored;  /* in the first block of a cluster: all scores of its rows are there */
  let_next_kernel_start();
  const uint32_t rank = cluster_rank(), blocks = cluster_blocks(), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t mine = rank * ROUTE_WARPS + warp, first = blockIdx.x / blocks * rows_each, all = __ldcg(&step->rows);
  const uint32_t rows = all > first ? min(all - first, rows_each) : 0;
  if (blocks > 1 && threadIdx.x == 0) {
    barrier_init(&scored, 1);
    barriers_ready();
    barrier_arrive_expecting(&scored, rows * expert_count * sizeof(float));
  }
  __syncwarp();
  if (blocks > 1) cluster_arrive();
  float4 weighed[ROUTE_FOURS];
#pragma unroll
  for (uint32_t i = 0; i < ROUTE_FOURS; i++) {
    const uint32_t c = 4 * (i * WARP + lane);
    weighed[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (c >= hidden || mine >= expert_count) continue;
    const float4 g = load4(gate + (size_t)mine * hidden + c), n = load4(norm_weight + c);
    weighed[i] = make_float4(g.x * n.x, g.y * n.y, g.z * n.z, g.w * n.w);
  }
  const float of_bias = bias && lane < expert_count ? bias[lane] : 0.0f;
  /* x is for all blocks but the first, which has more to do, if there are others */
  const uint32_t storing = blocks - (blocks > 1), share = mine - (blocks > 1 ? ROUTE_WARPS : 0);
  const bool stores = rank > 0 || blocks == 1;
  wait_for_earlier_kernels();
  if (blocks > 1) cluster_wait();  /* all blocks have their barriers */
#pragma unroll 1
  for (uint32_t r = 0; r < rows; r++) {
    const float *from = h + (size_t)(first + r) * hidden;
    float score = 0.0f, squares = 0.0f;
#pragma unroll
    for (uint32_t base = 0; base < ROUTE_FOURS; base += AT_ONCE) {
      float4 v[AT_ONCE];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        const uint32_t c = 4 * ((base + i) * WARP + lane);
        v[i] = c < hidden ? load4(from + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        const float4 w = weighed[base + i];
        score += fmaf(v[i].w, w.w, fmaf(v[i].z, w.z, fmaf(v[i].y, w.y, v[i].x * w.x)));
        squares = add_squares(squares, v[i]);
      }
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
      score += __shfl_xor_sync(0xffffffffu, score, offset);
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    const float scale = 1.0f / sqrtf(squares / hidden + eps);
    if (lane == 0 && mine < expert_count)
      store_to_block(&scratch.scores[r][mine], 0, 1.0f / (1.0f + expf(-(scale * score))), &scored, blocks);
    if (!stores) continue;
    /* a row's columns are shared among the warps that store them */
    for (uint32_t c = 4 * (share * WARP + lane); c < hidden; c += 4 * WARP * ROUTE_WARPS * storing)
      store4(x + (size_t)(first + r) * hidden + c, normed(load4(from + c), scale, load4(norm_weight + c)));
  }
  if (rank == 0) {
    if (blocks > 1)
      barrier_wait_cluster(&scored, 0);
    else
      __syncthreads();
    if (warp < rows) {
      float weight;
      const uint32_t chosen =
          choose_of_32(lane < expert_count ? scratch.scores[warp][lane] : 0.0f, of_bias, expert_count, weighing, weight);
      if (lane == 0) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(sort.chosen + first + warp), "r"(chosen) : "memory");
      if (chosen >> lane & 1) {
        const size_t at = (size_t)(first + warp) * weighing.k + __popc(chosen & ((1u << lane) - 1));
        experts[at] = lane;
        weights[at] = weight;
      }
    }
  }
  if (blockIdx.x != blocks - 1) return;
  uint32_t chosen = 0;
  if (threadIdx.x < all) {
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(chosen) : "l"(sort.chosen + threadIdx.x) : "memory");
    } while (chosen == 0);
    sort.chosen[threadIdx.x] = 0;
  }
  __syncwarp();
  sort_chosen(scratch, sort, chosen, weighing.k, tile_rows);
}

#define ROUTE(NAME, X, AT_ONCE, BLOCKS)                                                                               \
  extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, BLOCKS) tg_route_##NAME(                                \
      ExpertTile *tiles, uint32_t *tile_count, uint32_t *rows, uint32_t *place, uint32_t *chosen, uint32_t *experts,  \
      float *weights, X *x, const float *h, const float *norm_weight, const float *gate, const float *bias,           \
      const tg_step *step, uint32_t hidden, uint32_t expert_count, uint32_t k, uint32_t normalize, float scaling,     \
      uint32_t tile_rows, uint32_t rows_each, float eps) {                                                            \
    GMMA_BODY((route_step<X, AT_ONCE>(RouteSort{tiles, tile_count, rows, place, chosen}, experts, weights, x, h,      \
                                      norm_weight, gate, bias, step, hidden, expert_count,                            \
                                      Weighing{k, normalize != 0, scaling}, tile_rows, rows_each, eps));)             \
  }

ROUTE(few_bf16, __nv_bfloat16, ROUTE_FOURS, 1)
ROUTE(many_bf16, __nv_bfloat16, ROUTE_FOURS / 2, 2)
ROUTE(few_f16, __half, ROUTE_FOURS, 1)
ROUTE(many_f16, __half, ROUTE_FOURS / 2, 2)
ROUTE(few_f32, float, ROUTE_FOURS, 1)
ROUTE(many_f32, float, ROUTE_FOURS / 2, 2)
