/* wgmma.cuh: what only sm_90a has: matrix instructions of four warps on operands in shared memory, and the copy engine
 * that brings tiles of a tensor there. Elsewhere these functions do nothing, and no kernel that uses them is launched.
 *
 * wgmma m64nNk16: D[64,N] += A[64,16] B[N,16]^T, f32 accumulators. Both operands lie in shared memory as rows of 128
 * bytes (64 elements along k), 8 rows to 1024 bytes, their 16-byte pieces swizzled: piece p of row r is at p ^ (r % 8).
 * Warp w of the four has rows 16 w .. 16 w + 15 of D; of lane l, with g = l / 4 and q = l % 4:
 *   d[4 j + 0], d[4 j + 1] = D[16 w + g][8 j + 2 q], [8 j + 2 q + 1];  d[4 j + 2], d[4 j + 3] = D[16 w + g + 8][...]
 */
#ifndef TAILGRAPH_WGMMA_CUH
#define TAILGRAPH_WGMMA_CUH

#include "mma.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TAILGRAPH_HAS_WGMMA 1
#else
#define TAILGRAPH_HAS_WGMMA 0
#endif

constexpr uint32_t SWIZZLED_ROW_BYTES = 128;
constexpr uint32_t SWIZZLED_ROW_ELEMENTS = 64;   /* of 16 bits */
constexpr uint32_t SWIZZLED_ALIGN_BYTES = 1024;  /* 8 rows: where an operand may start */

/* Where 16-byte piece `piece` of row `row` of a swizzled operand lies. */
__device__ inline uint32_t swizzled(uint32_t row, uint32_t piece) {
  return row * SWIZZLED_ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

/* An operand at a shared-memory address, which for k > 0 is 2 k bytes into the first row: 8 rows a kilobyte. */
__device__ inline uint64_t operand_at(uint32_t address) {
  constexpr uint64_t SWIZZLE_128 = 1ull << 62, GROUP_STRIDE = (uint64_t)(SWIZZLED_ALIGN_BYTES >> 4) << 32;
  return SWIZZLE_128 | GROUP_STRIDE | 1ull << 16 | (address & 0x3ffff) >> 4;
}

/* Before the first instruction on accumulators that ordinary code has touched. */
__device__ inline void wgmma_fence() {
#if TAILGRAPH_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void wgmma_commit() {
#if TAILGRAPH_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Until at most PENDING committed groups are under way. */
template <int PENDING>
__device__ inline void wgmma_wait() {
#if TAILGRAPH_HAS_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

/* What ordinary stores put into shared memory may be read by the matrix units and the copy engine afterwards. */
__device__ inline void publish_to_async_proxy() {
#if TAILGRAPH_HAS_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#define WGMMA_OUT4(D, I) "+f"(D[I]), "+f"(D[I + 1]), "+f"(D[I + 2]), "+f"(D[I + 3])
#define WGMMA_OUT16(D, I) WGMMA_OUT4(D, I), WGMMA_OUT4(D, I + 4), WGMMA_OUT4(D, I + 8), WGMMA_OUT4(D, I + 12)
#define WGMMA_0_3 "%0,%1,%2,%3"
#define WGMMA_4_7 "%4,%5,%6,%7"
#define WGMMA_8_15 "%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_16_31 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_32_47 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"

/* A, B and "accumulate, not overwrite" are the three operands after the accumulators. */
#define WGMMA(N, TYPES, REGISTERS, A, B, SCALE, ...)                                                            \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " SCALE ", 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" REGISTERS "}, " A ", " B           \
               ", accumulate, 1, 1, 0, 0;\n}\n"                                                                 \
               : __VA_ARGS__                                                                                    \
               : "l"(a), "l"(b), "r"(accumulate))

#define WGMMA_FOR(T, TYPES)                                                                                      \
  template <>                                                                                                    \
  __device__ inline void wgmma<T, 8>(float (&d)[4], uint64_t a, uint64_t b, int accumulate) {                   \
    WGMMA(8, TYPES, WGMMA_0_3, "%4", "%5", "%6", WGMMA_OUT4(d, 0));                                              \
  }                                                                                                              \
  template <>                                                                                                    \
  __device__ inline void wgmma<T, 16>(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {                  \
    WGMMA(16, TYPES, WGMMA_0_3 "," WGMMA_4_7, "%8", "%9", "%10", WGMMA_OUT4(d, 0), WGMMA_OUT4(d, 4));            \
  }                                                                                                              \
  template <>                                                                                                    \
  __device__ inline void wgmma<T, 32>(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {                 \
    WGMMA(32, TYPES, WGMMA_0_3 "," WGMMA_4_7 "," WGMMA_8_15, "%16", "%17", "%18", WGMMA_OUT16(d, 0));            \
  }                                                                                                              \
  template <>                                                                                                    \
  __device__ inline void wgmma<T, 64>(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {                 \
    WGMMA(64, TYPES, WGMMA_0_3 "," WGMMA_4_7 "," WGMMA_8_15 "," WGMMA_16_31, "%32", "%33", "%34",                \
          WGMMA_OUT16(d, 0), WGMMA_OUT16(d, 16));                                                                \
  }

/* D += A B, or D = A B where `accumulate` is 0; asynchronous, for all four warps of a warpgroup alike. */
template <typename T, int N>
__device__ inline void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate);

#if TAILGRAPH_HAS_WGMMA
WGMMA_FOR(__nv_bfloat16, "bf16.bf16")
WGMMA_FOR(__half, "f16.f16")

template <>
__device__ inline void wgmma<__nv_bfloat16, 24>(float (&d)[12], uint64_t a, uint64_t b, int accumulate) {
  WGMMA(24, "bf16.bf16", WGMMA_0_3 "," WGMMA_4_7 ",%8,%9,%10,%11", "%12", "%13", "%14", WGMMA_OUT4(d, 0),
        WGMMA_OUT4(d, 4), WGMMA_OUT4(d, 8));
}

template <>
__device__ inline void wgmma<__nv_bfloat16, 48>(float (&d)[24], uint64_t a, uint64_t b, int accumulate) {
  WGMMA(48, "bf16.bf16", WGMMA_0_3 "," WGMMA_4_7 "," WGMMA_8_15 ",%16,%17,%18,%19,%20,%21,%22,%23", "%24", "%25",
        "%26", WGMMA_OUT16(d, 0), WGMMA_OUT4(d, 16), WGMMA_OUT4(d, 20));
}

template <>
__device__ inline void wgmma<__nv_bfloat16, 96>(float (&d)[48], uint64_t a, uint64_t b, int accumulate) {
  WGMMA(96, "bf16.bf16", WGMMA_0_3 "," WGMMA_4_7 "," WGMMA_8_15 "," WGMMA_16_31 "," WGMMA_32_47, "%48", "%49",
        "%50", WGMMA_OUT16(d, 0), WGMMA_OUT16(d, 16), WGMMA_OUT16(d, 32));
}
#else
template <typename T, int N>
__device__ inline void wgmma(float (&)[N / 2], uint64_t, uint64_t, int) {}
#endif

/* ---- the copy engine ------------------------------------------------------------------------- */

/* A tensor that the copy engine reads: a CUtensorMap, 128 bytes that the host encoded. */
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/* One box of a tensor of five dimensions, from `at` on, innermost first, to shared memory; its bytes are counted off
 * `barrier`. What lies outside the tensor comes as zeros. */
__device__ inline void copy_box(void *to, const TensorMap *tensor, uint64_t *barrier, const uint32_t (&at)[5],
                                uint64_t policy) {
#if TAILGRAPH_HAS_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
      "l"(tensor), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "l"(policy)
      : "memory");
#endif
}

#endif
