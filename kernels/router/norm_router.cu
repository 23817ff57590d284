// build: sm_90a
/* norm_router.cu: norm and router in one kernel, for steps of up to 256 rows (norm_router_many.cu: for more), by the formulas of
 * router/router.cu. It also clears the counters of grouped/grouped.cuh, which sorts for itself.
 *
 *   block of the cluster   does                                               waits on                    signals
 *   each                   scores of ROUTE_EACH of 32 experts over one of     grid dependency             `summed` of the first block,
 *                          ROUTE_SHARES of the columns; stores its x                                      and for squares of all
 *   the first              also chooses the rows' experts                     `summed`, by expect_tx      none
 *
 * A thread has four columns. For 64 experts it goes over the rows twice, since it has registers for ROUTE_EACH alone. A row's scores are
 * linear in h but for its one scale, so a thread loads gate times norm weight of its columns to registers before the grid dependency wait,
 * and reads h for scores and scale together, ROUTE_AT_ONCE rows at once. Beside a block there is room on an SM for one of
 * grouped/grouped.cuh with 3 loaders, whose weights come meanwhile: ROUTE_REGISTERS, and little shared memory.
 *
 * Bound: latency. h comes from L2, the gate too, before it is needed. Measured on an H200 in bf16, H = 2048, E = 32, in the model: 4.8 us
 * at 16 rows, 4.4 at 64, 7.6 at 128, 9.5 at 256. By hand the second 32 of 64 experts take some 2 us more at 16 rows.
 *
 * Launch: block = ROUTE_THREADS; clusters of ROUTE_SHARES times E / ROUTE_EACH blocks, rounded up to a power of two, of more than 32
 * experts as of 32; rows of the bucket / rows_each of them. E at most 32, or 64, H at most ROUTE_HIDDEN, rows_each ROUTE_ROWS.
 */
#include "common/rmsnorm.cuh"
#include "common/pdl.cuh"
#include "common/wgmma.cuh"
#include "router/choice.cuh"

constexpr int ROUTE_THREADS = TG_NORM_THREADS, ROUTE_WARPS = ROUTE_THREADS / WARP;
constexpr int ROUTE_REGISTERS = 80;
[[maybe_unused]] constexpr uint32_t ROUTE_EACH = TG_ROUTE_EACH, ROUTE_SHARES = TG_ROUTE_SHARES, ROUTE_ROWS = TG_ROUTE_ROWS;
[[maybe_unused]] constexpr uint32_t ROUTE_HIDDEN = TG_ROUTE_HIDDEN, ROUTE_AT_ONCE = 4;
static_assert(ROUTE_WARPS == 8, "two loads of four");

/* Shared memory of a block, for WORDS times 32 experts. */
template <uint32_t WORDS>
struct alignas(16) RouteScratch {
  static constexpr uint32_t EXPERTS = WORDS * WARP;
  float parts[ROUTE_ROWS][ROUTE_EACH + 1][ROUTE_WARPS];  /* of this block's columns, by warp; the last are squares */
  /* of the cluster, by share of the columns: of all rows' squares in every block, of their experts in the first */
  float squares[ROUTE_ROWS][ROUTE_SHARES];
  float sums[ROUTE_ROWS][ROUTE_SHARES][EXPERTS];
  float bias[EXPERTS];  /* needed late, where the registers of what comes before have no room for it */
};

/* of[e], e < ROUTE_EACH, summed over the lanes of a warp: every lane has the sum of expert lane / 4. */
__device__ inline float sum_of_each(float (&of)[ROUTE_EACH]) {
  const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
  for (uint32_t half = ROUTE_EACH / 2; half > 0; half /= 2) {  /* a lane keeps one half of them, and gives the other away */
    const bool upper = lane & 4 * half;
#pragma unroll
    for (uint32_t e = 0; e < half; e++) {
      const float given = upper ? of[e] : of[e + half], kept = upper ? of[e + half] : of[e];
      of[e] = kept + __shfl_xor_sync(0xffffffffu, given, 4 * half);
    }
  }
  float sum = of[0];
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

/* Each warp's sums of all rows over its columns, which lie at `h`: of the rows times `weighed`, and of their squares. */
template <class Scratch>
__device__ inline void sum_columns(Scratch &scratch, const float4 (&weighed)[ROUTE_EACH], const float *h, uint32_t rows, uint32_t hidden,
                                   bool there) {
  const float4 zeros = {};
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
  for (uint32_t base = 0; base < rows; base += ROUTE_AT_ONCE) {
    float4 v[ROUTE_AT_ONCE];
#pragma unroll
    for (uint32_t a = 0; a < ROUTE_AT_ONCE; a++) v[a] = there && base + a < rows ? load4(h + (size_t)(base + a) * hidden) : zeros;
#pragma unroll
    for (uint32_t a = 0; a < ROUTE_AT_ONCE; a++) {
      if (base + a >= rows) break;
      float of[ROUTE_EACH], squares = add_squares(0.0f, v[a]);
#pragma unroll
      for (uint32_t e = 0; e < ROUTE_EACH; e++) {
        const float4 w = weighed[e];
        of[e] = fmaf(v[a].w, w.w, fmaf(v[a].z, w.z, fmaf(v[a].y, w.y, v[a].x * w.x)));
      }
      const float sum = sum_of_each(of);
      squares = sum_over_lanes(squares);
      if (lane % 4 == 0) scratch.parts[base + a][lane / 4][warp] = sum;
      if (lane == 0) scratch.parts[base + a][ROUTE_EACH][warp] = squares;
    }
  }
}

template <typename X, uint32_t WORDS>
__device__ inline void route_step(const tg_choosing_args &arrays, const tg_route_args &args, uint32_t hidden, uint32_t expert_count,
                                  Weighing weighing) {
  constexpr uint32_t EXPERTS = WORDS * WARP;
  static_assert(WORDS <= TG_ROUTE_WORDS, "twice ROUTE_EACH");
  static_assert(ROUTE_ROWS % ROUTE_WARPS == 0 && ROUTE_ROWS * ROUTE_EACH <= ROUTE_THREADS, "as many rows for each warp; a thread has a sum");
  __shared__ RouteScratch<WORDS> scratch;
  __shared__ uint64_t summed;  /* all sums of other blocks of the cluster are there */
  let_next_kernel_start();
  const uint32_t rows_each = args.rows_each;
  const float *norm_weight = arrays.norm_weight, *gate = arrays.gate, *bias = arrays.bias;
  const uint32_t rank = cluster_rank(), blocks = cluster_blocks(), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t groups = blocks / ROUTE_SHARES, group = rank / ROUTE_SHARES, share = rank % ROUTE_SHARES;
  const uint32_t first = blockIdx.x / blocks * rows_each, in_step = __ldcg(&arrays.step->rows);
  const uint32_t rows = rows_from(first, in_step, rows_each);
  const uint32_t column = 4 * (share * ROUTE_THREADS + threadIdx.x);
  const bool there = column < hidden;
  if (threadIdx.x == 0) {
    barrier_init(&summed, 1);
    barriers_ready();
    barrier_arrive_expecting(&summed, rows * ROUTE_SHARES * (1 + (rank == 0 ? groups * ROUTE_EACH * WORDS : 0)) * sizeof(float));
  }
  __syncthreads();
  cluster_arrive();
  if (rank == 0) choose_route<WORDS>({}, {}, 0.0f, expert_count, weighing);
  const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f), norm = there ? load4(norm_weight + column) : zeros;
  float4 weighed[ROUTE_EACH];
  auto weigh = [&](uint32_t word) {
#pragma unroll
    for (uint32_t e = 0; e < ROUTE_EACH; e++) {
      const uint32_t expert = word * WARP + group * ROUTE_EACH + e;
      const float4 g = there && expert < expert_count ? load4(gate + (size_t)expert * hidden + column) : zeros;
      weighed[e] = make_float4(g.x * norm.x, g.y * norm.y, g.z * norm.z, g.w * norm.w);
    }
  };
  weigh(0);
  if constexpr (WORDS > 1) {  /* the second experts' line that begins at this column */
#pragma unroll 1
    for (uint32_t e = 0; there && column % 32 == 0 && e < ROUTE_EACH; e++)
      if (const uint32_t expert = WARP + group * ROUTE_EACH + e; expert < expert_count)
        prefetch_line(gate + (size_t)expert * hidden + column);
  }
  if (const uint32_t e = WORDS == 1 ? lane : threadIdx.x; threadIdx.x < EXPERTS) scratch.bias[e] = bias && e < expert_count ? bias[e] : 0.0f;
  const float *h = arrays.h + (size_t)first * hidden + column;
  X *x = static_cast<X *>(arrays.x) + (size_t)first * hidden + column;
  wait_for_earlier_kernels();
  if (blockIdx.x == gridDim.x - 1) clear_counts(args.counts);
  sum_columns(scratch, weighed, h, rows, hidden, there);
  cluster_wait();  /* all blocks have their barriers */
  __syncthreads();
  auto sum_of_warps = [&](uint32_t r, uint32_t e) {
    const float4 low = load4(scratch.parts[r][e]), high = load4(scratch.parts[r][e] + 4);
    return low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
  };
  if (threadIdx.x < rows * ROUTE_EACH) {
    const uint32_t r = threadIdx.x / ROUTE_EACH, e = threadIdx.x % ROUTE_EACH;
    store_to_block(&scratch.sums[r][share][group * ROUTE_EACH + e], 0, sum_of_warps(r, e), &summed);
    if (group == 0 && e < blocks) store_to_block(&scratch.squares[r][share], e, sum_of_warps(r, ROUTE_EACH), &summed);
  }
  if constexpr (WORDS > 1) {
    weigh(1);
    __syncthreads();  /* the parts have been read */
    sum_columns(scratch, weighed, h, rows, hidden, there);
    __syncthreads();
    const uint32_t r = threadIdx.x / ROUTE_EACH, e = threadIdx.x % ROUTE_EACH;
    if (r < rows) store_to_block(&scratch.sums[r][share][WARP + group * ROUTE_EACH + e], 0, sum_of_warps(r, e), &summed);
  }
  barrier_wait_cluster(&summed, 0);
  auto scale_of = [&](uint32_t r) { return 1.0f / sqrtf((scratch.squares[r][0] + scratch.squares[r][1]) / hidden + args.eps); };
  if (rank == 0) {
#pragma unroll
    for (uint32_t r = warp; r < warp + ROUTE_ROWS; r += ROUTE_WARPS) {  /* a warp chooses for a row */
      if (r >= rows) break;
      RouteLane<WORDS> sums, biases;
#pragma unroll
      for (uint32_t w = 0; w < WORDS; w++) {
        const uint32_t e = lane + w * WARP;
        sums.of[w] = scratch.sums[r][0][e] + scratch.sums[r][1][e], biases.of[w] = scratch.bias[e];
      }
      store_choice(arrays, first, r, weighing.k, choose_route(sums, biases, scale_of(r), expert_count, weighing));
    }
  }
  /* A group stores every so many rows of x, a block its columns of them. */
#pragma unroll 1
  for (uint32_t r = group; there && r < rows; r += groups)
    store4(x + (size_t)r * hidden, normed(load4(h + (size_t)r * hidden), scale_of(r), load4(norm_weight + column)));
}

#define ROUTE_FEW(SUFFIX, X) ROUTES(SUFFIX, X, route_step, ROUTE_REGISTERS)
FOR_TYPES(ROUTE_FEW)
