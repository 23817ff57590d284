/* wgmma.cuh: the matrix instructions of sm_90a that four warps issue together and that read both operands from shared
 * memory (common/operands.cuh), the tensor copies that bring these there, and clusters.
 *
 * wgmma m64nNk16: D[64,N] += A[64,16] B[N,16]^T, f32 accumulators. Of a warpgroup, lane l of warp w, with g = l / 4 and
 * q = l % 4, has in d[4 j ..]: D[16 w + g][8 j + 2 q], D[16 w + g][8 j + 2 q + 1], and the same two of row 16 w + g + 8.
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_WGMMA_CUH
#define TAILGRAPH_WGMMA_CUH

#include "common/barrier.cuh"
#include "common/base.cuh"
#include "common/mma.cuh"
#include "common/operands.cuh"

/* A value that stays in its register: the compiler would rather compute a shared_address() anew wherever it is needed, for which
 * it waits for a special register, or take a pointer apart again. */
__device__ inline uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <typename T>
__device__ inline T *kept(T *value) {
  asm volatile("" : "+l"(value));
  return value;
}

/* Before the first instruction, and whenever accumulators were written otherwise. */
__device__ inline void gmma_fence() { GMMA_BODY(asm volatile("wgmma.fence.sync.aligned;" ::: "memory");) }

__device__ inline void gmma_commit() { GMMA_BODY(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");) }

/* Until at most PENDING of this warpgroup's groups are unfinished. */
template <int PENDING>
__device__ inline void gmma_wait() {
  GMMA_BODY(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");)
}

/* Keeps what is done with accumulators from moving over the waits around it. */
template <int N>
__device__ inline void gmma_settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* d = A B^T of two gmma_operand()s, added to what d was if `add`. */
template <typename T, int N>
__device__ inline void gmma(float (&d)[N / 2], uint32_t a, uint32_t b, bool add);

/* Text and operands of d[0 .. n - 1], for the instructions below. */
#define GMMA_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GMMA_TEXT_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define GMMA_TEXT_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define GMMA_TEXT_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define GMMA_TEXT_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define GMMA_TEXT_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define GMMA_TEXT_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define GMMA_TEXT_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define GMMA_TEXT_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define GMMA_TEXT_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define GMMA_TEXT_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define GMMA_TEXT_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define GMMA_TEXT_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define GMMA_TEXT_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define GMMA_TEXT_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define GMMA_TEXT_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define GMMA_DATA_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GMMA_DATA(i) GMMA_DATA_4(i), GMMA_DATA_4(i + 4)

#define GMMA(N, T, NAME, TEXT, A, B, ADD, ...)                                                                        \
  template <>                                                                                                          \
  __device__ inline void gmma<T, N>(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) {                            \
    [[maybe_unused]] constexpr uint64_t HIGH = (uint64_t)GMMA_OPERAND_HIGH << 32;                                      \
    GMMA_BODY(asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
                            "k16.f32." NAME "." NAME " {" TEXT "}, " A ", " B ", add, 1, 1, 0, 0;\n}\n"                \
                            : __VA_ARGS__ : "l"(HIGH | a), "l"(HIGH | b), "r"((int)add));)                             \
  }
#define GMMA_BOTH(N, TEXT, A, B, ADD, ...)                  \
  GMMA(N, __nv_bfloat16, "bf16", TEXT, A, B, ADD, __VA_ARGS__) \
  GMMA(N, __half, "f16", TEXT, A, B, ADD, __VA_ARGS__)

GMMA_BOTH(8, "%0, %1, %2, %3", "%4", "%5", "%6",
           GMMA_DATA_4(0))
GMMA_BOTH(16, GMMA_TEXT_0, "%8", "%9", "%10",
           GMMA_DATA(0))
GMMA_BOTH(24, GMMA_TEXT_0 ", %8, %9, %10, %11", "%12", "%13", "%14",
           GMMA_DATA(0), GMMA_DATA_4(8))
GMMA_BOTH(32, GMMA_TEXT_0 ", " GMMA_TEXT_8, "%16", "%17", "%18",
           GMMA_DATA(0), GMMA_DATA(8))
GMMA_BOTH(40, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", %16, %17, %18, %19", "%20", "%21", "%22",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA_4(16))
GMMA_BOTH(48, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16, "%24", "%25", "%26",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16))
GMMA_BOTH(56, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", %24, %25, %26, %27", "%28", "%29", "%30",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA_4(24))
GMMA_BOTH(64, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24, "%32", "%33", "%34",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24))
GMMA_BOTH(72, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", %32, %33, %34, %35", "%36", "%37", "%38",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA_4(32))
GMMA_BOTH(80, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32, "%40", "%41", "%42",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32))
GMMA_BOTH(88, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", %40, %41, %42, %43", "%44", "%45", "%46",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA_4(40))
GMMA_BOTH(96, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40, "%48", "%49", "%50",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40))
GMMA_BOTH(104, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", %48, %49, %50, %51", "%52", "%53", "%54",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40), GMMA_DATA_4(48))
GMMA_BOTH(112, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", " GMMA_TEXT_48, "%56", "%57", "%58",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40), GMMA_DATA(48))
GMMA_BOTH(120, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", " GMMA_TEXT_48 ", %56, %57, %58, %59", "%60", "%61", "%62",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40), GMMA_DATA(48), GMMA_DATA_4(56))
GMMA_BOTH(128, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", " GMMA_TEXT_48 ", " GMMA_TEXT_56, "%64", "%65", "%66",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40),
           GMMA_DATA(48), GMMA_DATA(56))
GMMA_BOTH(192, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", " GMMA_TEXT_48 ", " GMMA_TEXT_56 ", " GMMA_TEXT_64 ", "
           GMMA_TEXT_72 ", " GMMA_TEXT_80 ", " GMMA_TEXT_88, "%96", "%97", "%98",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40),
           GMMA_DATA(48), GMMA_DATA(56), GMMA_DATA(64), GMMA_DATA(72), GMMA_DATA(80),
           GMMA_DATA(88))
GMMA_BOTH(256, GMMA_TEXT_0 ", " GMMA_TEXT_8 ", " GMMA_TEXT_16 ", " GMMA_TEXT_24 ", " GMMA_TEXT_32 ", "
           GMMA_TEXT_40 ", " GMMA_TEXT_48 ", " GMMA_TEXT_56 ", " GMMA_TEXT_64 ", "
           GMMA_TEXT_72 ", " GMMA_TEXT_80 ", " GMMA_TEXT_88 ", " GMMA_TEXT_96 ", "
           GMMA_TEXT_104 ", " GMMA_TEXT_112 ", " GMMA_TEXT_120, "%128", "%129", "%130",
           GMMA_DATA(0), GMMA_DATA(8), GMMA_DATA(16), GMMA_DATA(24), GMMA_DATA(32), GMMA_DATA(40),
           GMMA_DATA(48), GMMA_DATA(56), GMMA_DATA(64), GMMA_DATA(72), GMMA_DATA(80),
           GMMA_DATA(88), GMMA_DATA(96), GMMA_DATA(104), GMMA_DATA(112), GMMA_DATA(120))

/* ---- copies ---------------------------------------------------------------------------------- */

/* The map's box at (column, row) to shared memory, counted off `barrier` as it arrives. */
__device__ inline void tensor_copy(void *to, const TensorMap *map, uint32_t column, uint32_t row, uint64_t *barrier,
                                   uint64_t policy) {
  GMMA_BODY(asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                          "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                          "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
                          : "memory");)
}

/* The box of a tensor of five dimensions from `at` on, innermost first; what lies outside the tensor comes as zeros. */
__device__ inline void tensor_copy(void *to, const TensorMap *map, const uint32_t (&at)[5], uint64_t *barrier,
                                   uint64_t policy) {
  GMMA_BODY(asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                          "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(to)),
                          "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
                          "r"(shared_address(barrier)), "l"(policy)
                          : "memory");)
}

/* The map's box at (column, row) to the same place in each block of the cluster whose bit is in `blocks`, counted off the
 * barrier that lies there where `barrier` lies here. */
__device__ inline void tensor_copy_to_blocks(void *to, const TensorMap *map, uint32_t column, uint32_t row, uint64_t *barrier,
                                             uint32_t blocks, uint64_t policy) {
  GMMA_BODY(asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                         ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
                         "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"((uint16_t)blocks), "l"(policy)
                         : "memory");)
}

/* The same for a tensor of five dimensions: its box from `at` on. */
__device__ inline void tensor_copy_to_blocks(void *to, const TensorMap *map, const uint32_t (&at)[5], uint64_t *barrier,
                                             uint32_t blocks, uint64_t policy) {
  GMMA_BODY(asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                         ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(shared_address(to)),
                         "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(barrier)),
                         "h"((uint16_t)blocks), "l"(policy)
                         : "memory");)
}

/* The map's box at (column, row) to the second-level cache. */
__device__ inline void tensor_prefetch(const TensorMap *map, uint32_t column, uint32_t row) {
  GMMA_BODY(asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(column), "r"(row)
                          : "memory");)
}

/* The same for a tensor of five dimensions: its box from `at` on. */
__device__ inline void tensor_prefetch(const TensorMap *map, const uint32_t (&at)[5]) {
  GMMA_BODY(asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(at[0]),
                         "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                         : "memory");)
}

__device__ inline void tensor_map_prefetch(const TensorMap *map) {
  GMMA_BODY(asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");)
}

/* Ordinary stores to shared memory before this are seen by instructions that read operands after it. */
__device__ inline void operands_written() { GMMA_BODY(asm volatile("fence.proxy.async.shared::cta;" ::: "memory");) }

/* ---- clusters --------------------------------------------------------------------------------- */

__device__ inline uint32_t cluster_rank() {
  uint32_t rank = 0;
  GMMA_BODY(asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));)
  return rank;
}

__device__ inline uint32_t cluster_blocks() {
  uint32_t blocks = 1;
  GMMA_BODY(asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));)
  return blocks;
}

/* Says no more than that barriers are there (barriers_ready): with release it would be a fence of all threads, which waits for all
 * that they have under way. */
__device__ inline void cluster_arrive() { GMMA_BODY(asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");) }
__device__ inline void cluster_wait() { GMMA_BODY(asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");) }

/* Four floats to another block of the cluster, at what is `p` in this one's shared memory; there they count as bytes that
 * `barrier` expects. */
__device__ inline void store4_to_block(uint32_t p, uint32_t rank, float4 v, uint32_t barrier) {
  GMMA_BODY(uint32_t to, counted;
             asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(p), "r"(rank));
             asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(barrier), "r"(rank));
             asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                          "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(counted)
                          : "memory");)
}

/* One float, to `p` of block `rank` of `blocks`, counted off its `barrier`, as their addresses are in this one. A
 * block that is alone stores it, and nothing is counted. */
__device__ inline void store_to_block(float *p, uint32_t rank, float v, uint64_t *barrier, uint32_t blocks) {
  if (blocks == 1) {
    *p = v;
    return;
  }
  GMMA_BODY(uint32_t to, counted;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(rank));
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(shared_address(barrier)), "r"(rank));
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v),
                         "r"(counted)
                         : "memory");)
}

#endif
