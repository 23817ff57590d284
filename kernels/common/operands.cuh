/* operands.cuh: how operands of wgmma lie in shared memory, and what names them (common/wgmma.cuh has the instructions).
 *
 * Operands lie in rows of 128 bytes, 64 elements of K; 8 rows make an atom of 1 KB, in which piece p (16 bytes) of row r
 * lies at p ^ r, as a tensor map with CU_TENSOR_MAP_SWIZZLE_128B leaves it. Arrays of them start on 1 KB.
 */
#pragma once

#include "common/args.h"
#include "common/base.cuh"
#include <stdint.h>

constexpr uint32_t GMMA_GROUP = TG_GMMA_THREADS;  /* threads that issue together */
constexpr uint32_t GMMA_M = TG_GMMA_ROWS;
constexpr uint32_t GMMA_K = TG_GMMA_COLUMNS;     /* of an operand's row: four instructions */
constexpr uint32_t GMMA_ROW_BYTES = TG_GMMA_ROW_BYTES;
constexpr uint32_t GMMA_ATOM_BYTES = TG_GMMA_ATOM_BYTES;

/* A matrix in global memory, for tensor copies: CUtensorMap, made by the host. */
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

/* Two columns in E4M3 that lie side by side, counted as one element of an operand. */
struct E4m3x2 {
  uint16_t bits;
};

/* Where piece `piece` of an operand's row `row` lies, in bytes from the operand on. */
__device__ inline uint32_t gmma_piece_at(uint32_t row, uint32_t piece) {
  return row * GMMA_ROW_BYTES + (piece ^ row % 8) * 16;
}

/* The low word of the descriptor of an operand at a shared_address(): 2 is added for 16 elements of K more, and gmma_apart() for what lies
 * so many bytes further. The high word is the same for all. */
__device__ inline uint32_t gmma_operand(uint32_t shared) { return 1u << 16 | (shared & 0x3ffff) >> 4; }
__host__ __device__ constexpr uint32_t gmma_apart(uint32_t bytes) { return bytes >> 4; }
constexpr uint32_t GMMA_OPERAND_HIGH = 1u << 30 /* swizzled by 128 bytes */ | GMMA_ATOM_BYTES >> 4;

/* Weights in E4M3 lie in two packed blocks an atom, 8 rows of 64 bytes each (common/packed.cuh), as a tensor map with CU_TENSOR_MAP_SWIZZLE_64B leaves
 * them: the other high word, and what is added for instruction k of a k-block. */
constexpr uint32_t GMMA_BLOCKS_HIGH = 2u << 30 /* swizzled by 64 bytes */ | GMMA_ATOM_BYTES >> 4;
__host__ __device__ constexpr uint32_t gmma_blocks_further(uint32_t k) { return k / 2 * gmma_apart(GMMA_ATOM_BYTES / 2) + k % 2 * 2; }

/* silu with a division that is no call, beside which no matrix instruction would run on; within 2 ulp. */
__device__ inline float gmma_silu(float v) { return __fdividef(v, 1.0f + expf(-v)); }
__device__ inline float2 silu_mul(float2 gate, float2 up) { return make_float2(gmma_silu(gate.x) * up.x, gmma_silu(gate.y) * up.y); }
__device__ inline float4 silu_mul(float4 gate, float4 up) {
  return make_float4(gmma_silu(gate.x) * up.x, gmma_silu(gate.y) * up.y, gmma_silu(gate.z) * up.z, gmma_silu(gate.w) * up.w);
}
