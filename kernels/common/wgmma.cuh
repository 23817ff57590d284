/* wgmma.cuh: the matrix instructions of sm_90a that four warps issue together, which read both operands from shared memory
 * (common/operands.cuh), the tensor copies that bring these there, and clusters.
 *
 * wgmma m64nNk16: D[64,N] += A[64,16] B[N,16]^T, f32 accumulators. Of a warpgroup, lane l of warp w, with g = l / 4 and
 * q = l % 4, has in d[4 j ..]: D[16 w + g][8 j + 2 q], D[16 w + g][8 j + 2 q + 1], and the same two of row 16 w + g + 8.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_WGMMA_CUH
#define TAILGRAPH_WGMMA_CUH

#include "common/barrier.cuh"
#include "common/operands.cuh"

/* A value that stays in its register: the compiler would rather compute a shared_address() anew, or take a pointer apart again. */
__device__ inline uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <typename T>
__device__ inline T *kept(T *value) {
  asm volatile("" : "+l"(value));
  return value;
}

/* All threads of a warpgroup have so many registers from here on: fewer, or more that other warpgroups have given. */
template <uint32_t REGISTERS>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <uint32_t REGISTERS>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* 2^v, flushed to 0 where it would be subnormal. */
__device__ inline float power_of_two(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}

/* Before the first instruction, and whenever accumulators were written otherwise. */
__device__ inline void gmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void gmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most PENDING of this warpgroup's groups are unfinished. */
template <int PENDING>
__device__ inline void gmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps what is done with accumulators from moving over the waits around it. */
template <int N>
__device__ inline void gmma_settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Keeps an operand's registers until here, and what writes them from moving before. */
__device__ inline void gmma_settle(uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[i])::"memory");
}

/* d = A B^T of two gmma_operand()s, added to what d was if `add`. N is a multiple of 8 up to 128, or 192 or 256. */
template <typename T, int N>
__device__ inline void gmma(float (&d)[N / 2], uint32_t a, uint32_t b, bool add);

/* GMMA_n(TEXT) names d[0 .. n / 2 - 1] in an instruction's text, GMMA_n(DATA) among the operands of its asm. */
#define GMMA_TEXT(i, j, k, l) "%" #i ", %" #j ", %" #k ", %" #l
#define GMMA_DATA(i, j, k, l) "+f"(d[i]), "+f"(d[j]), "+f"(d[k]), "+f"(d[l])
#define GMMA_AND_TEXT ", "
#define GMMA_AND_DATA ,
#define GMMA_8(F) GMMA_##F(0, 1, 2, 3)
#define GMMA_16(F) GMMA_8(F) GMMA_AND_##F GMMA_##F(4, 5, 6, 7)
#define GMMA_24(F) GMMA_16(F) GMMA_AND_##F GMMA_##F(8, 9, 10, 11)
#define GMMA_32(F) GMMA_24(F) GMMA_AND_##F GMMA_##F(12, 13, 14, 15)
#define GMMA_40(F) GMMA_32(F) GMMA_AND_##F GMMA_##F(16, 17, 18, 19)
#define GMMA_48(F) GMMA_40(F) GMMA_AND_##F GMMA_##F(20, 21, 22, 23)
#define GMMA_56(F) GMMA_48(F) GMMA_AND_##F GMMA_##F(24, 25, 26, 27)
#define GMMA_64(F) GMMA_56(F) GMMA_AND_##F GMMA_##F(28, 29, 30, 31)
#define GMMA_72(F) GMMA_64(F) GMMA_AND_##F GMMA_##F(32, 33, 34, 35)
#define GMMA_80(F) GMMA_72(F) GMMA_AND_##F GMMA_##F(36, 37, 38, 39)
#define GMMA_88(F) GMMA_80(F) GMMA_AND_##F GMMA_##F(40, 41, 42, 43)
#define GMMA_96(F) GMMA_88(F) GMMA_AND_##F GMMA_##F(44, 45, 46, 47)
#define GMMA_104(F) GMMA_96(F) GMMA_AND_##F GMMA_##F(48, 49, 50, 51)
#define GMMA_112(F) GMMA_104(F) GMMA_AND_##F GMMA_##F(52, 53, 54, 55)
#define GMMA_120(F) GMMA_112(F) GMMA_AND_##F GMMA_##F(56, 57, 58, 59)
#define GMMA_128(F) GMMA_120(F) GMMA_AND_##F GMMA_##F(60, 61, 62, 63)
#define GMMA_160(F) GMMA_128(F) GMMA_AND_##F GMMA_##F(64, 65, 66, 67) GMMA_AND_##F GMMA_##F(68, 69, 70, 71) \
  GMMA_AND_##F GMMA_##F(72, 73, 74, 75) GMMA_AND_##F GMMA_##F(76, 77, 78, 79)
#define GMMA_192(F) GMMA_160(F) GMMA_AND_##F GMMA_##F(80, 81, 82, 83) GMMA_AND_##F GMMA_##F(84, 85, 86, 87) \
  GMMA_AND_##F GMMA_##F(88, 89, 90, 91) GMMA_AND_##F GMMA_##F(92, 93, 94, 95)
#define GMMA_224(F) GMMA_192(F) GMMA_AND_##F GMMA_##F(96, 97, 98, 99) GMMA_AND_##F GMMA_##F(100, 101, 102, 103) \
  GMMA_AND_##F GMMA_##F(104, 105, 106, 107) GMMA_AND_##F GMMA_##F(108, 109, 110, 111)
#define GMMA_256(F) GMMA_224(F) GMMA_AND_##F GMMA_##F(112, 113, 114, 115) GMMA_AND_##F GMMA_##F(116, 117, 118, 119) \
  GMMA_AND_##F GMMA_##F(120, 121, 122, 123) GMMA_AND_##F GMMA_##F(124, 125, 126, 127)

/* d = a B^T as well, of a[64,16] in registers: this lane's pairs of columns 2 q and 2 q + 1 of rows g and g + 8 of its warp's 16, then those of
 * columns 8 further. Nothing may write them before the instruction has ended. */
template <typename T, int N>
__device__ inline void gmma(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b, bool add);

/* I to VI are the numbers of the operands behind d. Weights in 8 bits, which become values in registers, are multiplied as bf16. */
#define GMMA(N, I, II, III, IV, V, VI)                                                                        \
  GMMA_OF(N, __nv_bfloat16, "bf16", I, II, III)                                                               \
  GMMA_OF(N, __half, "f16", I, II, III)                                                                       \
  template <>                                                                                                 \
  __device__ inline void gmma<__nv_bfloat16, N>(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b, bool add) { \
    constexpr uint64_t HIGH = (uint64_t)GMMA_OPERAND_HIGH << 32;                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #VI ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
                 "k16.f32.bf16.bf16 {" GMMA_##N(TEXT) "}, {%" #I ", %" #II ", %" #III ", %" #IV "}, %" #V     \
                 ", add, 1, 1, 0;\n}\n"                                                                       \
                 : GMMA_##N(DATA) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(HIGH | b), "r"((int)add)); \
  }
#define GMMA_OF(N, T, NAME, A, B, ADD)                                                                        \
  template <>                                                                                                 \
  __device__ inline void gmma<T, N>(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) {                    \
    constexpr uint64_t HIGH = (uint64_t)GMMA_OPERAND_HIGH << 32;                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N   \
                 "k16.f32." NAME "." NAME " {" GMMA_##N(TEXT) "}, %" #A ", %" #B ", add, 1, 1, 0, 0;\n}\n"    \
                 : GMMA_##N(DATA) : "l"(HIGH | a), "l"(HIGH | b), "r"((int)add));                             \
  }
/* Rows a and packed weights b in E4M3, 32 columns of each. */
#define GMMA_E4M3(N, A, B, ADD)                                                                               \
  template <>                                                                                                 \
  __device__ inline void gmma<E4m3x2, N>(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) {               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N  \
                 "k32.f32.e4m3.e4m3 {" GMMA_##N(TEXT) "}, %" #A ", %" #B ", add, 1, 1;\n}\n"                  \
                 : GMMA_##N(DATA)                                                                             \
                 : "l"((uint64_t)GMMA_OPERAND_HIGH << 32 | a), "l"((uint64_t)GMMA_BLOCKS_HIGH << 32 | b), "r"((int)add)); \
  }
GMMA_E4M3(128, 64, 65, 66)
GMMA(8, 4, 5, 6, 7, 8, 9) GMMA(16, 8, 9, 10, 11, 12, 13)
GMMA(24, 12, 13, 14, 15, 16, 17) GMMA(32, 16, 17, 18, 19, 20, 21)
GMMA(40, 20, 21, 22, 23, 24, 25) GMMA(48, 24, 25, 26, 27, 28, 29)
GMMA(56, 28, 29, 30, 31, 32, 33) GMMA(64, 32, 33, 34, 35, 36, 37)
GMMA(72, 36, 37, 38, 39, 40, 41) GMMA(80, 40, 41, 42, 43, 44, 45)
GMMA(88, 44, 45, 46, 47, 48, 49) GMMA(96, 48, 49, 50, 51, 52, 53)
GMMA(104, 52, 53, 54, 55, 56, 57) GMMA(112, 56, 57, 58, 59, 60, 61)
GMMA(120, 60, 61, 62, 63, 64, 65) GMMA(128, 64, 65, 66, 67, 68, 69)
GMMA(192, 96, 97, 98, 99, 100, 101) GMMA(256, 128, 129, 130, 131, 132, 133)

/* d = a B, added to what d was if `add`: a[64,16] in registers as the sums of a product lie there, B[16,64] in rows of 128 bytes. */
template <typename T>
__device__ inline void gmma_values(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add);

#define GMMA_VALUES(T, NAME)                                                                                             \
  template <>                                                                                                            \
  __device__ inline void gmma_values<T>(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {                  \
    constexpr uint64_t HIGH = (uint64_t)GMMA_OPERAND_HIGH << 32;                                                         \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME \
                 " {" GMMA_64(TEXT) "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"                                   \
                 : GMMA_64(DATA) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(HIGH | b), "r"((int)add));            \
  }
GMMA_VALUES(__nv_bfloat16, "bf16")
GMMA_VALUES(__half, "f16")

/* Four 8x8 matrices of 16-bit elements, of which the lanes have fragments as of sums: their rows, or TRANSPOSED their columns, become rows of 16 bytes, at the
 * addresses that lanes 8i .. 8i+7 give of matrix i's. */
template <bool TRANSPOSED>
__device__ inline void store_matrix_x4(void *row, const uint32_t (&r)[4]) {
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Functions of a map's box at AT, innermost dimension first (AT_n: as operands from the n-th on):
 *   tensor_copy()       copies it to shared memory, counted off `barrier` as it arrives;
 *   tensor_multicast()  copies it to the same place in each block of the cluster whose bit is in `blocks`, counted off the barrier that
 *                       lies there where `barrier` lies here;
 *   tensor_prefetch()   prefetches it into L2.
 * What lies outside the tensor comes as zeros. */
#define TENSOR_COPY "cp.async.bulk.tensor."
#define TENSOR_COUNTED ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
#define TENSOR_FUNCTIONS(DIMENSIONS, AT, AT_1, AT_4, AT_5, ...)                                                                       \
  __device__ inline void tensor_copy(void *to, const TensorMap *map, AT, uint64_t *barrier, uint64_t policy) {                        \
    asm volatile(TENSOR_COPY DIMENSIONS TENSOR_COUNTED ".L2::cache_hint [%0], [%1, {" AT_4 "}], [%2], %3;" ::"r"(shared_address(to)), \
                 "l"(map), "r"(shared_address(barrier)), "l"(policy), __VA_ARGS__ : "memory");                                        \
  }                                                                                                                                   \
  __device__ inline void tensor_multicast(void *to, const TensorMap *map, AT, uint64_t *barrier, uint32_t blocks, uint64_t policy) {  \
    asm volatile(TENSOR_COPY DIMENSIONS TENSOR_COUNTED                                                                                \
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {" AT_5 "}], [%2], %4, %3;" ::"r"(shared_address(to)), "l"(map),      \
                 "r"(shared_address(barrier)), "l"(policy), "h"((uint16_t)blocks), __VA_ARGS__ : "memory");                           \
  }                                                                                                                                   \
  __device__ inline void tensor_prefetch(const TensorMap *map, AT) {                                                                  \
    asm volatile("cp.async.bulk.prefetch.tensor." DIMENSIONS ".L2.global.tile [%0, {" AT_1 "}];" ::"l"(map), __VA_ARGS__ : "memory"); \
  }
#define TENSOR_COLUMN_ROW uint32_t column, uint32_t row
TENSOR_FUNCTIONS("2d", TENSOR_COLUMN_ROW, "%1, %2", "%4, %5", "%5, %6", "r"(column), "r"(row))
TENSOR_FUNCTIONS("5d", const uint32_t (&at)[5], "%1, %2, %3, %4, %5", "%4, %5, %6, %7, %8", "%5, %6, %7, %8, %9", "r"(at[0]), "r"(at[1]),
                 "r"(at[2]), "r"(at[3]), "r"(at[4]))

__device__ inline void tensor_map_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

/* Ordinary stores to shared memory before this are seen by instructions that read operands after it. */
__device__ inline void operands_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- clusters --------------------------------------------------------------------------------- */

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline uint32_t cluster_blocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

/* Signals no more than that barriers are there (barriers_ready): with release it would be a fence, which waits for all that is under way. */
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* Four floats to what is `p` of this block's shared memory in block `rank` of the cluster, counted there off the barrier that
 * lies where `barrier` lies here. */
__device__ inline void store4_to_block(uint32_t p, uint32_t rank, float4 v, uint32_t barrier) {
  const uint32_t to = address_at_block(p, rank), counted = address_at_block(barrier, rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(counted)
               : "memory");
}

/* One float in the same way. */
__device__ inline void store_to_block(float *p, uint32_t rank, float v, uint64_t *barrier) {
  const uint32_t to = address_at_block(shared_address(p), rank), counted = address_at_block(shared_address(barrier), rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v), "r"(counted)
               : "memory");
}

#endif
