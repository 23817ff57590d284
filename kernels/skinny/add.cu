// build: sm_90a sm_100 types e4m3
/* add.cu: products that add to the residual stream, for steps of few rows (skinny/skinny.cuh):
 *
 *   tg_skinny_held_out_*  h[r,:] += W x[r,:] + bias, K at most SKINNY_K: out-projections, and the down of a narrow dense feed-forward
 *                         (*held*: its weights are held in registers)
 *   tg_skinny_out_*       the same of longer rows
 *   tg_skinny_down_*      h[r,:] += sum over i of weights[r,i] W_e y[r k + i,:], i and with it the expert e ascending
 *
 * With `routing` the first two also store each tile's share of the router's scores (skinny/choice.cuh): a kernel that had to read all of h
 * for the router would cost more than these shares, which the next kernel adds up.
 *
 *   warp       does                                                  waits on                                signals
 *   producer   copies the tiles' weights into the pipeline           as in skinny/pipeline.cuh               full barriers
 *   consumers  load their columns of x, multiply, add to h           grid dependency, full, consumers_meet   empty barriers
 *   warp 0     down: loads the chosen words for all, first of all    chosen words                            __syncthreads()
 *
 * A warp loads the columns of a batch row that it alone needs, and waits for no other warp. Beside weights in 8 bits it copies those of 16-bit
 * rows two stages ahead, since they come later than a stage takes, unless it takes them apart (f16x2). tg_skinny_down_* loads the chosen experts'
 * weights before the grid dependency wait. It may start before their words are there, and spins on their marks. Gate/up triggers only
 * after its wait, so that the clear() of the kernel before is visible and no old mark is found.
 *
 * tg_skinny_held_out_* has no producer. Its weights are 256 bytes a thread, so all are under way before the grid dependency wait, and
 * no shared memory holds them; the launcher asks for a large first-level cache, where they stand on their way. The registers of the next
 * kernel, gate/up, find no room beside (in bf16 9 warps of 144 and 8 of 128 are more than an SM has), so it begins as blocks of this one end. That
 * is ptxas's output, which nothing enforces; of weights in 8 bits beside 3 to 8 rows the registers would suffice (120 and 96).
 *
 * Bound: memory, N K sizeof(W) bytes (for experts, of each that any row chose). Measured on an H200 in bf16 at 1 row, from kernel to kernel
 * (floor; how: profiles/README.md): 2048 x 2048 2.2 us (1.9), or 1.7 behind attention, during which its weights come; 2048 x 7168 8.5 us
 * (6.5), down of four experts of 1792 8.1 us (6.5). With weights in 8 bits, 2048 x 2048: 2.7 us (0.9).
 *
 * Launch: block = SKINNY_THREADS, grid = at most as many blocks as tiles, shared: sums, a tile of h and of the router, a stage's columns of
 * the rows, pipeline. Of tg_skinny_held_out_*: block = SKINNY_CONSUMERS, grid = a block a tile, no pipeline.
 */
#include "common/launch.cuh"
#include "skinny/choice.cuh"
#include "skinny/pipeline.cuh"

constexpr uint32_t SCORE_PITCH = TG_SKINNY_SCORE_PITCH;
static_assert(SCORE_PITCH % 2 == 1, "lanes with a row each meet in no bank");

/* A tile's share of the router's scores. All consumers use it: thread (r, i), r = thread / SKINNY_OUTPUTS and i the rest, has channel i
 * of the tile for batch row r. */
template <uint32_t WORDS>
struct SkinnyTileScores {
  static constexpr uint32_t EXPERTS = WORDS * WARP, GATES = EXPERTS * SKINNY_OUTPUTS / SKINNY_CONSUMERS;

  const float *all_router, *norm_weight;  /* the router's [E,H], and the weight of the norm before it, [H] */
  const uint32_t expert_count;
  float *tile_h, *tile_router;  /* in shared memory: a tile of h[bucket, SCORE_PITCH], and of router times norm [E, SCORE_PITCH] */
  float router[GATES], norm;

  __device__ inline SkinnyTileScores(void *memory, const tg_skinny_add_args &a)
      : all_router(a.router), norm_weight(a.norm_weight), expert_count(a.expert_count), tile_h(static_cast<float *>(memory)),
        tile_router(tile_h + a.bucket * SCORE_PITCH) {}

  static __device__ inline uint32_t bytes_of(uint32_t bucket, uint32_t expert_count) {
    return ((bucket + expert_count) * SCORE_PITCH * sizeof(float) + 15) / 16 * 16;
  }

  /* Loads router and norm of a tile's channels to registers, long before store() uses them. */
  __device__ inline void load(uint32_t tile, uint32_t outputs) {
    const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, n = tile * SKINNY_OUTPUTS + threadIdx.x % SKINNY_OUTPUTS;
    norm = norm_weight[n];
#pragma unroll
    for (uint32_t g = 0; g < GATES; g++) {
      const uint32_t e = g * (SKINNY_CONSUMERS / SKINNY_OUTPUTS) + r;
      router[g] = e < expert_count ? all_router[(size_t)e * outputs + n] : 0.0f;
    }
  }

  /* Stores the tile's share of the scores, and of the sum of squares that the norm divides by. `v` is this thread's new value of h. */
  __device__ inline void store(const SkinnyRouting<WORDS> &routing, uint32_t tile, float v, uint32_t count, uint32_t bucket) {
    const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (r < bucket) tile_h[r * SCORE_PITCH + i] = v;
#pragma unroll
    for (uint32_t g = 0; g < GATES; g++) {
      const uint32_t e = g * (SKINNY_CONSUMERS / SKINNY_OUTPUTS) + r;
      if (e < expert_count) tile_router[e * SCORE_PITCH + i] = router[g] * norm;
    }
    consumers_meet();
    if (warp >= count) return;
    /* each warp has a row from here on, and each lane one expert of every WARP */
    const float *of_h = tile_h + warp * SCORE_PITCH;
    float score[WORDS] = {}, squares = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++) {
      const float *with = tile_router + min(lane + w * WARP, expert_count - 1) * SCORE_PITCH;
#pragma unroll
      for (uint32_t c = 0; c < SKINNY_OUTPUTS; c++) {
        score[w] = fmaf(of_h[c], with[c], score[w]);
        if (w == 0) squares = fmaf(of_h[c], of_h[c], squares);
      }
    }
    const size_t at = (size_t)warp * routing.tiles + tile;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++) routing.scores[at * EXPERTS + lane + w * WARP] = score[w];
    if (lane == 0) routing.squares[at] = squares;
  }
};

/* A consumer warp begins to copy its share of a stage's `k_here` columns of the rows that are `there` to `x`, [bucket, pitch bytes] in shared
 * memory. Lanes 4r to 4r + 3 say whether row r is, and that it begins at `from`. What is in place of others is multiplied, and not read. */
template <class Math>
__device__ inline void skinny_copy_rows(char *x, uint32_t pitch, const typename Math::X *from, uint32_t k_here, bool there) {
  using X = typename Math::X;
  static_assert(SKINNY_UNITS * SKINNY_UNIT == WARP * 8, "a lane has 8 columns of a row");
  const uint32_t unit = skinny_unit_at(threadIdx.x % WARP / 4), column = unit + skinny_lane_column();
#pragma unroll 1
  for (uint32_t those = __ballot_sync(0xffffffffu, there && threadIdx.x % 4 == 0); those != 0; those &= those - 1) {
    const uint32_t lane = __ffs(those) - 1;
    const X *row = reinterpret_cast<const X *>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(from), lane)) + column;
    X *to = reinterpret_cast<X *>(x + lane / 4 * pitch) + column;
    if (unit >= k_here) continue;
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 16 / sizeof(X)) copy16_async(to + i, row + i, true);
  }
}

/* A consumer warp loads its share of a stage's `k_here` columns of this lane's batch row, and waits for them. They begin at `from` in global
 * memory. The sums of a row that is not `there` are not read. 16-bit rows go to registers. f32 rows, and those beside weights in 8 bits, go
 * through `x`, [PARTS, bucket, pitch bytes] in shared memory. */
template <class Math>
__device__ inline void skinny_fetch(SkinnyColumns<Math> &columns, char *x, uint32_t pitch, const typename Math::X *from,
                                 uint32_t k_here, uint32_t bucket, bool there) {
  using X = typename Math::X;
  using S = typename Math::S;
  const uint32_t column = skinny_lane_column();
  if constexpr (Math::HELD && Math::PARTS == 1 && !IS_E4M3<typename Math::W>) {
    columns.load(from, k_here, there);
    return;
  } else if constexpr (Math::HELD && Math::PARTS > 1) {
    /* Lanes have read what was there before. The 8 / bucket groups of lanes share the row's units: group g has unit g, in a bucket of 2
     * also g + 4. */
    __syncwarp();
    S *to = reinterpret_cast<S *>(x + Math::lane_row(bucket) * pitch);
    float4 v[TG_SKINNY_PARTS_ROWS][2] = {};
    uint32_t at[TG_SKINNY_PARTS_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < TG_SKINNY_PARTS_ROWS; i++) {
      at[i] = skinny_unit_at(Math::lane_part(bucket) + i * (SKINNY_UNITS / 2));
      if (i >= bucket || at[i] >= k_here) at[i] = k_here;
      else if (there) v[i][0] = load4(from + column + at[i]), v[i][1] = load4(from + column + at[i] + 4);
    }
#pragma unroll
    for (uint32_t i = 0; i < TG_SKINNY_PARTS_ROWS; i++) {
      if (at[i] == k_here) continue;
      Math::store(to + column + at[i], bucket * pitch, v[i][0]);
      Math::store(to + column + at[i] + 4, bucket * pitch, v[i][1]);
    }
  } else {
    __syncwarp();  /* lanes have read what was there before */
    skinny_copy_rows<Math>(x, pitch, from, k_here, there);
    copy_commit();
    copy_wait<0>();
  }
  __syncwarp();
  columns.load(reinterpret_cast<const S *>(x + Math::lane_shared_row(bucket, bucket) * pitch), k_here, true);
}

/* A row's experts, one bit each, read where they lie: several words would take too many registers. A row that is not `there` has none. */
template <uint32_t WORDS>
struct SkinnyRowExperts {
  const uint32_t *words;
  uint32_t r;
  bool there;

  __device__ inline uint32_t operator>>(uint32_t expert) const { return there ? has_at<WORDS>(words, r, expert) : 0; }
};
template <uint32_t WORDS>
__device__ inline uint32_t count_before(const SkinnyRowExperts<WORDS> &of, uint32_t expert) {
  return count_before(bits_at<WORDS>(of.words, of.r), expert);
}

/* The producer copies the weights of all of a block's tiles, expert by expert. */
template <class Math, class Bits>
__device__ inline void skinny_copy_tiles(SkinnyPipeline<Math> &pipeline, const typename Math::W *w, const float *scales, uint64_t stride,
                                         Bits experts, uint32_t outputs, uint32_t inner) {
  const uint64_t policy = read_once();
  const uint32_t tiles = (outputs + SKINNY_OUTPUTS - 1) / SKINNY_OUTPUTS;
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
#pragma unroll 1
    for (Bits left = experts; any(left); left = without_lowest(left)) {
      auto run = [&](uint32_t n) { return SkinnyRows<Math>::of(w + lowest(left) * stride, scales + lowest(left) * outputs, n, outputs, inner); };
      pipeline.load(run(tile * SKINNY_OUTPUTS), run(tile * SKINNY_OUTPUTS + SKINNY_STAGE_ROWS), inner, policy);
    }
}

/* With EXPERTS x has a row for each expert of each batch row. */
template <class Math, bool EXPERTS, uint32_t WORDS>
__device__ inline void skinny_add(const tg_skinny_add_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  using Bits = ExpertBits<WORDS>;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * TG_SKINNY_MOST_STAGES];
  __shared__ uint32_t chosen[SKINNY_ROWS * WORDS];  /* a bit for each of a row's experts, [rows][WORDS] */
  let_next_kernel_start();
  float *h = a.h;
  const X *x = static_cast<const X *>(a.x);
  const W *w = static_cast<const W *>(a.w);
  const float *bias = EXPERTS ? nullptr : a.bias, *weights = a.weights;
  const uint64_t stride = a.stride;
  const uint32_t k = a.k;
  const uint32_t outputs = a.outputs, inner = a.inner, bucket = a.bucket;
  const SkinnyRouting<WORDS> routing(a.routing, bucket, outputs);
  const uint64_t loaded = EXPERTS && threadIdx.x < bucket * WORDS ? routing.load(threadIdx.x) : 0;
  const uint32_t step_rows = load_now(&a.step->rows);
  SkinnySums<false> sums{reinterpret_cast<float *>(shared), bucket};
  char *after = reinterpret_cast<char *>(shared) + SkinnySums<false>::bytes_of(bucket);
  const bool scoring = !EXPERTS && a.routing;
  SkinnyTileScores<WORDS> tile_scores(after, a);
  if (scoring) after += SkinnyTileScores<WORDS>::bytes_of(bucket, a.expert_count);
  /* a stage's columns of each row */
  char *x_here = after;
  const uint32_t x_pitch = skinny_pitch<Math>(skinny_stage_k(inner)), x_bytes = Math::PARTS * bucket * x_pitch;
  constexpr bool AHEAD = IS_E4M3<W> && Math::HELD && Math::PARTS == 1;
  constexpr uint32_t PLACES = AHEAD ? TG_SKINNY_ROW_PLACES : 1;
  SkinnyPipeline<Math> pipeline(after + PLACES * x_bytes, barriers, inner, a.stages);
  if (threadIdx.x == 0) pipeline.init();
  const bool producer = threadIdx.x >= SKINNY_CONSUMERS;
  const uint32_t tiles = (outputs + SKINNY_OUTPUTS - 1) / SKINNY_OUTPUTS;
  if (EXPERTS && threadIdx.x < bucket * WORDS) chosen[threadIdx.x] = routing.wait(threadIdx.x, loaded);
  __syncthreads();
  Bits experts = EXPERTS ? Bits{} : bit_of<WORDS>(0);  /* that any row has */
  if (EXPERTS) {
#pragma unroll 1
    for (uint32_t r = 0; r < bucket; r++)
      if constexpr (WORDS == 1) experts |= chosen[r];
      else experts = experts | bits_at<WORDS>(chosen, r);
  }

  if (producer) {
    skinny_copy_tiles(pipeline, w, a.scale, stride, experts, outputs, inner);
    return;
  }

  const uint32_t count = min(step_rows, bucket);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
  const uint32_t row = Math::lane_row(bucket), sum_row = skinny_sum_row();
  if (scoring && blockIdx.x < tiles) tile_scores.load(blockIdx.x, outputs);
  wait_for_earlier_kernels();
  if (scoring && blockIdx.x == 0 && threadIdx.x < SKINNY_ROWS * WORDS) routing.clear(threadIdx.x);
  auto experts_of = [&](uint32_t r) {
    if constexpr (WORDS == 1) return EXPERTS && r < count ? chosen[r] : 0;
    else return SkinnyRowExperts<WORDS>{chosen, r, EXPERTS && r < count};
  };
  const auto of_row = experts_of(row), of_first = experts_of(sum_row), of_second = experts_of(sum_row + 1);
  /* With AHEAD: the step, of those that the loops below take one after the other, whose columns are copied next, and the places that these go
   * to and are read from. */
  Bits next_experts = experts;
  uint32_t next_first = 0, next_tile = blockIdx.x, to_place = 0, from_place = 0;
  auto copy_next = [&] {
    if (next_tile < tiles && any(next_experts)) {
      const uint32_t e = lowest(next_experts);
      const bool there = row < count && (!EXPERTS || of_row >> e & 1);
      const X *from = x + (there ? (size_t)(EXPERTS ? row * k + count_before(of_row, e) : row) * inner + next_first : 0);
      skinny_copy_rows<Math>(x_here + to_place * x_bytes, x_pitch, from, min(pipeline.k, inner - next_first), there);
      if (++to_place == PLACES) to_place = 0;
      next_first += pipeline.k;
      if (next_first >= inner) {
        next_first = 0, next_experts = without_lowest(next_experts);
        if (!any(next_experts)) next_experts = experts, next_tile += gridDim.x;
      }
    }
    copy_commit();
  };
  if constexpr (AHEAD)
    for (uint32_t place = 1; place < PLACES; place++) copy_next();
#pragma unroll 1
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint32_t n = tile * SKINNY_OUTPUTS + i;
    const bool mine = r < count && n < outputs;
    /* loaded long before it is used */
    float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
    if (mine && bias) v += bias[n];
    SkinnyTileSums total;
    /* of this lane's two rows, for an expert; with AHEAD loaded an expert ahead, since a load takes as long as a stage of weights in 8 bits */
    auto weights_for = [&](uint32_t e) {
      auto weight_of = [&](uint32_t r, auto of) { return !EXPERTS ? 1.0f : of >> e & 1 ? weights[r * k + count_before(of, e)] : 0.0f; };
      return make_float2(weight_of(sum_row, of_first), weight_of(sum_row + 1, of_second));
    };
    float2 next_weight;
    if constexpr (AHEAD) next_weight = weights_for(lowest(experts));
#pragma unroll 1
    for (Bits left = experts; any(left); left = without_lowest(left)) {
      const uint32_t e = lowest(left);
      const bool there = row < count && (!EXPERTS || of_row >> e & 1);
      auto pair_of = [&](uint32_t r, auto of) { return r * k + count_before(of, e); };
      const uint32_t pair = EXPERTS && there ? pair_of(row, of_row) : row;
      const float2 weight = AHEAD ? next_weight : weights_for(e);
      if constexpr (AHEAD)
        if (const Bits rest = without_lowest(left); any(rest)) next_weight = weights_for(lowest(rest));
      const X *from = x + (there ? (size_t)pair * inner : 0);
      SkinnyColumns<Math> columns;
      if (!AHEAD && inner <= pipeline.k) skinny_fetch(columns, x_here, x_pitch, from, inner, bucket, there);
      const auto fetch = [&](uint32_t first, uint32_t k_here) {
        if constexpr (AHEAD) {
          copy_next();
          copy_wait<PLACES - 1>();
          __syncwarp();
          const char *rows = x_here + from_place * x_bytes;
          columns.load(reinterpret_cast<const typename Math::S *>(rows + Math::lane_shared_row(bucket, bucket) * x_pitch), k_here, true);
          if (++from_place == PLACES) from_place = 0;
        } else {
          skinny_fetch(columns, x_here, x_pitch, from + (there ? first : 0), k_here, bucket, there);
        }
      };
      const SkinnyTileSums sum = skinny_whole<Math>(pipeline.template consume<AHEAD>(columns, inner, fetch), bucket);
#pragma unroll
      for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
        if (!EXPERTS || of_first >> e & 1) total.run[run].x = fmaf(weight.x, sum.run[run].x, total.run[run].x);
        if (!EXPERTS || of_second >> e & 1) total.run[run].y = fmaf(weight.y, sum.run[run].y, total.run[run].y);
      }
    }
    sums.put(total);
    if (mine) {
      v += sums.get(r, i);
      h[(size_t)r * outputs + n] = v;
    }
    if (!scoring) continue;
    tile_scores.store(routing, tile, v, count, bucket);
    if (tile + gridDim.x >= tiles) break;
    tile_scores.load(tile + gridDim.x, outputs);  /* the next put() is between this tile's reads and the next one's writes */
  }
}

/* A tile's weights wait in registers. */
template <class Math, uint32_t WORDS>
__device__ inline void skinny_held_out(const tg_skinny_add_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  let_next_kernel_start();
  const uint32_t lane = threadIdx.x % WARP, tile = blockIdx.x;
  const uint32_t outputs = a.outputs, inner = a.inner, bucket = a.bucket;
  const W *w = static_cast<const W *>(a.w);
  const X *x = static_cast<const X *>(a.x);
  const float *bias = a.bias;
  float *h = a.h;
  void *routing_at = a.routing;  /* read at each use, it moved the scores' loads after those of the weights (profiles/log/arguments.md) */
  SkinnySums<false> sums{reinterpret_cast<float *>(shared), bucket};
  char *after = reinterpret_cast<char *>(shared) + SkinnySums<false>::bytes_of(bucket);
  const SkinnyRouting<WORDS> routing(routing_at, bucket, outputs);
  SkinnyTileScores<WORDS> tile_scores(after, a);
  /* Small loads come first: they would stand behind the weights. */
  const uint32_t step_rows = load_now(&a.step->rows);
  if (routing_at) {
    after += SkinnyTileScores<WORDS>::bytes_of(bucket, a.expert_count);
    tile_scores.load(tile, outputs);
  }
  float scale[SKINNY_TILE_RUNS];
  if constexpr (IS_E4M3<W>) {
#pragma unroll
    for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++)
      scale[run] = a.scale[min(tile * SKINNY_OUTPUTS + run * SKINNY_STAGE_ROWS + lane / 4, outputs - 1)];
  }
  const uint64_t policy = read_once();
  constexpr uint32_t EACH = 2 / sizeof(W);  /* units of 16 bytes */
  uint4 weights[SKINNY_TILE_RUNS][SKINNY_UNITS / EACH];
#pragma unroll
  for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
    const uint32_t n = min(tile * SKINNY_OUTPUTS + run * SKINNY_STAGE_ROWS + lane / 4, outputs - 1);
    const W *from = w + (Math::PACKED ? packed_row(n, inner) : (size_t)n * inner) + skinny_lane_column() * EACH;
#pragma unroll
    for (uint32_t u = 0; u < SKINNY_UNITS; u += EACH) {
      const uint32_t column = skinny_unit_at(u);
      weights[run][u / EACH] =
          column < inner ? read_weights(from + (Math::PACKED ? packed_along(column) : column), policy) : make_uint4(0, 0, 0, 0);
    }
  }
  const uint32_t count = min(step_rows, bucket);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS, n = tile * SKINNY_OUTPUTS + i;
  const uint32_t row = Math::lane_row(bucket);
  const bool mine = r < count && n < outputs, there = row < count;
  wait_for_earlier_kernels();
  if (routing_at && blockIdx.x == 0 && threadIdx.x < SKINNY_ROWS * WORDS) routing.clear(threadIdx.x);
  SkinnyColumns<Math> columns;
  skinny_fetch(columns, after, skinny_pitch<Math>(inner), x + (there ? (size_t)row * inner : 0), inner, bucket, there);
  float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
  if (mine && bias) v += bias[n];
  SkinnyTileSums of[Math::SUMS], sum;
#pragma unroll
  for (uint32_t u = 0; u < SKINNY_UNITS; u++)
    Math::multiply(of[u % Math::SUMS], skinny_unit<W>(weights[0], u), skinny_unit<W>(weights[1], u), columns.piece(u, skinny_unit_at(u) < inner));
  if constexpr (IS_E4M3<W>) skinny_add_up<Math>(sum, of, scale);
  else skinny_add_up<Math>(sum, of);
  sums.put(skinny_whole<Math>(sum, bucket));
  if (mine) {
    v += sums.get(r, i);
    h[(size_t)r * outputs + n] = v;
  }
  if (routing_at) tile_scores.store(routing, tile, v, count, bucket);
}

#define SKINNY_OUT(SUFFIX, MATH, WORDS) SKINNY_KERNEL(out_##SUFFIX, tg_skinny_add_args, skinny_add<MATH, false, WORDS>(a);)
#define SKINNY_ADD(SUFFIX, MATH, WORDS)                                                         \
  SKINNY_KERNEL(down_##SUFFIX, tg_skinny_add_args, skinny_add<SkinnyPacked<MATH>, true, WORDS>(a);) \
  STRUCT_KERNEL(tg_skinny_held_out_##SUFFIX, tg_skinny_add_args, (skinny_held_out<MATH, WORDS>), SKINNY_CONSUMERS)
/* For up to 32 and 64 experts. tg_skinny_out_* has no instance that stores bf16 rows as f16x2: what it copies ahead it cannot take apart. */
#define SKINNY_ADD_OF(SUFFIX, MATH)  \
  SKINNY_OUT(SUFFIX, MATH, 1)        \
  SKINNY_OUT(SUFFIX##_e64, MATH, 2)  \
  SKINNY_ADD(SUFFIX, MATH, 1)        \
  SKINNY_ADD(SUFFIX##_e64, MATH, 2)
FOR_SKINNY_TYPES(SKINNY_ADD_OF)
OF_BF16_E4M3(SKINNY_ADD(bf16_e4m3_f16x2, SkinnyE4m3<SkinnyF16x2Rows>, 1))
OF_BF16_E4M3(SKINNY_ADD(bf16_e4m3_f16x2_e64, SkinnyE4m3<SkinnyF16x2Rows>, 2))
