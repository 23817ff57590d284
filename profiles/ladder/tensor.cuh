/* tensor.cuh: the same product of bf16 operands by the tensor cores, f32 sums: by mma, where a warp holds both operands in
 * registers, and by wgmma, where four warps multiply straight from shared memory. Simple: what serves is in kernels/, with
 * tensor copies, blocks that stay and warps that only copy. */
#ifndef TAILGRAPH_LADDER_TENSOR_CUH
#define TAILGRAPH_LADDER_TENSOR_CUH

#include "common/mma.cuh"
#include "common/wgmma.cuh"
#include "products.cuh"

constexpr uint32_t MMA_TILE = 128; /* outputs of a block, each way */
constexpr uint32_t MMA_K = 32;     /* of a stage */
constexpr uint32_t MMA_STAGES = 3;
constexpr uint32_t MMA_ROW = MMA_K + 8; /* 80 bytes: eight rows of a matrix load meet 32 banks */

struct MmaStage {
  __nv_bfloat16 x[MMA_TILE][MMA_ROW], w[MMA_TILE][MMA_ROW];
};
constexpr uint32_t MMA_BYTES = MMA_STAGES * sizeof(MmaStage);

/* 256 threads; each of the eight warps has 64 by 32 outputs. */
__global__ void __launch_bounds__(256) by_mma(float *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w, Sizes size) {
  extern __shared__ __align__(128) unsigned char shared[];
  MmaStage *ring = (MmaStage *)shared;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t m0 = blockIdx.y * MMA_TILE, n0 = blockIdx.x * MMA_TILE;
  const uint32_t warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
  const uint32_t count = size.k / MMA_K;
  /* 128 rows of 64 bytes: four pieces a row, two a thread of each operand. */
  auto fetch = [&](uint32_t stage) {
    if (stage < count) {
      MmaStage &to = ring[stage % MMA_STAGES];
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        const uint32_t piece = threadIdx.x + 256 * i, row = piece / 4, at = piece % 4 * 8;
        const size_t from = size_t(stage) * MMA_K + at;
        copy16_async(&to.x[row][at], &x[size_t(m0 + row) * size.k + from], true);
        copy16_async(&to.w[row][at], &w[size_t(n0 + row) * size.k + from], true);
      }
    }
    copy_commit(); /* a group a stage, also where there is none, so that the wait below can count */
  };
  float sum[4][4][4] = {};
  for (uint32_t stage = 0; stage + 1 < MMA_STAGES; stage++) fetch(stage);
  for (uint32_t s = 0; s < count; s++) {
    copy_wait<MMA_STAGES - 2>();
    __syncthreads(); /* this stage is there, and all have done with the one that is filled next */
    fetch(s + MMA_STAGES - 1);
    const MmaStage &now = ring[s % MMA_STAGES];
#pragma unroll
    for (uint32_t k = 0; k < MMA_K; k += 16) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) load_matrix_x4(a[i], &now.x[warp_m + 16 * i + lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (uint32_t j = 0; j < 2; j++)
        load_matrix_x4(b[j], &now.w[warp_n + 16 * j + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
#pragma unroll
      for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
          mma<__nv_bfloat16>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  const uint32_t g = lane / 4, q = lane % 4;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      float *to = y + size_t(m0 + warp_m + 16 * i + g) * size.n + n0 + warp_n + 8 * j + 2 * q;
      *(float2 *)to = make_float2(sum[i][j][0], sum[i][j][1]);
      *(float2 *)(to + 8 * size_t(size.n)) = make_float2(sum[i][j][2], sum[i][j][3]);
    }
}

#ifdef LADDER_WGMMA /* code for sm_90a, which alone has these instructions */
constexpr uint32_t WGMMA_TILE = 128;
constexpr uint32_t WGMMA_STAGES = 3;
constexpr uint32_t WGMMA_OPERAND_BYTES = WGMMA_TILE * GMMA_ROW_BYTES; /* 64 of K */
constexpr uint32_t WGMMA_STAGE_BYTES = 2 * WGMMA_OPERAND_BYTES;
constexpr uint32_t WGMMA_BYTES = WGMMA_STAGES * WGMMA_STAGE_BYTES + GMMA_ATOM_BYTES; /* the ring starts on an atom */

/* 256 threads: two warpgroups of 64 by 128 outputs each, which copy by cp.async into the layout that wgmma reads. */
__global__ void __launch_bounds__(256) by_wgmma(float *y, const __nv_bfloat16 *x, const __nv_bfloat16 *w, Sizes size) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t begin = shared_address(shared);
  const uint32_t ring = (begin + GMMA_ATOM_BYTES - 1) / GMMA_ATOM_BYTES * GMMA_ATOM_BYTES;
  unsigned char *at_ring = shared + (ring - begin);
  const uint32_t group = threadIdx.x / GMMA_GROUP, lane = threadIdx.x % 32, warp = threadIdx.x % GMMA_GROUP / 32;
  const uint32_t m0 = blockIdx.y * WGMMA_TILE, n0 = blockIdx.x * WGMMA_TILE;
  const uint32_t count = size.k / GMMA_K;
  /* 128 rows of 128 bytes: eight pieces a row, four a thread of each operand. */
  auto fetch = [&](uint32_t stage) {
    if (stage < count) {
      unsigned char *to = at_ring + stage % WGMMA_STAGES * WGMMA_STAGE_BYTES;
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t piece = threadIdx.x + 256 * i, row = piece / 8, at = piece % 8;
        const size_t from = size_t(stage) * GMMA_K + at * 8;
        copy16_async(to + gmma_piece_at(row, at), &x[size_t(m0 + row) * size.k + from], true);
        copy16_async(to + WGMMA_OPERAND_BYTES + gmma_piece_at(row, at), &w[size_t(n0 + row) * size.k + from], true);
      }
    }
    copy_commit();
  };
  float sum[WGMMA_TILE / 2] = {};
  for (uint32_t stage = 0; stage + 1 < WGMMA_STAGES; stage++) fetch(stage);
  for (uint32_t s = 0; s < count; s++) {
    copy_wait<WGMMA_STAGES - 2>();
    operands_written(); /* what threads wrote, matrix instructions see */
    __syncthreads();    /* and all have waited for the products of the stage that is filled next */
    fetch(s + WGMMA_STAGES - 1);
    const uint32_t stage = ring + s % WGMMA_STAGES * WGMMA_STAGE_BYTES;
    const uint32_t a = gmma_operand(stage + group * GMMA_M * GMMA_ROW_BYTES), b = gmma_operand(stage + WGMMA_OPERAND_BYTES);
    gmma_settle(sum);
    gmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma<__nv_bfloat16, WGMMA_TILE>(sum, a + 2 * k, b + 2 * k, true);
    gmma_commit();
    gmma_wait<0>();
    gmma_settle(sum);
  }
  const uint32_t g = lane / 4, q = lane % 4;
  float *to = y + size_t(m0 + group * GMMA_M + 16 * warp + g) * size.n + n0 + 2 * q;
#pragma unroll
  for (uint32_t j = 0; j < WGMMA_TILE / 8; j++) {
    *(float2 *)(to + 8 * j) = make_float2(sum[4 * j], sum[4 * j + 1]);
    *(float2 *)(to + 8 * j + 8 * size_t(size.n)) = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
  }
}

#endif
#endif
