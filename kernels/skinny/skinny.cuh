/* skinny.cuh: matrix products of few rows, at most SKINNY_ROWS, at the speed of memory: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Every weight is read once and takes part in only R multiplications. So reading weights is all that takes time, and the memory must be
 * kept busy, above all while a kernel waits for the one before it.
 *
 * The pipeline (skinny/pipeline.cuh). A stage holds SKINNY_STAGE_ROWS weight rows, up to SKINNY_K columns of each. One warp, the producer,
 * fills stages with bulk copies, which need no registers. Weights depend on no kernel, so a block copies the first ones as soon as the
 * kernel before it leaves its SM. Every row of a stage begins on a line of SKINNY_LINE bytes: copies to 64 bytes beside a line came at
 * 3.6 TB/s in place of 4.5 on an H200 (profiles/log/few-rows-copies.md).
 *
 * The products. The other warps, the consumers, multiply with mma.sync: weight rows are its M operand, batch rows its N operand (8). A lane
 * reads 16 bytes of a weight row, and the same columns of a batch row, so columns are in another order than in memory on both sides.
 *
 * A tile is SKINNY_OUTPUTS outputs: two runs of SKINNY_STAGE_ROWS weight rows, whose stages come by turns. The runs need not be
 * neighbours: gate and up rows make a tile too. Blocks take tiles in a grid-stride loop. Needs sm_90.
 *
 * The sums. Of each stage a consumer warp has SKINNY_UNITS units of SKINNY_UNIT columns (skinny_unit_at). The warps' sums are added up
 * through shared memory, in the order of the warps. So a product's bits follow from K and the Math alone.
 *
 * A block runs most of its code once, which costs more time to fetch than to execute. So loops are not unrolled here unless loads would
 * wait for each other. Before its wait a kernel also reads the step's descriptor, which was written before the step began.
 *
 * N may be anything (of packed weights a multiple of SKINNY_STAGE_ROWS; H of conv and with the router's scores, of SKINNY_OUTPUTS), K is a
 * multiple of 32. Every array starts on 16 bytes.
 */
#pragma once

#include "common/barrier.cuh"
#include "common/base.cuh"
#include "common/bf16x3.cuh"
#include "common/e4m3.cuh"
#include "common/global.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/pdl.cuh"
#include "skinny/args.h"

constexpr uint32_t SKINNY_ROWS = TG_SKINNY_ROWS, SKINNY_STAGE_ROWS = TG_SKINNY_STAGE_ROWS, SKINNY_OUTPUTS = TG_SKINNY_OUTPUTS;
constexpr uint32_t SKINNY_TILE_RUNS = SKINNY_OUTPUTS / SKINNY_STAGE_ROWS;
constexpr uint32_t SKINNY_K = TG_SKINNY_K, SKINNY_UNIT = TG_SKINNY_UNIT;
constexpr int SKINNY_CONSUMER_WARPS = TG_SKINNY_CONSUMER_WARPS;
constexpr int SKINNY_CONSUMERS = SKINNY_CONSUMER_WARPS * WARP;
constexpr int SKINNY_THREADS = SKINNY_CONSUMERS + WARP;
constexpr uint32_t SKINNY_UNITS = SKINNY_K / SKINNY_UNIT / SKINNY_CONSUMER_WARPS;  /* of a stage, for each consumer warp */
constexpr uint32_t SKINNY_LINE = TG_SKINNY_LINE;
constexpr uint32_t SKINNY_LINE_UNITS = 2;  /* of 16-bit weights */
/* Stages of 16-bit weights under way at once, however many a pipeline has: any other load of the block stands in a queue behind all of
 * them (profiles/log/few-rows.md). */
constexpr uint32_t SKINNY_AHEAD = 2;
/* In in-projections, q, k and v, and the LM head the first so many stages (of 8 bits twice as many, two at a time) are copied one by one, since the batch rows are loaded at the
 * same time and must not stand behind many weights (four and six were slower: profiles/log/few-rows-copies.md). */
constexpr uint32_t SKINNY_ONE_BY_ONE = 3;

/* How many columns a stage has: K is cut into stages of one size, and of whole lines where there are several. */
__host__ __device__ constexpr uint32_t skinny_stage_k(uint32_t k) {
  const uint32_t stages = (k + SKINNY_K - 1) / SKINNY_K, whole = stages > 1 ? SKINNY_LINE_UNITS * SKINNY_UNIT : SKINNY_UNIT;
  return ((k + stages - 1) / stages + whole - 1) / whole * whole;
}

/* Bytes from a batch row in shared memory to the next. Shared memory serves 8 lanes together, which read 4 pieces of 16 bytes (32 of
 * f32) of each of two rows; beside weights in 8 bits, a piece of each of 8 rows. With this distance no two of them want the same bank. */
template <class Math>
__host__ __device__ constexpr uint32_t skinny_pitch(uint32_t elements) {
  using S = typename Math::S;
  const uint32_t bytes = elements * sizeof(S), want = sizeof(S) == 2 && !IS_E4M3<typename Math::W> ? 64 : 16;
  return bytes + (want + 128 - bytes % 128) % 128;
}

/* Bytes from a weight row in a stage to the next: whole lines, as bulk copies want it. The two rows that are served together then
 * begin in the same bank. So a warp reads the halves of a line in the other order for every other row (SkinnyRun). */
__host__ __device__ constexpr uint32_t skinny_stage_pitch(uint32_t bytes) { return (bytes + SKINNY_LINE - 1) / SKINNY_LINE * SKINNY_LINE; }

/* The first column of a warp's unit u of a stage; below, of this warp's. Two units of 16-bit weights are a line, and lines go round the warps. */
__device__ inline uint32_t skinny_unit_of(uint32_t warp, uint32_t u) {
  return ((u / SKINNY_LINE_UNITS * SKINNY_CONSUMER_WARPS + warp) * SKINNY_LINE_UNITS + u % SKINNY_LINE_UNITS) * SKINNY_UNIT;
}
__device__ inline uint32_t skinny_unit_at(uint32_t u) { return skinny_unit_of(threadIdx.x / WARP, u); }

/* The first of this lane's 8 columns of a unit. */
__device__ inline uint32_t skinny_lane_column() { return threadIdx.x % 4 * 8; }

/* How many consumer warps share a row, in a bucket of `bucket` rows: a power of two. */
__device__ inline uint32_t warps_of_row(uint32_t bucket) { return SKINNY_CONSUMER_WARPS >> (bucket > 1 ? 32 - __clz(bucket - 1) : 0); }

/* ---- where warps meet ------------------------------------------------------------------------ */

/* All consumers wait for each other; the producer does not. */
__device__ inline void consumers_meet() { threads_meet<SKINNY_CONSUMERS, 1>(); }

/* Named barriers between consumers and the producer: a warp that waits at one finds what was written by those that signalled it. */
constexpr int PREDICTION_READY = 2, CHOICE_READY = 3;

/* ---- products of one unit, for one warp ------------------------------------------------------ */

/* A warp's sums of a tile's 16 weight rows with 8 batch rows. This lane has those of weight row g of each run, g = lane / 4, with
 * batch rows 2q and 2q + 1, q = lane % 4. */
struct SkinnyTileSums {
  float2 run[SKINNY_TILE_RUNS] = {};

  __device__ inline void operator+=(const SkinnyTileSums &other) {
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_TILE_RUNS; i++) run[i].x += other.run[i].x, run[i].y += other.run[i].y;
  }
};

/* sum += the products of a unit, by two instructions. A lane gives 16 bytes of weight row g of each run, and of batch row g. */
template <typename T>
__device__ inline void skinny_mma(SkinnyTileSums &sum, uint4 first, uint4 second, uint4 x) {
  float v[4] = {sum.run[0].x, sum.run[0].y, sum.run[1].x, sum.run[1].y};
  mma<T>(v, {first.x, second.x, first.y, second.y}, x.x, x.y);
  mma<T>(v, {first.z, second.z, first.w, second.w}, x.z, x.w);
  sum.run[0] = make_float2(v[0], v[1]), sum.run[1] = make_float2(v[2], v[3]);
}

/* A Math has: X, S, W, Piece, PARTS, PACKED, HELD, AT_ONCE, SUMS, piece, lane_column, lane_row, shared_row, lane_shared_row, store, whole,
 * multiply; lane_part where HELD with PARTS > 1; power with weights in 8 bits, and POWER where these become f16.
 *
 * Rows and weights of the same 16-bit type: */
template <typename T>
struct SkinnyHalf {
  using X = T;  /* rows in global memory */
  using S = T;  /* and in shared memory, where each is PARTS rows: [PARTS, bucket, K] */
  using W = T;
  using Piece = uint4;  /* a lane's 8 columns of a batch row */
  static constexpr uint32_t PARTS = 1;
  static constexpr bool PACKED = false;   /* weights lie row after row, not as common/packed.cuh says */
  static constexpr bool HELD = true;      /* SkinnyColumns in registers */
  static constexpr uint32_t AT_ONCE = SKINNY_UNITS;  /* units of a stage read together: as many as registers allow */
  static constexpr uint32_t SUMS = 2;             /* units go to so many sums by turns, which are then added with rounding */

  /* This lane's, at its lane_column() of a unit. */
  static __device__ inline Piece piece(const S *x) { return *reinterpret_cast<const uint4 *>(x); }
  static __device__ inline uint32_t lane_column() { return skinny_lane_column(); }

  /* Which batch row a lane multiplies; there may be no such row. */
  static __device__ inline uint32_t lane_row(uint32_t) { return threadIdx.x % WARP / 4; }

  /* Where the i-th row of an instruction is in shared memory. One that is not there is the last one again; its sums are never read. */
  static __device__ inline uint32_t shared_row(uint32_t i, uint32_t rows, uint32_t) { return min(i, rows - 1); }
  /* The row that this lane's pieces are read at. */
  static __device__ inline uint32_t lane_shared_row(uint32_t rows, uint32_t bucket) { return shared_row(threadIdx.x % WARP / 4, rows, bucket); }

  /* 4 columns of a row; its parts lie `apart` bytes from each other. */
  static __device__ inline void store(S *to, uint32_t, float4 v) { store4(to, v); }

  /* A batch row's sum, from the sums of all of its parts, in the lane that has its first part. */
  static __device__ inline float2 whole(float2 sum, uint32_t) { return sum; }

  /* sum += products of a unit: this lane's 16 bytes of weight row g of each run, and its piece of batch row g. */
  static __device__ inline void multiply(SkinnyTileSums &sum, uint4 first, uint4 second, const Piece &x) {
    skinny_mma<T>(sum, first, second, x);
  }
};

/* f32 rows as bf16x3, bf16 weights. Tensor cores take no f32, so a row is three bf16 parts whose sum it is, exactly but for its
 * lowest bits. The matrix units truncate as they accumulate. So each part has sums of its own for every unit, which are added
 * with rounding, the smallest first. */
struct SkinnyBf16x3 : SkinnyHalf<__nv_bfloat16> {
  using X = float;
  using S = float;
  struct Piece {
    float4 lo, hi;
  };
  static constexpr bool HELD = false;
  static constexpr uint32_t AT_ONCE = 2;

  static __device__ inline Piece piece(const S *x) { return {load4(x), load4(x + 4)}; }
  static __device__ inline void store(S *to, uint32_t, float4 v) { store4(to, v); }

  static __device__ inline void multiply(SkinnyTileSums &sum, uint4 first, uint4 second, const Piece &x) {
    uint32_t parts[4][3];
    bf16x3(make_float2(x.lo.x, x.lo.y), parts[0]);
    bf16x3(make_float2(x.lo.z, x.lo.w), parts[1]);
    bf16x3(make_float2(x.hi.x, x.hi.y), parts[2]);
    bf16x3(make_float2(x.hi.z, x.hi.w), parts[3]);
    SkinnyTileSums of[3];
#pragma unroll
    for (int p = 0; p < 3; p++)
      skinny_mma<W>(of[p], first, second, make_uint4(parts[0][p], parts[1][p], parts[2][p], parts[3][p]));
    of[1] += of[2];
    of[0] += of[1];
    sum += of[0];
  }
};

/* Rows in a bucket of up to TG_SKINNY_PARTS_ROWS, each the sum of PARTS_ rows of T. An instruction has room for 8 batch rows, so parts can each be
 * a batch row of its own: row p * bucket + r is part p of row r. So a row is taken apart once, as it is stored, and not for each product. */
template <typename T, uint32_t PARTS_>
struct SkinnyParts : SkinnyHalf<T> {
  static constexpr uint32_t PARTS = PARTS_;
  static_assert(PARTS * TG_SKINNY_PARTS_ROWS <= 8 && TG_SKINNY_PARTS_ROWS == 2, "the rows of an instruction; two buckets");

  /* Which part of which row a lane has, in a bucket of 1 or 2. The last lanes' part does not exist. */
  static __device__ inline uint32_t lane_part(uint32_t bucket) { return threadIdx.x % WARP / 4 >> (bucket - 1); }
  static __device__ inline uint32_t lane_row(uint32_t bucket) { return threadIdx.x % WARP / 4 & (bucket - 1); }

  static __device__ inline uint32_t shared_row(uint32_t i, uint32_t rows, uint32_t bucket) {
    return min(i >> (bucket - 1), PARTS - 1) * bucket + min(i & (bucket - 1), rows - 1);
  }
  static __device__ inline uint32_t lane_shared_row(uint32_t rows, uint32_t bucket) { return shared_row(threadIdx.x % WARP / 4, rows, bucket); }

  /* A value of the lane `lanes` further. */
  static __device__ inline float from(float v, int lanes) { return __shfl_down_sync(0xffffffffu, v, lanes); }
};

/* f32 rows as bf16x3. All else is as with bf16 rows. The parts are a row's bits from the highest on, 8 each. Their sum is the row, exactly
 * from 2^-110 on. A sum is over four instructions before it is rounded, SkinnyBf16x3's over two. */
struct SkinnyBf16x3Rows : SkinnyParts<__nv_bfloat16, TG_PARTS> {
  using X = float;
  static constexpr uint32_t SUMS = 4;

  /* Takes the upper halves of two values, 8 bits and a sign of each, and keeps the rest in them. */
  static __device__ inline uint32_t take_upper(float &lo, float &hi) {
    const uint32_t pair = __byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x7632);
    lo -= __uint_as_float(pair << 16), hi -= __uint_as_float(pair & 0xffff0000u);
    return pair;
  }

  static __device__ inline void store(S *to, uint32_t apart, float4 v) {
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++)
      *reinterpret_cast<uint2 *>(reinterpret_cast<char *>(to) + p * apart) = make_uint2(take_upper(v.x, v.y), take_upper(v.z, v.w));
  }

  /* Adds the smallest part first. In a bucket of 1 a lane has two parts of the row, in one of 2 the same part of both rows. */
  static __device__ inline float2 whole(float2 sum, uint32_t bucket) {
    if (bucket == 1) return make_float2(sum.x + (sum.y + from(sum.x, 1)), 0.0f);
    return make_float2(sum.x + (from(sum.x, 1) + from(sum.x, 2)), sum.y + (from(sum.y, 1) + from(sum.y, 2)));
  }
};

/* bf16 rows as f16x2, two rows of f16, beside weights in 8 bits: one instruction makes f16 of a pair of these. The first part is a value times 2^-8,
 * rounded to f16, which loses nothing from 2^-9 on. The second is 2^40 times what it lost. Together they are a value exactly from 2^-48 on and below
 * 2^24. From there on the first part is infinite. */
struct SkinnyF16x2Rows : SkinnyParts<__half, TG_SKINNY_F16_PARTS> {
  using X = __nv_bfloat16;
  static constexpr uint32_t SUMS = 4;  /* with two, eight instructions in a row would take as long as all the rest of a tile */
  static constexpr float POWER = 0x1p8f, REST = 0x1p-40f;  /* the product is POWER times: sum of first parts + REST times that of second parts */

  static __device__ inline void store(S *to, uint32_t apart, float4 v) {
    const uint32_t rounded[2] = {pack2<X>(v.x, v.y), pack2<X>(v.z, v.w)};
    uint32_t parts[PARTS][2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float2 rest = unpack2<X>(rounded[i]);
      rest.x /= POWER, rest.y /= POWER;
      parts[0][i] = pack2<S>(rest.x, rest.y);
      const float2 first = unpack2<S>(parts[0][i]);
      parts[1][i] = pack2<S>((rest.x - first.x) / REST, (rest.y - first.y) / REST);
    }
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++)
      *reinterpret_cast<uint2 *>(reinterpret_cast<char *>(to) + p * apart) = make_uint2(parts[p][0], parts[p][1]);
  }

  static __device__ inline float2 whole(float2 sum, uint32_t bucket) {
    if (bucket == 1) return make_float2(fmaf(REST, sum.y, sum.x), 0.0f);
    return make_float2(fmaf(REST, from(sum.x, 1), sum.x), fmaf(REST, from(sum.y, 1), sum.y));
  }
};

/* The same, with weights that are packed as experts' are (common/packed.cuh). */
template <class Math>
struct SkinnyPacked : Math {
  static constexpr bool PACKED = true;
};

/* Rows as Math has them, with weights in 8 bits, two words of which are a lane's 8 columns of a unit.
 *
 * Where weights become bf16, 2^-120 of them is multiplied, since a product of each pair with 2^120 would be a third of a consumer's instructions. A
 * lane's columns of the rows, of which there are fewer, are multiplied by 2^60, so that no product is subnormal; the scales have the other 2^60
 * (power). Powers of 2 change no bit of a sum, of rows from 2^-57 on and below 2^67. */
template <class Math>
struct SkinnyE4m3Weights : Math {
  using W = E4m3;
  static constexpr bool PACKED = true, IN_F16 = IS_HALF<typename Math::S>;
  static constexpr float LARGE = 0x1p60f;

  /* What a sum of products is to be multiplied by. */
  static __device__ constexpr float power() {
    if constexpr (IN_F16) return Math::POWER;
    else return LARGE;
  }
  static __device__ inline uint4 unpacked(uint2 words) {
    if constexpr (IN_F16) {
      const uint2 a = f16_of_e4m3(words.x), b = f16_of_e4m3(words.y);
      return make_uint4(a.x, a.y, b.x, b.y);
    } else {
      return make_uint4(small_bf16_of_e4m3<0>(words.x), small_bf16_of_e4m3<2>(words.x), small_bf16_of_e4m3<0>(words.y), small_bf16_of_e4m3<2>(words.y));
    }
  }
  static __device__ inline void multiply(SkinnyTileSums &sum, uint2 first, uint2 second, const typename Math::Piece &x) {
    Math::multiply(sum, unpacked(first), unpacked(second), x);
  }
};

/* A lane's columns as weights in 8 bits have them (common/e4m3.cuh): a pair of each of a unit's four groups of 8. ldmatrix brings these from shared
 * memory: eight lanes give the addresses of one group, of all rows. */
template <class Math>
struct SkinnyE4m3 : SkinnyE4m3Weights<Math> {
  static __device__ inline uint4 piece(const typename Math::S *x) {
    uint32_t v[4];
    load_matrix_x4(v, x);
    if constexpr (!SkinnyE4m3::IN_F16) {
#pragma unroll
      for (uint32_t &pair : v) {
        const __nv_bfloat162 large = __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&pair), __float2bfloat162_rn(SkinnyE4m3::LARGE));
        pair = *reinterpret_cast<const uint32_t *>(&large);
      }
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
  }
  static __device__ inline uint32_t lane_column() { return threadIdx.x % WARP / 8 * 8; }
  static __device__ inline uint32_t lane_shared_row(uint32_t rows, uint32_t bucket) { return Math::shared_row(threadIdx.x % 8, rows, bucket); }
};

/* f32 rows that become bf16x3 in registers, which each lane reads itself. */
template <>
struct SkinnyE4m3<SkinnyBf16x3> : SkinnyE4m3Weights<SkinnyBf16x3> {
  static __device__ inline Piece piece(const S *x) {
    auto large = [](const S *x) { return make_float4(x[0] * LARGE, x[1] * LARGE, x[8] * LARGE, x[9] * LARGE); };
    return {large(x), large(x + 16)};
  }
  static __device__ inline uint32_t lane_column() { return threadIdx.x % 4 * 2; }
};

/* acc += a warp's sums of a stage. All kernels add them in this order. */
template <class Math>
__device__ inline void skinny_add_up(SkinnyTileSums &acc, const SkinnyTileSums (&sums)[Math::SUMS]) {
#pragma unroll
  for (uint32_t i = 0; i < Math::SUMS; i++) acc += sums[i];
}

/* The same of weights in 8 bits, times the scales of this lane's weight rows. */
template <class Math>
__device__ inline void skinny_add_up(SkinnyTileSums &acc, const SkinnyTileSums (&sums)[Math::SUMS], const float (&scale)[SKINNY_TILE_RUNS]) {
  SkinnyTileSums all;
  skinny_add_up<Math>(all, sums);
#pragma unroll
  for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
    const float by = scale[run] * Math::power();
    acc.run[run].x = fmaf(all.run[run].x, by, acc.run[run].x), acc.run[run].y = fmaf(all.run[run].y, by, acc.run[run].y);
  }
}

/* Makes sums of batch rows of the sums of their parts. */
template <class Math>
__device__ inline SkinnyTileSums skinny_whole(SkinnyTileSums sums, uint32_t bucket) {
#pragma unroll
  for (uint32_t i = 0; i < SKINNY_TILE_RUNS; i++) sums.run[i] = Math::whole(sums.run[i], bucket);
  return sums;
}

/* The first of the two batch rows whose sums a lane has (SkinnyTileSums). */
__device__ inline uint32_t skinny_sum_row() { return threadIdx.x % WARP % 4 * 2; }

/* What a lane multiplies of its batch row in one stage: 8 columns of each of its warp's units. They are held in registers, so that
 * they are read once for all tiles. Else they would be a third of all that a product reads of shared memory. */
template <class Math, bool HELD = Math::HELD>
struct SkinnyColumns {
  typename Math::Piece pieces[SKINNY_UNITS];

  /* Loads them; the stage's first column is at `x`. Columns past `k_here` are zeros, and so are all of a row that is not `there`. */
  __device__ inline void load(const typename Math::S *x, uint32_t k_here, bool there) {
#pragma unroll
    for (uint32_t u = 0; u < SKINNY_UNITS; u++)
      pieces[u] = there && skinny_unit_at(u) < k_here ? Math::piece(x + skinny_unit_at(u) + Math::lane_column()) : typename Math::Piece{};
  }

  /* Past the end of a row it is zeros already, whether or not the unit is `there`. */
  __device__ inline typename Math::Piece piece(uint32_t u, bool) const { return pieces[u]; }
};

/* f32 rows would take too many registers, so they stay in shared memory. */
template <class Math>
struct SkinnyColumns<Math, false> {
  const typename Math::S *x;

  __device__ inline void load(const typename Math::S *from, uint32_t, bool) { x = from + Math::lane_column(); }

  /* Past the end of a row shared memory may hold what is not a number, so a unit that is not `there` is zeros. */
  __device__ inline typename Math::Piece piece(uint32_t u, bool there) const {
    return there ? Math::piece(x + skinny_unit_at(u)) : typename Math::Piece{};
  }
};

/* ---- sums of a tile -------------------------------------------------------------------------- */

/* Where the sums of the consumer warps are added up: PLACES times, so that a tile's sums may be read while the next one's are written.
 * [PLACES][warps][rows][TG_SKINNY_SUM_PITCH], weight rows innermost.
 *
 * With LOOSE (weights in 8 bits) the warps do not meet for each tile: each arrives at a barrier, and waits for the others as it puts its next
 * sums. So one may be a tile ahead. A tile's sums are read behind the next one's put(), or behind wait(). A warp that reads them at once is late with
 * its own share of the next tile, whose reader waits for it: each tile takes longer by the time that a reader takes. Sums that are read a tile later
 * need a third place, since a warp that is ahead already writes those of the tile after the next. */
template <bool LOOSE>
struct SkinnySums {
  static constexpr uint32_t PLACES = LOOSE ? TG_SKINNY_LOOSE_SUM_PLACES : 2;

  float *memory;
  uint32_t rows;
  uint64_t *barrier = nullptr;  /* with LOOSE: a phase for each tile */
  uint32_t turn = 0;            /* the last tile's place; with LOOSE, tiles so far */
  uint32_t place = 0;           /* with LOOSE: the last tile's */

  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t rows) {
    return PLACES * SKINNY_CONSUMER_WARPS * rows * TG_SKINNY_SUM_PITCH * sizeof(float);
  }

  /* By one thread, ahead of the pipeline's init(). */
  __device__ inline void init() {
    if constexpr (LOOSE) barrier_init(barrier, SKINNY_CONSUMER_WARPS);
  }

  /* With LOOSE, this thread's number among those that read the next tile's sums, of which each warp has the first ones by turns. */
  __device__ inline uint32_t reader() const { return (threadIdx.x + turn * WARP) % SKINNY_CONSUMERS; }

  /* All consumers: store a tile's sums. Then get() may be called; with LOOSE of the tile before, and of this one after wait(). */
  __device__ inline void put(const SkinnyTileSums &sums) {
    if constexpr (LOOSE) {
      barrier_wait(barrier, turn % 2 ^ 1);  /* all have put the tile before, and read the one whose place this is */
      turn++, place = place + 1 == PLACES ? 0 : place + 1;
    } else {
      turn ^= 1;
    }
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = skinny_sum_row();
    float *to = memory + (((LOOSE ? place : turn) * SKINNY_CONSUMER_WARPS + warp) * rows + r) * TG_SKINNY_SUM_PITCH + lane / 4;
#pragma unroll
    for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
      if (r < rows) to[run * SKINNY_STAGE_ROWS] = sums.run[run].x;
      if (r + 1 < rows) to[TG_SKINNY_SUM_PITCH + run * SKINNY_STAGE_ROWS] = sums.run[run].y;
    }
    if constexpr (LOOSE) {
      __syncwarp();
      if (lane == 0) barrier_arrive(barrier);
    } else {
      consumers_meet();
    }
  }

  /* Waits for all warps' sums of the last tile. */
  __device__ inline void wait() const {
    if constexpr (LOOSE) barrier_wait(barrier, turn % 2 ^ 1);
  }

  /* The product of weight row n and batch row r of the last tile, or with LOOSE of the tile `before` it. */
  __device__ inline float get(uint32_t r, uint32_t n, bool before = false) const {
    const uint32_t at = !LOOSE ? turn : !before ? place : place == 0 ? PLACES - 1 : place - 1;
    const float *from = memory + at * SKINNY_CONSUMER_WARPS * rows * TG_SKINNY_SUM_PITCH + r * TG_SKINNY_SUM_PITCH + n;
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < SKINNY_CONSUMER_WARPS; w++) sum += from[w * rows * TG_SKINNY_SUM_PITCH];
    return sum;
  }
};

/* ---- entries ----------------------------------------------------------------------------------- */

/* tg_skinny_NAME(ARGS a), a kernel of SKINNY_THREADS threads with a pipeline of weights, which takes more than half of an SM's shared
 * memory: one block an SM. Its body comes last. */
#define SKINNY_KERNEL(NAME, ARGS, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(SKINNY_THREADS, 1) tg_skinny_##NAME( \
      const __grid_constant__ ARGS a) {                                                         \
    __VA_ARGS__                                                                                 \
  }

/* ENTRY(suffix of the name, Math) for each kind of rows and weights. bf16_e4m3_f16x2 is not among them, since tg_skinny_out_* has none. */
#define FOR_SKINNY_TYPES(ENTRY)                   \
  OF_BF16(ENTRY(bf16, SkinnyHalf<__nv_bfloat16>)) \
  OF_F16(ENTRY(f16, SkinnyHalf<__half>))          \
  OF_F32(ENTRY(f32, SkinnyBf16x3) ENTRY(f32_bf16x3, SkinnyBf16x3Rows)) \
  OF_BF16_E4M3(ENTRY(bf16_e4m3, SkinnyE4m3<SkinnyHalf<__nv_bfloat16>>)) \
  OF_F32_E4M3(ENTRY(f32_e4m3, SkinnyE4m3<SkinnyBf16x3>) ENTRY(f32_e4m3_bf16x3, SkinnyE4m3<SkinnyBf16x3Rows>))
