// build: sm_90a
/* norm_router_many.cu: norm and router in one kernel, for steps of more than 256 rows: what router/norm_router.cu does for fewer.
 *
 *   block of the cluster   does                                               waits on                    signals
 *   each                   scores of all experts over MANY_COLUMNS columns;   grid dependency; `summed`,  `summed` of the row's block,
 *                          chooses for its rows r % blocks; stores its x      by expect_tx                and for squares of all
 *
 * A warp has MANY_EACH of 32 experts, a lane two times four columns, of which it keeps gate times norm weight in registers; for 64 experts
 * it goes over the rows twice. So L2 gives each element of h once, and it stays in shared memory until its x is stored.
 *
 * Sums over lanes: of MANY_TOGETHER rows a lane has parts of 16 sums. In each of four exchanges a lane sends one half of its parts, and
 * adds what it receives to the other half. Its i-th part is one of sum i ^ lane / 2, so every lane keeps the lower half and none has to
 * select: 16 shuffles for 16 sums. That is why lanes read experts and rows in orders of their own. A sum's order is the same wherever its
 * row is: columns within a lane, lanes 16, 8, 4, 2 and 1 apart, blocks.
 *
 * Bound: L2, instructions and latency: by hand some 7 us for 512 rows, H = 2048, E = 32 on an H100, 2 of them L2 and 2 instructions.
 * Measured in the model there in bf16: 8.2 us at 512 rows, 13.8 at 1,024. With more rows than clusters have room for at once, each has
 * MANY_ROWS: 80 us at 8,192 rows on an H200, where memory has 23 us, and instructions are some 25 by hand (profiles/log/prompts.md).
 *
 * MANY_REGISTERS leave an SM room for three blocks, since clusters do not fill it: where GPCs have 14 to 18 SMs, two blocks an SM are room
 * for 30 clusters of eight, and the steps of 512 and 1,024 rows have 32.
 *
 * Launch: block = MANY_THREADS; clusters of H / MANY_COLUMNS blocks, rounded up to a power of two, at least two; rows of the bucket /
 * rows_each of them. E at most 32, with *_e64 64, H at most MANY_COLUMNS * MANY_BLOCKS, rows_each at most MANY_ROWS. Needs sm_90a.
 */
#include "common/pdl.cuh"
#include "common/rmsnorm.cuh"
#include "common/wgmma.cuh"
#include "router/choice.cuh"

constexpr int MANY_THREADS = TG_NORM_THREADS, MANY_WARPS = MANY_THREADS / WARP;
constexpr int MANY_REGISTERS = 80;
[[maybe_unused]] constexpr uint32_t MANY_EACH = 4, MANY_TOGETHER = TG_ROUTE_MANY_TOGETHER, MANY_ROWS = TG_ROUTE_MANY_ROWS, MANY_BLOCKS = 8;
/* Columns of a block, in runs of four for each lane; a row's pieces of 16 bytes; rows that are waited for together. */
[[maybe_unused]] constexpr uint32_t MANY_RUN = 4 * WARP, MANY_COLUMNS = 2 * MANY_RUN, MANY_PIECES = MANY_COLUMNS / 4;
[[maybe_unused]] constexpr uint32_t MANY_PART = 16;
static_assert(MANY_COLUMNS == TG_ROUTE_MANY_COLUMNS, "as the launcher has it");
static_assert(MANY_EACH * MANY_WARPS == WARP, "a warp's experts");
static_assert(MANY_EACH * MANY_TOGETHER == WARP / 2 && MANY_ROWS == WARP, "two lanes have a sum; a lane has a row's scale");
static_assert(MANY_PART * MANY_PART == MANY_THREADS && MANY_ROWS == 2 * MANY_PART, "as many threads for each row of a part's squares");

/* Shared memory of a block, for WORDS times 32 experts. */
template <uint32_t WORDS>
struct alignas(16) RouteManyScratch {
  float h[MANY_ROWS][MANY_COLUMNS];
  /* of the cluster, by block: of all rows' squares; of the rows' sums that this block chooses for. Row r is chosen for by block
   * r % blocks, which has block b's sums of it in [r - r % blocks + b]. */
  float squares[MANY_ROWS][MANY_BLOCKS];
  float sums[MANY_ROWS][WORDS * WARP];
};

/* Sums over the lanes of a warp. parts[i] of a lane is one of sum i ^ lane / (WARP / SUMS); it gets sum lane / (WARP / SUMS). */
template <uint32_t SUMS, uint32_t HALF = SUMS / 2>
__device__ inline float sum_of_turned(float (&parts)[SUMS]) {
#pragma unroll
  for (uint32_t i = 0; i < HALF; i++) parts[i] += __shfl_xor_sync(0xffffffffu, parts[i + HALF], HALF * (WARP / SUMS));
  if constexpr (HALF > 1) return sum_of_turned<SUMS, HALF / 2>(parts);
  return sum_over_lanes<WARP / SUMS>(parts[0]);
}

/* The sum of what `of_block` gives for each block of a cluster. */
template <typename OfBlock>
__device__ inline float sum_of_blocks(uint32_t blocks, OfBlock of_block) {
  float sum = 0.0f;
#pragma unroll
  for (uint32_t b = 0; b < MANY_BLOCKS; b++) sum += b < blocks ? of_block(b) : 0.0f;
  return sum;
}

/* The squares of a row's columns in the block, summed by MANY_PART lanes, of which this is lane `at`. */
__device__ inline float sum_of_squares(const float *row, uint32_t at) {
  float squares = 0.0f;
#pragma unroll
  for (uint32_t c = 0; c < MANY_COLUMNS; c += 4 * MANY_PART) squares = add_squares(squares, load4(row + c + 4 * at));
  return sum_over_lanes<MANY_PART>(squares);
}

/* What a thread has of norm weight and gate: eight columns, and of these the experts of its warp. */
struct ManyWeights {
  const float *norm_weight, *gate;
  uint32_t hidden, expert_count, lane, warp, column;
  bool there[2];  /* its columns, and those MANY_RUN further */
  float4 weighed[MANY_EACH][2], norm[2];

  __device__ void load_runs(float4 (&runs)[2], const float *row, bool exists) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) runs[i] = there[i] && exists ? load4(row + i * MANY_RUN) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  __device__ void load_norm() { load_runs(norm, norm_weight + column, true); }

  __device__ void load_gate(uint32_t word) {
#pragma unroll
    for (uint32_t e = 0; e < MANY_EACH; e++) {
      const uint32_t expert = word * WARP + warp * MANY_EACH + (e ^ lane / 8);
      load_runs(weighed[e], gate + kept(expert * hidden + column), expert < expert_count);
    }
  }

  /* The line of these experts that begins at its columns. */
  __device__ void prefetch_gate(uint32_t word) const {
#pragma unroll
    for (uint32_t e = 0; e < MANY_EACH; e++) {
      const uint32_t expert = word * WARP + warp * MANY_EACH + e;
#pragma unroll
      for (uint32_t i = 0; i < 2; i++)
        if (there[i] && lane % 8 == 0 && expert < expert_count) prefetch_line(gate + (expert * hidden + column) + i * MANY_RUN);
    }
  }

  __device__ void weigh() {
#pragma unroll
    for (uint32_t e = 0; e < MANY_EACH; e++)
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        const float4 g = weighed[e][i];
        weighed[e][i] = make_float4(g.x * norm[i].x, g.y * norm[i].y, g.z * norm[i].z, g.w * norm[i].w);
      }
  }

  /* Gives `store` each of the rows `from` to `to`, and more up to a multiple of MANY_TOGETHER, with the sum that the lane gets of it. */
  template <typename Store>
  __device__ void multiply(const float (*h)[MANY_COLUMNS], uint32_t from, uint32_t to, Store store) const {
    const uint32_t turned = lane / 2 % MANY_TOGETHER;
    const float *rows_of[MANY_TOGETHER];
#pragma unroll
    for (uint32_t a = 0; a < MANY_TOGETHER; a++) rows_of[a] = h[from + (a ^ turned)] + 4 * lane;
#pragma unroll 1
    for (uint32_t r = from + turned; r - turned < to; r += MANY_TOGETHER) {
      float parts[MANY_EACH * MANY_TOGETHER];
#pragma unroll
      for (uint32_t a = 0; a < MANY_TOGETHER; a++) {
        const float4 v = load4(rows_of[a]), u = load4(rows_of[a] + MANY_RUN);
        rows_of[a] += MANY_TOGETHER * MANY_COLUMNS;
#pragma unroll
        for (uint32_t e = 0; e < MANY_EACH; e++) {
          const float4 w = weighed[e][0], z = weighed[e][1];
          const float low = fmaf(v.w, w.w, fmaf(v.z, w.z, fmaf(v.y, w.y, v.x * w.x)));
          parts[e * MANY_TOGETHER + a] = fmaf(u.w, z.w, fmaf(u.z, z.z, fmaf(u.y, z.y, fmaf(u.x, z.x, low))));
        }
      }
      store(r, sum_of_turned(parts));
    }
  }

  /* The norm of its columns of a row. */
  template <typename X>
  __device__ void store_normed(X *x, const float *row, float scale) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
      if (there[i]) store4(x + i * MANY_RUN, normed(load4(row + i * MANY_RUN + 4 * lane), scale, norm[i]));
  }
};

template <typename X, uint32_t WORDS>
__device__ inline void route_many_step(const tg_choosing_args &arrays, const tg_route_args &args, uint32_t hidden, uint32_t expert_count,
                                       Weighing weighing) {
  __shared__ RouteManyScratch<WORDS> scratch;
  __shared__ uint64_t summed;  /* all sums of blocks of the cluster are there */
  let_next_kernel_start();
  const float *bias = arrays.bias;
  const uint32_t rank = cluster_rank(), blocks = cluster_blocks(), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t others = blocks - 1, first = (blockIdx.x >> __popc(others)) * args.rows_each, in_step = __ldcg(&arrays.step->rows);
  const uint32_t first_column = rank * MANY_COLUMNS;
  const uint32_t column = first_column + 4 * lane;
  ManyWeights weights{arrays.norm_weight, arrays.gate, hidden, expert_count, lane, warp, column, {column < hidden, column + MANY_RUN < hidden}};
  weights.load_norm();
  weights.load_gate(0);
  if (threadIdx.x == 0) {
    barrier_init(&summed, 1);
    barriers_ready();
  }
  __syncthreads();
  cluster_arrive();
  if constexpr (WORDS > 1) weights.prefetch_gate(1);
  const uint32_t rows = rows_from(first, in_step, args.rows_each);
  const float *h = arrays.h + (size_t)first * hidden + first_column;
  wait_for_earlier_kernels();
  /* Columns past the last and rows past the step's come as zeros. */
  const uint32_t piece_row = threadIdx.x / MANY_PIECES, piece_column = threadIdx.x % MANY_PIECES * 4;
  const bool piece_there = first_column + piece_column < hidden;
  auto copy_part = [&](uint32_t part) {
    const float *from = h + (size_t)(part + piece_row) * hidden + piece_column;
#pragma unroll
    for (uint32_t i = 0; i < MANY_PART; i += MANY_THREADS / MANY_PIECES, from += MANY_THREADS / MANY_PIECES * hidden)
      copy16_async(scratch.h[part + i + piece_row] + piece_column, from, piece_there && part + i + piece_row < rows);
  };
  copy_part(0);
  copy_commit();
  if (MANY_PART < rows) copy_part(MANY_PART);
  copy_commit();
  if (blockIdx.x == gridDim.x - 1) clear_counts(args.counts);
  if (threadIdx.x == 0) {
    const uint32_t chosen_here = rows > rank ? (rows - rank + others) >> __popc(others) : 0;
    barrier_arrive_expecting(&summed, blocks * (rows + chosen_here * WORDS * WARP) * sizeof(float));
  }
  weights.weigh();  /* not before the rows are loaded: where this kernel started late, the gate has yet to come */
  copy_wait<1>();
  __syncthreads();
  cluster_wait();  /* all blocks have their barriers */
  auto add_squares_of = [&](uint32_t part) {
    const uint32_t r = part + threadIdx.x / MANY_PART, at = threadIdx.x % MANY_PART;
    const float sum = sum_of_squares(scratch.h[r], at);
    if (r < rows && at < blocks) store_to_block(&scratch.squares[r][rank], at, sum, &summed, blocks);
  };
  auto multiply = [&](uint32_t from, uint32_t to, uint32_t word) {
    const uint32_t expert = word * WARP + warp * MANY_EACH + lane / 8;
    weights.multiply(scratch.h, from, to, [&](uint32_t r, float sum) {
      if (lane % 2 == 0 && r < rows) store_to_block(&scratch.sums[(r & ~others) + rank][expert], r & others, sum, &summed, blocks);
    });
  };
#pragma unroll 1
  for (uint32_t word = 0; word < WORDS; word++) {
    if (word > 0) {
      weights.load_norm();
      weights.load_gate(word);
      weights.weigh();
    }
#pragma unroll 1
    for (uint32_t part = 0; part < rows; part += MANY_PART) {
      if (word == 0 && part > 0) {
        copy_wait<0>();
        __syncthreads();
      }
      if (word == 0) add_squares_of(part);
      multiply(part, min(rows, part + MANY_PART), word);
    }
  }
  /* Loads for what comes behind the exchange are issued before it: registers are free now. */
  weights.load_norm();
  RouteLane<WORDS> of_bias;
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) {
    const uint32_t expert = lane + w * WARP;
    of_bias.of[w] = bias && expert < expert_count ? bias[expert] : 0.0f;
  }
  if (warp * blocks + rank < rows) choose_route<WORDS>({}, {}, 0.0f, expert_count, weighing);
  barrier_wait_cluster(&summed, 0);
  const float squares = sum_of_blocks(blocks, [&](uint32_t b) { return scratch.squares[lane][b]; });
  const float scale = 1.0f / sqrtf(squares / hidden + args.eps);  /* of row `lane` */
  auto scale_of = [&](uint32_t r) { return __shfl_sync(0xffffffffu, scale, r); };
#pragma unroll 1
  for (uint32_t at = warp * blocks; at + rank < rows; at += MANY_WARPS * blocks) {  /* a warp chooses for a row */
    RouteLane<WORDS> sums;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++) sums.of[w] = sum_of_blocks(blocks, [&](uint32_t b) { return scratch.sums[at + b][lane + w * WARP]; });
    store_choice(arrays, first, at + rank, weighing.k, choose_route(sums, of_bias, scale_of(at + rank), expert_count, weighing));
  }
  X *x = static_cast<X *>(arrays.x) + (size_t)first * hidden + column;
#pragma unroll 1
  for (uint32_t r = warp; r < rows; r += MANY_WARPS) {
    const float scale = scale_of(r);
    weights.store_normed(x + (size_t)r * hidden, scratch.h[r], scale);
  }
}

#define ROUTE_MANY(SUFFIX, X) ROUTES(many_##SUFFIX, X, route_many_step, MANY_REGISTERS)
FOR_TYPES(ROUTE_MANY)
