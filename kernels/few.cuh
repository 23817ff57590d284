/* few.cuh: matrix products of few rows, at most FEW_ROWS, at the speed of memory: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Every weight is read once and takes part in R multiplications, so that all that counts is to keep the memory busy,
 * above all while a kernel waits for the one before it. A block has a ring of stages in shared memory. One warp, the
 * producer, fills it with bulk copies, which need no registers: FEW_OUTPUTS weight rows by FEW_K of K a stage. Weights
 * depend on no kernel, so the ring is full before griddepcontrol.wait; and since a block takes a third of an SM, the
 * rings of two kernels fill while a third one runs. The other warps, the consumers, multiply with mma.sync: weight rows
 * are the M operand (16), batch rows the N operand (8), straight from the ring: a lane takes 16 bytes of a weight row
 * and the same columns of a batch row, so the k of an instruction are not in order of k, but alike on both sides.
 *
 * Consumer warp w has the pieces w, w + FEW_CONSUMER_WARPS, ... of FEW_UNIT of K of each stage; the sums of all warps
 * meet in shared memory, in the order of the warps. So the order of every sum follows from K alone, and a row's bits
 * depend neither on the rows beside it nor on where it lies.
 *
 * Blocks take the tiles of a grid-stride loop, as many blocks as the launcher says. Needs sm_90.
 *
 * N may be anything, K is a multiple of 32. Every array starts on 16 bytes.
 */
#ifndef TAILGRAPH_FEW_CUH
#define TAILGRAPH_FEW_CUH

#include "common.cuh"
#include "mma.cuh"
#include "norm.cuh"
#include "pdl.cuh"

constexpr uint32_t FEW_ROWS = 8;       /* of a batch, at most: the N of an instruction */
constexpr uint32_t FEW_OUTPUTS = 16;   /* weight rows of a tile: its M */
#ifndef FEW_K_OF
#define FEW_K_OF 512
#endif
constexpr uint32_t FEW_K = FEW_K_OF;   /* of a stage */
constexpr uint32_t FEW_UNIT = 32;      /* of K: two instructions, 16 bytes of a 16-bit weight row in each of 4 lanes */
constexpr int FEW_CONSUMER_WARPS = 8;
constexpr int FEW_CONSUMERS = FEW_CONSUMER_WARPS * WARP;
constexpr int FEW_THREADS = FEW_CONSUMERS + WARP;
constexpr uint32_t FEW_MOST_STAGES = 16;
constexpr uint32_t FEW_SUM_PITCH = FEW_OUTPUTS + 4;  /* spreads the banks of a warp's sums */

/* Where a row of shared memory ends and the next begins: so that the 8 lanes that are served together, 4 pieces of 16
 * bytes (32 of f32) of each of two rows, meet in no bank. */
template <typename T>
__host__ __device__ constexpr uint32_t few_pitch(uint32_t elements) {
  const uint32_t bytes = elements * sizeof(T), want = sizeof(T) == 2 ? 64 : 16;
  return bytes + (want + 128 - bytes % 128) % 128;
}

/* ---- barriers and bulk copies ---------------------------------------------------------------- */

__device__ inline void barrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ inline void barrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

__device__ inline void barrier_wait(uint64_t *barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

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

/* `bytes` (a multiple of 16) from global to shared memory, counted off `barrier` as they arrive. */
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}

__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

/* All consumers, and nobody else. */
__device__ inline void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(FEW_CONSUMERS) : "memory"); }

/* ---- products of one unit, for one warp ------------------------------------------------------ */

/* Rows and weights of the same 16-bit type. */
template <typename T>
struct FewHalf {
  using X = T;
  using W = T;

  /* acc[16,8] += w[16,FEW_UNIT] x[8,FEW_UNIT]^T: `w` and `w8` are this lane's 16 bytes of weight rows g and g + 8, `x`
   * its 8 columns of batch row g. */
  static __device__ inline void multiply(float (&acc)[4], uint4 w, uint4 w8, const X *x) {
    const uint4 v = *reinterpret_cast<const uint4 *>(x);
    mma<T>(acc, {w.x, w8.x, w.y, w8.y}, v.x, v.y);
    mma<T>(acc, {w.z, w8.z, w.w, w8.w}, v.z, v.w);
  }
};

/* f32 rows, bf16 weights: three passes over parts of the rows, as SplitMath of linear.cuh, and as there with sums of
 * their own that are added with rounding. */
struct FewSplit {
  using X = float;
  using W = __nv_bfloat16;

  static __device__ inline void split(float2 v, uint32_t (&parts)[3]) {
#pragma unroll
    for (int p = 0; p < 3; p++) {
      __nv_bfloat162 rounded = __float22bfloat162_rn(v);
      parts[p] = *reinterpret_cast<uint32_t *>(&rounded);
      float2 back = __bfloat1622float2(rounded);
      v = make_float2(v.x - back.x, v.y - back.y);
    }
  }

  static __device__ inline void multiply(float (&acc)[4], uint4 w, uint4 w8, const X *x) {
    const float4 lo = load4(x), hi = load4(x + 4);
    uint32_t b[4][3];
    split(make_float2(lo.x, lo.y), b[0]);
    split(make_float2(lo.z, lo.w), b[1]);
    split(make_float2(hi.x, hi.y), b[2]);
    split(make_float2(hi.z, hi.w), b[3]);
    float sum[4] = {};
#pragma unroll
    for (int p = 2; p >= 0; p--) {
      mma<W>(sum, {w.x, w8.x, w.y, w8.y}, b[0][p], b[1][p]);
      mma<W>(sum, {w.z, w8.z, w.w, w8.w}, b[2][p], b[3][p]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) acc[i] += sum[i];
  }
};

/* ---- the ring -------------------------------------------------------------------------------- */

/* A stage: FEW_OUTPUTS weight rows at few_pitch<W>(FEW_K) and, where rows travel with their weights, `x_rows` batch
 * rows at few_pitch<X>(FEW_K) behind them. */
template <class Math>
struct FewRing {
  using W = typename Math::W;
  using X = typename Math::X;
  static constexpr uint32_t W_PITCH = few_pitch<W>(FEW_K), X_PITCH = few_pitch<X>(FEW_K);

  char *stages;
  uint64_t *full, *empty;  /* [FEW_MOST_STAGES] each */
  uint32_t stage_bytes, count;
  uint32_t at = 0, parity = 0;

  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t x_rows) {
    return FEW_OUTPUTS * W_PITCH + x_rows * X_PITCH;
  }

  __device__ inline FewRing(void *memory, uint64_t *barriers, uint32_t x_rows, uint32_t stages_)
      : stages(static_cast<char *>(memory)), full(barriers), empty(barriers + FEW_MOST_STAGES),
        stage_bytes(bytes_of(x_rows)), count(stages_) {}

  /* One thread, before all others use the ring. */
  __device__ inline void init() {
    for (uint32_t s = 0; s < count; s++) barrier_init(full + s, 1), barrier_init(empty + s, FEW_CONSUMER_WARPS);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  __device__ inline char *stage() const { return stages + at * stage_bytes; }
  __device__ inline X *stage_x(uint32_t row) const {
    return reinterpret_cast<X *>(stage() + FEW_OUTPUTS * W_PITCH + row * X_PITCH);
  }

  __device__ inline void next() {
    if (++at == count) at = 0, parity ^= 1;
  }

  /* The producer: `k_here` columns of the weight rows at `from`, lane l's being row l's or null, and room for
   * `x_bytes` more. The stage has to be empty first. */
  __device__ inline void fill(const W *from, uint32_t k_here, uint32_t x_bytes, uint64_t policy) {
    const uint32_t lane = threadIdx.x % WARP, bytes = k_here * sizeof(W);
    barrier_wait(empty + at, parity ^ 1);
    const uint32_t rows = __popc(__ballot_sync(0xffffffffu, from != nullptr));
    if (lane == 0) barrier_arrive_expecting(full + at, rows * bytes + x_bytes);
    __syncwarp();
    if (from) bulk_copy(stage() + lane * W_PITCH, from, bytes, full + at, policy);
  }

  /* A consumer warp: acc += this warp's units of the stage, x being batch row g's, its column 0 that of the stage. */
  __device__ inline void multiply(float (&acc)[4], uint32_t k_here, const X *x) const {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const char *w = stage() + lane / 4 * W_PITCH + lane % 4 * 16;
    x += lane % 4 * 8;
#pragma unroll 2
    for (uint32_t unit = warp; unit * FEW_UNIT < k_here; unit += FEW_CONSUMER_WARPS)
      Math::multiply(acc, *reinterpret_cast<const uint4 *>(w + unit * FEW_UNIT * sizeof(W)),
                     *reinterpret_cast<const uint4 *>(w + 8 * W_PITCH + unit * FEW_UNIT * sizeof(W)), x + unit * FEW_UNIT);
  }

  __device__ inline void wait_full() const { barrier_wait(full + at, parity); }
  /* A consumer warp is done with the stage. */
  __device__ inline void release() const {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(empty + at);
  }
};

/* ---- sums of a tile -------------------------------------------------------------------------- */

/* Where the sums of the consumer warps meet: two of them, so that a tile's may be read while the next one's are
 * written. [2][warps][rows][FEW_SUM_PITCH], weight rows innermost. */
struct FewSums {
  float *memory;
  uint32_t rows;
  uint32_t turn = 0;

  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t rows) {
    return 2 * FEW_CONSUMER_WARPS * rows * FEW_SUM_PITCH * sizeof(float);
  }

  /* All consumers; returns when all sums are there. */
  __device__ inline void put(const float (&acc)[4]) {
    turn ^= 1;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, r = lane % 4 * 2;
    float *to = memory + (turn * FEW_CONSUMER_WARPS + warp) * rows * FEW_SUM_PITCH;
    if (r < rows) to[r * FEW_SUM_PITCH + g] = acc[0], to[r * FEW_SUM_PITCH + g + 8] = acc[2];
    if (r + 1 < rows) to[(r + 1) * FEW_SUM_PITCH + g] = acc[1], to[(r + 1) * FEW_SUM_PITCH + g + 8] = acc[3];
    consumers_meet();
  }

  /* The product of weight row n of the tile and batch row r. */
  __device__ inline float get(uint32_t r, uint32_t n) const {
    const float *from = memory + turn * FEW_CONSUMER_WARPS * rows * FEW_SUM_PITCH + r * FEW_SUM_PITCH + n;
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < FEW_CONSUMER_WARPS; w++) sum += from[w * rows * FEW_SUM_PITCH];
    return sum;
  }
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Consumer warps that share one of `bucket` rows. */
__device__ inline uint32_t warps_of_row(uint32_t bucket) {
  return FEW_CONSUMER_WARPS >> (bucket > 1 ? 32 - __clz(bucket - 1) : 0);
}

/* All consumers: x[r,:] = rmsnorm(h[row_of(r),:]) at `pitch` bytes in shared memory, for r < rows of a bucket of
 * `bucket`, by which alone the sums are ordered. scratch[FEW_CONSUMER_WARPS]. x is whole when they have met. */
template <typename X, class RowOf>
__device__ inline void few_norm(char *x, uint32_t pitch, const float *h, const float *weight, float *scratch, uint32_t rows,
                                uint32_t bucket, uint32_t hidden, float eps, RowOf row_of) {
  const uint32_t warps = warps_of_row(bucket), warp = threadIdx.x / WARP, r = warp / warps;
  const uint32_t thread = threadIdx.x % (warps * WARP), step = 4 * warps * WARP;
  const float *from = h + (size_t)(r < rows ? row_of(r) : 0) * hidden;
  float squares = 0.0f;
  if (r < rows) {
#pragma unroll 8
    for (uint32_t c = 4 * thread; c < hidden; c += step) squares = add_squares(squares, load4(from + c));
  }
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  if (threadIdx.x % WARP == 0) scratch[warp] = squares;
  consumers_meet();
  if (r < rows) {
    squares = 0.0f;
    for (uint32_t w = 0; w < warps; w++) squares += scratch[r * warps + w];
    const float scale = 1.0f / sqrtf(squares / hidden + eps);
    X *to = reinterpret_cast<X *>(x + r * pitch);
#pragma unroll 4
    for (uint32_t c = 4 * thread; c < hidden; c += step)
      store4(to + c, normed(load4(from + c), scale, load4(weight + c)));
  }
  consumers_meet();
}

/* A batch row's place in an instruction's N: lanes without a row of their own repeat the last, and nobody reads what
 * comes of it. */
__device__ inline uint32_t few_lane_row(uint32_t rows) { return min(threadIdx.x % WARP / 4, rows - 1); }

/* The body of a kernel: earlier parts have no bulk copies, and the launcher gives them none of these kernels. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FEW_BODY(...)
#else
#define FEW_BODY(...) __VA_ARGS__
#endif

#endif
