/* mma.cuh: asynchronous copies and warp-wide matrix instructions, as sm_80 and everything later has them.
 *
 * mma.sync m16n8k16: C[16,8] += A[16,16] B[16,8], f32 accumulators. Of lane l, with g = l / 4 and q = l % 4:
 *   A: a0 = A[g][2q..], a1 = A[g+8][2q..], a2 = A[g][2q+8..], a3 = A[g+8][2q+8..]     (pairs along k)
 *   B: b0 = B[2q..][g], b1 = B[2q+8..][g]                                              (pairs along k)
 *   C: c0 = C[g][2q], c1 = C[g][2q+1], c2 = C[g+8][2q], c3 = C[g+8][2q+1]
 *
 * Tests run kernels on the host with tests/gpu_failures/driver/hopper.h in this file's place.
 */
#ifndef TAILGRAPH_MMA_CUH
#define TAILGRAPH_MMA_CUH

#include "common/base.cuh"
#include <stdint.h>

__device__ inline uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Bytes FIRST and FIRST + 1 of a word, as two signed numbers of 16 bits. */
template <uint32_t FIRST>
__device__ inline uint32_t signed_bytes(uint32_t word) {
  uint32_t both;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(both) : "r"(word), "n"(0x8080 + FIRST * 0x11 + (FIRST + 1) * 0x1100));
  return both;
}

/* The four E4M3 numbers of a word as two pairs of f16, which hold each exactly; from sm_89 on. */
__device__ inline uint2 f16_of_e4m3(uint32_t word) {
  uint2 pairs;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs.x), "=r"(pairs.y) : "r"(word));
  return pairs;
}

/* Copies 16 bytes from global to shared memory, or where they are not `valid` writes zeros; `from` must still be a global address. */
__device__ inline void copy16_async(void *to, const void *from, bool valid) {
  uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}

/* What is read once in a step is evicted from L2 first, so that what is read again (activations, keys and values, code) stays. */
__device__ inline uint64_t cache_policy(bool once) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return once ? first : normal;
}

/* copy16_async with a cache_policy. */
__device__ inline void copy16_async(void *to, const void *from, bool valid, uint64_t policy) {
  uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes), "l"(policy)
               : "memory");
}

/* Closes the group of copies issued since the last call. */
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most PENDING of this thread's groups are unfinished. */
template <int PENDING>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* All lanes together: of a matrix of 8 by 8 elements of 16 bits lane l has M[l / 4][l % 4 * 2], in the lower half, and the element behind
 * it; it gets the same of M^T. */
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t of_columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(of_columns) : "r"(pair));
  return of_columns;
}

/* Four 8x8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the row addresses of matrix i. */
__device__ inline void load_matrix_x4(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

__device__ inline void load_matrix_x2(uint32_t (&r)[2], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row)));
}

__device__ inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

/* c += a b, as above. */
template <typename T>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#define MMA(T, NAME)                                                                                            \
  template <>                                                                                                   \
  __device__ inline void mma<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                                 \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                        \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                               \
  }
MMA(__nv_bfloat16, "bf16")
MMA(__half, "f16")

#endif
