/* skinny.cuh: matrix products of few rows, at most SKINNY_ROWS, at the speed of memory: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Every weight is read once and takes part in R multiplications, so that all that counts is to keep the memory busy,
 * above all while a kernel waits for the one before it. A block has a ring of stages in shared memory (skinny/ring.cuh). One warp, the
 * producer, fills it with bulk copies, which need no registers: SKINNY_STAGE_ROWS weight rows by up to SKINNY_K of K a stage, in
 * one copy where they lie together, else in a copy a row. Weights depend on no kernel, so a block asks for the first ones
 * as soon as the kernel before it leaves its SM, and has them when griddepcontrol.wait lets it go on. A copy's rows begin on
 * lines of SKINNY_LINE bytes there: copies to 64 bytes beside a line came at 3.6 TB/s in place of 4.5 on an H200
 * (profiles/log/few-rows-copies.md). The other warps, the consumers, multiply with mma.sync: weight rows are the M operand, batch rows
 * the N operand (8). A lane takes 16 bytes of a weight row, and the same columns of a batch row, so the k of an instruction
 * are not in order, but alike on both sides (skinny_mma).
 *
 * A tile is SKINNY_OUTPUTS outputs: two runs of SKINNY_STAGE_ROWS weight rows, which need not be neighbours, and which together
 * are the M of an instruction. Their stages come by turns. Blocks take tiles in a grid-stride loop, as many blocks as the
 * launcher says. Needs sm_90.
 *
 * A consumer warp has SKINNY_UNITS units of SKINNY_UNIT of K of each stage (skinny_unit_at); the sums of all warps meet in shared
 * memory, in the order of the warps. So the order of every sum follows from K alone, and a row's bits depend neither on the
 * rows beside it nor on where it lies.
 *
 * A block runs most of its code once, and code that is run once costs more time than what it computes: so loops are
 * not unrolled here unless loads would wait for each other.
 *
 * Before its wait a kernel also reads the step's descriptor: the dispatcher wrote it before the step began.
 *
 * N may be anything (of packed weights a multiple of SKINNY_STAGE_ROWS), K is a multiple of 32. Every array starts on 16 bytes.
 */
#ifndef TAILGRAPH_SKINNY_CUH
#define TAILGRAPH_SKINNY_CUH

#include "common/barrier.cuh"
#include "common/base.cuh"
#include "common/mma.cuh"
#include "common/pdl.cuh"

constexpr uint32_t SKINNY_ROWS = 8;        /* of a batch, at most */
constexpr uint32_t SKINNY_STAGE_ROWS = 8;  /* weight rows of a stage: half the M of an instruction */
constexpr uint32_t SKINNY_OUTPUTS = 16;    /* weight rows of a tile */
constexpr uint32_t SKINNY_TILE_RUNS = SKINNY_OUTPUTS / SKINNY_STAGE_ROWS;
constexpr uint32_t SKINNY_K = 2048;        /* of a stage, at most: a bulk copy takes some 80 cycles, however short */
constexpr uint32_t SKINNY_UNIT = 32;       /* of K: two instructions, 16 bytes of a 16-bit weight row in each of 4 lanes */
constexpr int SKINNY_CONSUMER_WARPS = 8;
constexpr int SKINNY_CONSUMERS = SKINNY_CONSUMER_WARPS * WARP;
constexpr int SKINNY_THREADS = SKINNY_CONSUMERS + WARP;
constexpr uint32_t SKINNY_UNITS = SKINNY_K / SKINNY_UNIT / SKINNY_CONSUMER_WARPS;  /* of a stage, for each consumer warp */
constexpr uint32_t SKINNY_SPLIT_ROWS = 2;  /* of a bucket, at most, whose f32 rows are split as they are stored */
constexpr int SKINNY_BLOCKS = 1;  /* on an SM at once: a ring takes more than half of its shared memory */
constexpr uint32_t SKINNY_MOST_STAGES = 16;
constexpr uint32_t SKINNY_LINE = 128;  /* bytes of shared memory that a bulk copy writes at once */
constexpr uint32_t SKINNY_LINE_UNITS = 2;  /* of 16-bit weights */
/* Stages on their way at once, however many a ring has: what else is read stands behind all of them. */
constexpr uint32_t SKINNY_AHEAD = 2;
/* Of in-projections, of q, k and v and of the LM head, so many stages one by one at first: their rows are wanted meanwhile. */
constexpr uint32_t SKINNY_ONE_BY_ONE = 3;
constexpr uint32_t SKINNY_SUM_PITCH = SKINNY_OUTPUTS + 4;  /* pairs of rows of a warp's sums lie in different banks */

/* K in stages of one size, whole lines where there are several: that size. */
__host__ __device__ constexpr uint32_t skinny_stage_k(uint32_t k) {
  const uint32_t stages = (k + SKINNY_K - 1) / SKINNY_K, whole = stages > 1 ? SKINNY_LINE_UNITS * SKINNY_UNIT : SKINNY_UNIT;
  return ((k + stages - 1) / stages + whole - 1) / whole * whole;
}

/* Where a row of shared memory ends and the next begins: so that the 8 lanes that are served together, 4 pieces of 16
 * bytes (32 of f32) of each of two rows, meet in no bank. */
template <typename T>
__host__ __device__ constexpr uint32_t skinny_pitch(uint32_t elements) {
  const uint32_t bytes = elements * sizeof(T), want = sizeof(T) == 2 ? 64 : 16;
  return bytes + (want + 128 - bytes % 128) % 128;
}

/* The same distance in a stage, whose weight rows bulk copies bring to lines: the two rows that are served together would meet in
 * every bank, so a warp takes of every other row the other half of a line first (SkinnyRun). */
__host__ __device__ constexpr uint32_t skinny_stage_pitch(uint32_t bytes) { return (bytes + SKINNY_LINE - 1) / SKINNY_LINE * SKINNY_LINE; }

/* Where a warp's unit u of a stage begins, or this one's: two of 16-bit weights are a line, and lines go round the warps. */
__device__ inline uint32_t skinny_unit_of(uint32_t warp, uint32_t u) {
  return ((u / SKINNY_LINE_UNITS * SKINNY_CONSUMER_WARPS + warp) * SKINNY_LINE_UNITS + u % SKINNY_LINE_UNITS) * SKINNY_UNIT;
}
__device__ inline uint32_t skinny_unit_at(uint32_t u) { return skinny_unit_of(threadIdx.x / WARP, u); }

/* Of a unit, the first of this lane's columns, 8 of them. */
__device__ inline uint32_t skinny_lane_column() { return threadIdx.x % 4 * 8; }

/* ---- loads, and where warps meet ------------------------------------------------------------- */

/* Cache lines that a step reads once leave L2 first. */
__device__ inline uint64_t read_once() {
  uint64_t policy;
#if __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#else
  policy = 0;
#endif
  return policy;
}

/* 16 bytes of weights, which nobody writes, to registers: here in the code, and past the first-level cache. */
__device__ inline uint4 read_weights(const void *from, uint64_t policy) {
  uint4 v{};  /* no kernel of an earlier part runs this */
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
#endif
  return v;
}

/* Past the first-level cache, and where it stands in the code, which a plain load need not be. */
template <typename T>
__device__ inline T load_now(const T *at) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "as values have");
  T v;
  if constexpr (sizeof(T) == 2)
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(*reinterpret_cast<uint16_t *>(&v)) : "l"(at) : "memory");
  else
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(*reinterpret_cast<uint32_t *>(&v)) : "l"(at) : "memory");
  return v;
}

/* All consumers, and nobody else. */
__device__ inline void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(SKINNY_CONSUMERS) : "memory"); }

/* Consumers and the producer, at one of some points: who waits there finds what was written by who passed it. */
constexpr int GUESS_TOLD = 2, CHOICE_TOLD = 3;
template <int POINT>
__device__ inline void skinny_wait_at() { asm volatile("bar.sync %0, %1;" ::"n"(POINT), "n"(SKINNY_THREADS) : "memory"); }
template <int POINT>
__device__ inline void skinny_pass() { asm volatile("bar.arrive %0, %1;" ::"n"(POINT), "n"(SKINNY_THREADS) : "memory"); }

/* ---- products of one unit, for one warp ------------------------------------------------------ */

/* What a warp adds up of a tile's 16 weight rows and 8 batch rows: this lane's are row g of either run, g = lane / 4, with
 * batch rows 2q and 2q + 1, q = lane % 4. */
struct SkinnyTileSums {
  float2 run[SKINNY_TILE_RUNS] = {};

  __device__ inline void operator+=(const SkinnyTileSums &other) {
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_TILE_RUNS; i++) run[i].x += other.run[i].x, run[i].y += other.run[i].y;
  }
};

/* sum += two instructions' products of a unit: this lane's 16 bytes of row g of either run, and of batch row g. */
template <typename T>
__device__ inline void skinny_mma(SkinnyTileSums &sum, uint4 first, uint4 second, uint4 x) {
  float v[4] = {sum.run[0].x, sum.run[0].y, sum.run[1].x, sum.run[1].y};
  mma<T>(v, {first.x, second.x, first.y, second.y}, x.x, x.y);
  mma<T>(v, {first.z, second.z, first.w, second.w}, x.z, x.w);
  sum.run[0] = make_float2(v[0], v[1]), sum.run[1] = make_float2(v[2], v[3]);
}

/* Rows and weights of the same 16-bit type. */
template <typename T>
struct SkinnyHalf {
  using X = T;  /* rows in global memory */
  using S = T;  /* and in shared memory, where each is PARTS rows: [PARTS, bucket, K] */
  using W = T;
  using Piece = uint4;  /* a lane's 8 columns of a batch row */
  static constexpr uint32_t PARTS = 1;
  static constexpr bool PACKED = false;   /* weights lie row after row, not as common/packed.cuh says */
  static constexpr bool HELD = true;      /* SkinnyColumns in registers */
  static constexpr uint32_t AT_ONCE = SKINNY_UNITS;  /* of a stage's units, fetched together: as registers allow */
  static constexpr uint32_t SUMS = 2;             /* units go to so many sums by turns, which are added up with rounding */

  static __device__ inline Piece piece(const S *x) { return *reinterpret_cast<const uint4 *>(x); }

  /* The batch row that a lane multiplies: at `rows` and beyond, none. */
  static __device__ inline uint32_t lane_row(uint32_t) { return threadIdx.x % WARP / 4; }

  /* Where it is in shared memory. Lanes without a row of their own repeat the last, and nobody reads what comes of it. */
  static __device__ inline uint32_t lane_place(uint32_t rows, uint32_t) { return min(threadIdx.x % WARP / 4, rows - 1); }

  /* 4 columns of a row; its parts lie `apart` bytes from each other. */
  static __device__ inline void store(S *to, uint32_t, float4 v) { store4(to, v); }

  /* Batch rows' sums, in the lanes that have the first of their parts, from those of all of their parts. */
  static __device__ inline float2 whole(float2 sum, uint32_t) { return sum; }

  /* This lane's 16 bytes of weight row g of either run, and its piece of batch row g. */
  static __device__ inline void multiply(SkinnyTileSums &sum, uint4 first, uint4 second, const Piece &x) {
    skinny_mma<T>(sum, first, second, x);
  }
};

/* f32 rows, bf16 weights. A row is the sum of three bf16 parts, exactly but for its lowest bits. The matrix units truncate as
 * they accumulate, so each part of a unit has sums of its own that are added with rounding, the smallest first. */
struct SkinnySplit {
  using X = float;
  using S = float;
  using W = __nv_bfloat16;
  struct Piece {
    float4 lo, hi;
  };
  static constexpr uint32_t PARTS = 1;
  static constexpr bool PACKED = false, HELD = false;
  static constexpr uint32_t AT_ONCE = 2, SUMS = 2;

  static __device__ inline Piece piece(const S *x) { return {load4(x), load4(x + 4)}; }
  static __device__ inline uint32_t lane_row(uint32_t bucket) { return SkinnyHalf<W>::lane_row(bucket); }
  static __device__ inline uint32_t lane_place(uint32_t rows, uint32_t bucket) { return SkinnyHalf<W>::lane_place(rows, bucket); }
  static __device__ inline void store(S *to, uint32_t, float4 v) { store4(to, v); }
  static __device__ inline float2 whole(float2 sum, uint32_t) { return sum; }

  static __device__ inline void split(float2 v, uint32_t (&parts)[3]) {
#pragma unroll
    for (int p = 0; p < 3; p++) {
      __nv_bfloat162 rounded = __float22bfloat162_rn(v);
      parts[p] = *reinterpret_cast<uint32_t *>(&rounded);
      float2 back = __bfloat1622float2(rounded);
      v = make_float2(v.x - back.x, v.y - back.y);
    }
  }

  static __device__ inline void multiply(SkinnyTileSums &sum, uint4 first, uint4 second, const Piece &x) {
    uint32_t parts[4][3];
    split(make_float2(x.lo.x, x.lo.y), parts[0]);
    split(make_float2(x.lo.z, x.lo.w), parts[1]);
    split(make_float2(x.hi.x, x.hi.y), parts[2]);
    split(make_float2(x.hi.z, x.hi.w), parts[3]);
    SkinnyTileSums of[3];
#pragma unroll
    for (int p = 0; p < 3; p++)
      skinny_mma<W>(of[p], first, second, make_uint4(parts[0][p], parts[1][p], parts[2][p], parts[3][p]));
    of[1] += of[2];
    of[0] += of[1];
    sum += of[0];
  }
};

/* Rows of f32 in three parts, of a bucket of up to SKINNY_SPLIT_ROWS: rows are split once, as they are stored, and their parts are batch rows of
 * their own, which an instruction has room for: row p * bucket + r is part p of row r. All else is as with bf16 rows. The
 * parts are a row's bits from the highest on, 8 each, so their sum is the row, exactly from 2^-110 on. Sums are of four
 * instructions, SkinnySplit's of two. */
struct SkinnySplitRows : SkinnyHalf<__nv_bfloat16> {
  using X = float;
  static constexpr uint32_t PARTS = 3;
  static constexpr uint32_t SUMS = 4;
  static_assert(PARTS * SKINNY_SPLIT_ROWS <= 8 && SKINNY_SPLIT_ROWS == 2, "the rows of an instruction; two buckets");

  /* A lane's in a bucket of 1 or 2: its part, which for the last lanes there is none of, and its row. */
  static __device__ inline uint32_t lane_part(uint32_t bucket) { return threadIdx.x % WARP / 4 >> (bucket - 1); }
  static __device__ inline uint32_t lane_row(uint32_t bucket) { return threadIdx.x % WARP / 4 & (bucket - 1); }

  static __device__ inline uint32_t lane_place(uint32_t rows, uint32_t bucket) {
    return min(lane_part(bucket), PARTS - 1) * bucket + min(lane_row(bucket), rows - 1);
  }

  /* The upper halves of two: of each 8 bits, and a sign. What is left of them stays. */
  static __device__ inline uint32_t take_upper(float &lo, float &hi) {
    const uint32_t pair = __byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x7632);
    lo -= __uint_as_float(pair << 16), hi -= __uint_as_float(pair & 0xffff0000u);
    return pair;
  }

  static __device__ inline void store(S *to, uint32_t apart, float4 v) {
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++)
      *reinterpret_cast<uint2 *>(reinterpret_cast<char *>(to) + p * apart) =
          make_uint2(take_upper(v.x, v.y), take_upper(v.z, v.w));
  }

  /* The smallest first: of a bucket of 1 a lane has two parts, of 2 a part of both rows. */
  static __device__ inline float2 whole(float2 sum, uint32_t bucket) {
    auto from = [](float v, int lanes) { return __shfl_down_sync(0xffffffffu, v, lanes); };
    if (bucket == 1) return make_float2(sum.x + (sum.y + from(sum.x, 1)), 0.0f);
    return make_float2(sum.x + (from(sum.x, 1) + from(sum.x, 2)), sum.y + (from(sum.y, 1) + from(sum.y, 2)));
  }
};

/* With weights that lie as experts' do. */
template <class Math>
struct SkinnyPacked : Math {
  static constexpr bool PACKED = true;
};

/* acc += a warp's sums of a stage's units, in an order of their own: of all kernels the same. */
template <class Math>
__device__ inline void skinny_add_up(SkinnyTileSums &acc, const SkinnyTileSums (&sums)[Math::SUMS]) {
#pragma unroll
  for (uint32_t i = 0; i < Math::SUMS; i++) acc += sums[i];
}

/* Sums of batch rows in place of sums of their parts. */
template <class Math>
__device__ inline SkinnyTileSums skinny_whole(SkinnyTileSums sums, uint32_t bucket) {
#pragma unroll
  for (uint32_t i = 0; i < SKINNY_TILE_RUNS; i++) sums.run[i] = Math::whole(sums.run[i], bucket);
  return sums;
}

/* The first of the two batch rows whose sums a lane has (SkinnyTileSums). */
__device__ inline uint32_t skinny_sum_row() { return threadIdx.x % WARP % 4 * 2; }

/* What a lane multiplies of its batch row in one stage: 8 columns of each unit of its warp. In registers, so that they are
 * read once for all tiles: else they would be a third of what a product reads of shared memory. */
template <class Math, bool HELD = Math::HELD>
struct SkinnyColumns {
  typename Math::Piece pieces[SKINNY_UNITS];

  /* From the stage's first column at `x` on, `k_here` of them; zeros past these, and all unless the row is `there`. */
  __device__ inline void load(const typename Math::S *x, uint32_t k_here, bool there) {
#pragma unroll
    for (uint32_t u = 0; u < SKINNY_UNITS; u++)
      pieces[u] = there && skinny_unit_at(u) < k_here ? Math::piece(x + skinny_unit_at(u) + skinny_lane_column()) : typename Math::Piece{};
  }

  /* Zeros past a short row, whether or not the unit is `there`. */
  __device__ inline typename Math::Piece piece(uint32_t u, bool) const { return pieces[u]; }
};

/* f32 rows are more than there are registers, so they stay in shared memory; what is not there was cleared in it. */
template <class Math>
struct SkinnyColumns<Math, false> {
  const typename Math::S *x;

  __device__ inline void load(const typename Math::S *from, uint32_t, bool) { x = from + skinny_lane_column(); }

  /* Past a short row lies what may not be a number. */
  __device__ inline typename Math::Piece piece(uint32_t u, bool there) const {
    return there ? Math::piece(x + skinny_unit_at(u)) : typename Math::Piece{};
  }
};

/* ---- sums of a tile -------------------------------------------------------------------------- */

/* Where the sums of the consumer warps meet: two of them, so that a tile's may be read while the next one's are
 * written. [2][warps][rows][SKINNY_SUM_PITCH], weight rows innermost. */
struct SkinnySums {
  float *memory;
  uint32_t rows;
  uint32_t turn = 0;

  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t rows) {
    return 2 * SKINNY_CONSUMER_WARPS * rows * SKINNY_SUM_PITCH * sizeof(float);
  }

  /* All consumers: the sums of a tile. When they have met all are there. */
  __device__ inline void put(const SkinnyTileSums &sums) {
    turn ^= 1;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = skinny_sum_row();
    float *to = memory + ((turn * SKINNY_CONSUMER_WARPS + warp) * rows + r) * SKINNY_SUM_PITCH + lane / 4;
#pragma unroll
    for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
      if (r < rows) to[run * SKINNY_STAGE_ROWS] = sums.run[run].x;
      if (r + 1 < rows) to[SKINNY_SUM_PITCH + run * SKINNY_STAGE_ROWS] = sums.run[run].y;
    }
    consumers_meet();
  }

  /* The product of weight row n of the tile and batch row r. */
  __device__ inline float get(uint32_t r, uint32_t n) const {
    const float *from = memory + turn * SKINNY_CONSUMER_WARPS * rows * SKINNY_SUM_PITCH + r * SKINNY_SUM_PITCH + n;
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < SKINNY_CONSUMER_WARPS; w++) sum += from[w * rows * SKINNY_SUM_PITCH];
    return sum;
  }
};

/* The body of a kernel: earlier parts have no bulk copies, and the launcher gives them none of these kernels. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SKINNY_BODY(...)
#else
#define SKINNY_BODY(...) __VA_ARGS__
#endif

#endif
