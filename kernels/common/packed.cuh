/* packed.cuh: how experts' matrices, and all in 8 bits, lie in memory (src/backend/cuda/families/packed.rs packs them).
 *
 * W[N,K] in blocks of PACKED_ROWS rows by PACKED_COLUMNS columns, each row after row; blocks of the same rows side by side, along K,
 * which is filled up with zeros to whole blocks. N is a multiple of PACKED_ROWS. So 8 whole rows lie together, which skinny kernels read,
 * and so do 8 rows of some columns, which the others read (profiles/log/experts-weights.md). Of 16 bits, a row's 64 columns are the 128
 * bytes of an operand's row (common/operands.cuh).
 */
#pragma once

#include "common/args.h"
#include <stdint.h>

constexpr uint32_t PACKED_ROWS = TG_PACKED_ROWS, PACKED_COLUMNS = TG_PACKED_COLUMNS, PACKED_BLOCK = PACKED_ROWS * PACKED_COLUMNS;

/* Elements of a packed row of k. */
__host__ __device__ constexpr uint32_t packed_columns(uint32_t k) {
  return (k + PACKED_COLUMNS - 1) / PACKED_COLUMNS * PACKED_COLUMNS;
}

/* From a row's first element to that of column c. */
__host__ __device__ constexpr uint32_t packed_along(uint32_t c) {
  return c / PACKED_COLUMNS * PACKED_BLOCK + c % PACKED_COLUMNS;
}

/* To the first element of row n of k. */
__host__ __device__ constexpr uint64_t packed_row(uint32_t n, uint32_t k) {
  return (uint64_t)(n / PACKED_ROWS) * PACKED_ROWS * packed_columns(k) + n % PACKED_ROWS * PACKED_COLUMNS;
}
