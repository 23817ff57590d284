// build: sm_90a
/* norm_router_many.cu: norm and router in one kernel, for steps of more than 256 rows: what router/norm_router.cu does for fewer.
 *
 *   warps of a block      do                                                      waits on                   signals
 *   choosers, two groups  each every second tile: choose for some of its rows,    `summed`, full             empty, of all blocks
 *                         store its x
 *   the first of a group  also copies h of the block's columns, STAGES tiles on   grid dependency; empty     full, by expect_tx
 *   multipliers           multiply an eighth of the block's columns each, add     full                       `summed` of who chooses, and
 *                         these up and send them                                                             for squares of all, by expect_tx
 *
 * Clusters stay, and take tiles of ROWS rows by turns. A cluster's blocks share the columns, so that gate times norm weight fits into the
 * multipliers' registers, as three bf16 each (common/bf16x3.cuh): 96 of a lane. Rows are split alike as they are read. The six products of
 * parts above 2^-26 of the whole are a chain of instructions for 16 columns, the smallest first; it begins at zero and is added up by f32
 * additions, since the tensor cores' own round towards zero. A row's scores are linear in h but for its one scale, and h stays in shared
 * memory until its x is stored. A sum's order is the same wherever its row is: columns of a warp, warps, blocks.
 *
 * Bound: memory, (4 + sizeof(x)) H bytes of each row: 22 us for 8,192 rows, H = 2048, in bf16 on an H200. Measured in the model there:
 * 7.1 us at 512 rows, 17 at 2,048, 49 at 8,192. A tile takes 4,600 cycles, of which multipliers spend three quarters in the loop of
 * their products: registers have room for eight such warps, of which each issues every seventh cycle (profiles/log/prompts.md).
 *
 * Launch: block = TG_ROUTE_MANY_THREADS, shared = sizeof(RouteMany); clusters of H / COLUMNS blocks, rounded up to a power of two, at
 * least two; no more of them than have room at once. E at most 32, with *_e64 64, H at most COLUMNS * BLOCKS. Needs sm_90a.
 */
#include "common/bf16x3.cuh"
#include "common/bulk.cuh"
#include "common/pdl.cuh"
#include "common/rmsnorm.cuh"
#include "router/choice.cuh"
#include "wgmma/pipeline.cuh"

/* Warps that choose for a tile, groups of them, and warps that multiply. */
[[maybe_unused]] constexpr uint32_t CHOOSERS = 4, CHOOSER_GROUPS = 2, MULTIPLIERS = 8;
[[maybe_unused]] constexpr uint32_t CHOOSER_THREADS = CHOOSER_GROUPS * CHOOSERS * WARP, MULTIPLIER_THREADS = MULTIPLIERS * WARP;
static_assert(CHOOSER_THREADS + MULTIPLIER_THREADS == TG_ROUTE_MANY_THREADS, "as the launcher has it");
/* Registers of a thread, as launched and once choosers have given the multipliers theirs. */
[[maybe_unused]] constexpr uint32_t LAUNCH_REGISTERS = 128, CHOOSER_REGISTERS = 88, MULTIPLIER_REGISTERS = 168;
static_assert(CHOOSER_REGISTERS + MULTIPLIER_REGISTERS == 2 * LAUNCH_REGISTERS, "no more than there are");
static_assert(CHOOSER_THREADS == MULTIPLIER_THREADS, "what one gives the other takes");

/* Shared memory of a block, for WORDS times 32 experts. */
template <uint32_t WORDS>
struct alignas(16) RouteMany {
  static constexpr uint32_t ROWS = TG_ROUTE_MANY_ROWS, BLOCKS = 8, STAGES = 5;
  static constexpr uint32_t EXPERTS = WORDS * WARP, COLUMNS = 512 / WORDS, PITCH = COLUMNS + 16;
  static_assert(ROWS == 16 && COLUMNS * BLOCKS >= TG_ROUTE_HIDDEN, "an instruction's rows; all columns");
  float h[STAGES][ROWS][PITCH];  /* lanes that load or store together have banks of their own, here and in parts */
  float parts[2][MULTIPLIERS][ROWS][EXPERTS + 8];  /* of tiles by turns, by warp: products, and behind them squares */
  /* of the cluster, by block: of the rows' sums that this block chooses for, and of all rows' squares. Row r is chosen for by block
   * r % blocks, which has block b's sums of it in [r - r % blocks + b]. */
  float sums[STAGES][ROWS][EXPERTS];
  float squares[STAGES][ROWS][BLOCKS];
  uint64_t full[STAGES], empty[STAGES], summed[STAGES];
};

/* A block's place in its cluster, and its columns; rows of the step, of which tiles `apart` rows from each other are the cluster's. */
struct RouteShare {
  uint32_t rank, blocks, first_column, columns, rows, first, apart, hidden, expert_count;
};

/* The warps that multiply. Lane 4 g + q has rows g and g + 8, experts 8 n + g, and of each 16 columns 4 q .. 4 q + 3: an instruction's sums
 * are the same however its operands' columns are ordered. */
template <uint32_t WORDS>
__device__ inline void multiply_tiles(RouteMany<WORDS> &shared, Pipeline<RouteMany<WORDS>::STAGES> h, const RouteShare &share,
                                      const float *gate, const float *norm_weight) {
  using Many = RouteMany<WORDS>;
  constexpr uint32_t RUNS = Many::COLUMNS / MULTIPLIERS / 16, GROUPS = Many::EXPERTS / 8, WORD_GROUPS = WARP / 8;
  constexpr uint32_t PRODUCTS = 6, H_PART[PRODUCTS] = {2, 0, 1, 1, 0, 0}, GATE_PART[PRODUCTS] = {0, 2, 1, 0, 1, 0};
  const uint32_t thread = threadIdx.x - CHOOSER_THREADS, warp = thread / WARP, lane = thread % WARP, g = lane / 4, q = lane % 4;
  const uint32_t column = warp * RUNS * 16 + 4 * q;
  uint32_t weighed[RUNS][GROUPS][TG_PARTS][2];
  float4 raw[RUNS][GROUPS], norm[RUNS];
  for (uint32_t k = 0; k < RUNS; k++) {  /* columns that there are not weigh nothing; nobody looks at experts that there are not */
    const bool there = column + 16 * k < share.columns;
    const uint32_t at = there ? share.first_column + column + 16 * k : 0;
    norm[k] = there ? load4(norm_weight + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t n = 0; n < GROUPS; n++) raw[k][n] = load4(gate + kept(min(8 * n + g, share.expert_count - 1) * share.hidden + at));
  }
  for (uint32_t k = 0; k < RUNS; k++)
    for (uint32_t n = 0; n < GROUPS; n++) {
      const float4 w = raw[k][n], by = norm[k];
      float2 low = make_float2(w.x * by.x, w.y * by.y), high = make_float2(w.z * by.z, w.w * by.w);
      for (auto &part : weighed[k][n]) part[0] = take_bf16(low), part[1] = take_bf16(high);
    }
  cluster_wait();  /* all blocks have their barriers */
#pragma unroll 1
  for (uint32_t first = share.first, turn = 0; first < share.rows; first += share.apart, h.next(), turn ^= 1) {
    const float *row = shared.h[h.at][g] + column;
    auto *parts = shared.parts[turn];
    float squares[2] = {};
    h.wait();
    for (uint32_t word = 0; word < WORDS; word++) {
      float sums[WORD_GROUPS][4] = {};
      for (uint32_t k = 0; k < RUNS; k++) {
        uint32_t a[TG_PARTS][4];
        for (uint32_t i = 0; i < 2; i++) {
          const float4 v = load4(row + i * 8 * Many::PITCH + 16 * k);
          float2 low = make_float2(v.x, v.y), high = make_float2(v.z, v.w);
          if (word == 0) squares[i] = add_squares(squares[i], v);
          for (auto &part : a) part[i] = take_bf16(low), part[2 + i] = take_bf16(high);
        }
        float chain[WORD_GROUPS][4] = {};
        for (uint32_t i = 0; i < PRODUCTS; i++)
          for (uint32_t n = 0; n < WORD_GROUPS; n++) {
            const uint32_t(&b)[2] = weighed[k][word * WORD_GROUPS + n][GATE_PART[i]];
            mma<__nv_bfloat16>(chain[n], a[H_PART[i]], b[0], b[1]);
          }
        for (uint32_t n = 0; n < WORD_GROUPS; n++)
          for (uint32_t c = 0; c < 4; c++) sums[n][c] += chain[n][c];
      }
      for (uint32_t n = 0; n < WORD_GROUPS; n++)
        for (uint32_t i = 0; i < 2; i++)
          reinterpret_cast<float2 *>(parts[warp][g + 8 * i] + word * WARP + 8 * n)[q] = make_float2(sums[n][2 * i], sums[n][2 * i + 1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
      const float sum = sum_over_lanes<4>(squares[i]);
      if (q == 0) parts[warp][g + 8 * i][Many::EXPERTS] = sum;
    }
    threads_meet<MULTIPLIER_THREADS, 1>();
    if (const uint32_t r = thread / (Many::EXPERTS / 4), e = thread % (Many::EXPERTS / 4) * 4; r < Many::ROWS) {
      float4 sum = load4(parts[0][r] + e);
      for (uint32_t w = 1; w < MULTIPLIERS; w++) sum = sum4(sum, load4(parts[w][r] + e));
      const float *to = shared.sums[h.at][(r & -share.blocks) + share.rank] + e;
      store4_to_block(shared_address(to), r & (share.blocks - 1), sum, shared_address(shared.summed + h.at));
    }
    const uint32_t last = MULTIPLIER_THREADS - 1 - thread;  /* other warps than the above, where there are such */
    if (const uint32_t r = last / Many::BLOCKS, b = last % Many::BLOCKS; r < Many::ROWS && b < share.blocks) {
      float sum = 0.0f;
      for (uint32_t w = 0; w < MULTIPLIERS; w++) sum += parts[w][r][Many::EXPERTS];
      store_to_block(&shared.squares[h.at][r][share.rank], b, sum, shared.summed + h.at);
    }
  }
}

/* The warps that choose. */
template <typename X, uint32_t WORDS>
__device__ inline void choose_tiles(RouteMany<WORDS> &shared, Pipeline<RouteMany<WORDS>::STAGES> h, const RouteShare &share,
                                    const tg_choosing_args &arrays, float eps, uint32_t sent_bytes, Weighing weighing) {
  using Many = RouteMany<WORDS>;
  constexpr uint32_t ROW_THREADS = Many::COLUMNS / 4, TOGETHER = CHOOSERS * WARP / ROW_THREADS, AT_ONCE = 4;
  const uint32_t group = threadIdx.x / (CHOOSERS * WARP), thread = threadIdx.x % (CHOOSERS * WARP), warp = thread / WARP;
  const uint32_t lane = threadIdx.x % WARP, hidden = share.hidden;
  const uint32_t first_row = thread / ROW_THREADS, column = thread % ROW_THREADS * 4, bytes = share.columns * sizeof(float);
  const bool there = column < share.columns;
  auto load_tile = [&](uint32_t first, uint32_t stage) {
    if (first >= share.rows) return;
    const uint32_t rows = rows_from(first, share.rows, Many::ROWS);
    if (lane == 0) barrier_arrive_expecting(h.full + stage, rows * bytes);
    __syncwarp();
    if (lane < rows && bytes > 0)
      bulk_copy(shared.h[stage][lane], arrays.h + (size_t)(first + lane) * hidden + share.first_column, bytes, h.full + stage);
  };
  if (group == 0 && warp == 0) {
#pragma unroll 1
    for (uint32_t s = 0; s < Many::STAGES; s++) load_tile(share.first + s * share.apart, s);
  }
  const float4 norm = there ? load4(arrays.norm_weight + share.first_column + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  RouteLane<WORDS> bias;
  for (uint32_t w = 0, expert = lane; w < WORDS; w++, expert += WARP)
    bias.of[w] = arrays.bias && expert < share.expert_count ? arrays.bias[expert] : 0.0f;
  choose_route<WORDS>({}, {}, 0.0f, share.expert_count, weighing);
  cluster_wait();
  auto sum_of_blocks = [&](auto of_block) {
    float sum = 0.0f;
    for (uint32_t b = 0; b < Many::BLOCKS; b++) sum += b < share.blocks ? of_block(b) : 0.0f;
    return sum;
  };
  h.advance(group);
#pragma unroll 1
  for (uint32_t first = share.first + group * share.apart; first < share.rows;
       first += CHOOSER_GROUPS * share.apart, h.advance(CHOOSER_GROUPS)) {
    const uint32_t rows = rows_from(first, share.rows, Many::ROWS);
    /* h first: its load follows the stage's last sums. Later tiles' may overtake those, and a wait for a parity that has been is none. */
    h.wait();
    barrier_wait_cluster(shared.summed + h.at, h.parity);
    if (thread == 0) barrier_arrive_expecting(shared.summed + h.at, sent_bytes);
    const float *squares = shared.squares[h.at][lane % Many::ROWS];
    const float scale = 1.0f / sqrtf(sum_of_blocks([&](uint32_t b) { return squares[b]; }) / hidden + eps);  /* of that row */
    auto scale_of = [&](uint32_t r) { return __shfl_sync(0xffffffffu, scale, r); };
    X *x = static_cast<X *>(arrays.x) + (size_t)(first + first_row) * hidden + share.first_column + column;
#pragma unroll 1
    for (uint32_t r = first_row; r < rows; r += AT_ONCE * TOGETHER, x += AT_ONCE * TOGETHER * hidden) {
      float4 v[AT_ONCE];
      for (uint32_t i = 0, at = r; i < AT_ONCE; i++, at += TOGETHER) v[i] = normed(load4(shared.h[h.at][at] + column), scale_of(at), norm);
      for (uint32_t i = 0; i < AT_ONCE; i++)
        if (there && r + i * TOGETHER < rows) store4(x + i * TOGETHER * hidden, v[i]);
    }
#pragma unroll 1
    for (uint32_t r = warp * share.blocks + share.rank; r < rows; r += CHOOSERS * share.blocks) {  /* a warp chooses for a row */
      auto *from = shared.sums[h.at] + (r - share.rank);
      RouteLane<WORDS> sums;
      for (uint32_t w = 0; w < WORDS; w++) sums.of[w] = sum_of_blocks([&](uint32_t b) { return from[b][lane + w * WARP]; });
      store_choice(arrays, first, r, weighing.k, choose_route(sums, bias, scale_of(r), share.expert_count, weighing));
    }
    __syncwarp();
    if (lane < share.blocks) barrier_arrive_at_block(h.empty + h.at, lane);
    if (warp == 0) {  /* the wait also behind the last tile: arrivals of other blocks come before this one ends */
      barrier_wait(h.empty + h.at, h.parity);
      __syncwarp();  /* a lane behind would wait for a later phase: in a block without columns lane 0's arrival alone fills the stage */
      load_tile(first + Many::STAGES * share.apart, h.at);
    }
  }
}

template <typename X, uint32_t WORDS>
__device__ inline void route_many_step(const tg_choosing_args &arrays, const tg_route_args &args, uint32_t hidden, uint32_t expert_count,
                                       Weighing weighing) {
  using Many = RouteMany<WORDS>;
  extern __shared__ float4 shared[];
  Many &block = *reinterpret_cast<Many *>(shared);
  let_next_kernel_start();
  const uint32_t rank = cluster_rank(), blocks = cluster_blocks(), first_column = rank * Many::COLUMNS;
  const RouteShare share{rank, blocks, first_column, rows_from(first_column, hidden, Many::COLUMNS), __ldcg(&arrays.step->rows),
                         blockIdx.x / blocks * Many::ROWS, gridDim.x / blocks * Many::ROWS, hidden, expert_count};
  const uint32_t sent_bytes = Many::ROWS * (Many::EXPERTS + blocks) * sizeof(float), none = Many::COLUMNS - share.columns;
  const Pipeline<Many::STAGES> h(nullptr, block.full, block.empty);
  if (threadIdx.x == 0) {
    h.init(1, CHOOSERS * blocks);
    for (uint64_t &summed : block.summed) barrier_init(&summed, 1);
    barriers_ready();
    for (uint64_t &summed : block.summed) barrier_arrive_expecting(&summed, sent_bytes);
  }
  /* Columns that there are not are zeros: no copy comes there. */
  for (uint32_t i = threadIdx.x; i < Many::STAGES * Many::ROWS * none; i += TG_ROUTE_MANY_THREADS)
    block.h[0][0][i / none * Many::PITCH + share.columns + i % none] = 0.0f;
  __syncthreads();
  cluster_arrive();
  if (threadIdx.x >= CHOOSER_THREADS) {
    take_registers<MULTIPLIER_REGISTERS>();
    return multiply_tiles(block, h, share, arrays.gate, arrays.norm_weight);
  }
  give_registers<CHOOSER_REGISTERS>();
  wait_for_earlier_kernels();
  for (uint32_t i = 1 + threadIdx.x; blockIdx.x == 0 && i < EXPERT_COUNTS; i += CHOOSER_THREADS) args.counts[i] = 0;  /* clear_counts() */
  choose_tiles<X>(block, h, share, arrays, args.eps, sent_bytes, weighing);
}

#define ROUTE_MANY(SUFFIX, X)                                                                     \
  ROUTES(many_##SUFFIX, X, route_many_step, LAUNCH_REGISTERS)                \
  LAUNCH_CONSTANTS(tg_route_many_##SUFFIX##_tile, 2, RouteMany<1>::COLUMNS, sizeof(RouteMany<1>)) \
  LAUNCH_CONSTANTS(tg_route_many_##SUFFIX##_e64_tile, 2, RouteMany<2>::COLUMNS, sizeof(RouteMany<2>))
FOR_TYPES(ROUTE_MANY)
