/* tile.cuh: what a block of grouped/grouped.cuh multiplies, and the pipeline through which this comes. */
#pragma once

#include "common/packed.cuh"
#include "grouped/args.h"
#include "wgmma/fragments.cuh"
#include "wgmma/operand.cuh"
#include "wgmma/pipeline.cuh"

constexpr uint32_t GROUPED_CONSUMERS = 8;    /* warps; then come the loaders, a counter and the producer */

/* Expert tiles of up to MOST rows. S: what down's sums are stored as, f32 or, rounded, the rows' type. */
template <class Operand_, int MOST, typename S = float>
struct GroupedTile {
  using Operand = Operand_;
  using X = typename Operand::X;
  using W = typename Operand::W;
  using Sum = S;
  static constexpr uint32_t PARTS = Operand::PARTS;
  static constexpr int MOST_ROWS = MOST;
  static constexpr bool ROUNDS = !std::is_same<S, float>::value;
  /* Consumers of such tiles have little time to spare. What saves some is longer code, and costs others 0.4% (profiles/log/experts.md). */
  static constexpr bool IS_TALL = MOST > 64;  /* the lowest instances' tiles */
  static constexpr bool IN_8_BITS = sizeof(typename Operand::Stored) == 1;                                 /* weights; else in 16 */
  static constexpr uint32_t WEIGHT_BYTES = TG_GROUPED_OUTPUTS * GMMA_K * sizeof(typename Operand::Stored); /* of a stage */
  static_assert(GMMA_K * sizeof(W) == GMMA_ROW_BYTES, "of 16 bits a box's row is an operand's row");
  static_assert(!ROUNDS || std::is_same<S, X>::value, "sums are f32, or rounded to the rows' type");
};

/* Shared memory of a stage whose tiles have up to `tile_rows` rows. */
template <class Tile>
__host__ __device__ constexpr uint32_t grouped_stage_bytes(uint32_t tile_rows) {
  return Tile::WEIGHT_BYTES + tile_rows * Tile::PARTS * GMMA_ROW_BYTES;
}

template <class Tile>
struct GroupedPipeline : Pipeline<> {
  uint32_t stage_bytes;
  __device__ inline char *weights() const { return this->stages + this->at * stage_bytes; }
  __device__ inline char *rows() const { return weights() + Tile::WEIGHT_BYTES; }
};

/* Calls with(N) with the smallest multiple N of 8 that has room for `rows`, as a constant: LEAST to MOST. */
template <int MOST, int LEAST = 8, class Do>
__device__ inline void with_room_for(uint32_t rows, Do with) {
  if constexpr (LEAST == MOST) {
    with(std::integral_constant<int, MOST>());
  } else {
    constexpr int MIDDLE = (LEAST + MOST) / 16 * 8;
    if (rows <= MIDDLE) {
      with_room_for<MIDDLE, LEAST>(rows, with);
    } else {
      with_room_for<MOST, MIDDLE + 8>(rows, with);
    }
  }
}

/* Where k-block `k_block` of a slice of an expert's weights begins in the map that expert_boxes() of src/backend/cuda/families/grouped.rs
 * makes of packed matrices (common/packed.cuh): a column of blocks.
 *
 *   dimension of the map, from the innermost             | the box has of it | it begins at
 *   columns of a block, 64                               | 64                | 0
 *   lines of 64 columns: 8 rows' for each k-block        | 8: a block        | 8 k_block
 *   a group's blocks: gate's and up's by address; down's | 2                 | 0
 *   groups of an expert's rows                           | 8: a slice        | 8 slice
 *   experts                                              | 1                 | expert
 *
 * In 8 bits the first is of whole blocks, as elements of 16 bits, and the second of one line for each k-block.
 */
template <class Tile>
struct GroupedBox {
  uint32_t at[5];
  __device__ inline GroupedBox(uint32_t expert, uint32_t slice, uint32_t k_block)
      : at{0, k_block * (Tile::IN_8_BITS ? 1 : PACKED_ROWS), 0, slice * (TG_GROUPED_OUTPUTS / TG_GROUPED_GROUP_ROWS), expert} {}
};
static_assert(GMMA_K == PACKED_COLUMNS && TG_GROUPED_GROUP_ROWS == 2 * PACKED_ROWS, "a k-block's columns, and a group's rows, in blocks");

/* One lane: issues the copy of a k-block of a slice of an expert's weights. */
template <class Tile>
__device__ inline void grouped_copy(GroupedPipeline<Tile> &pipe, const TensorMap &weights, uint32_t expert, uint32_t slice,
                                    uint32_t k_block, uint64_t policy) {
  pipe.acquire();
  pipe.expect(Tile::WEIGHT_BYTES);
  tensor_copy(pipe.weights(), &weights, GroupedBox<Tile>(expert, slice, k_block).at, pipe.arrivals(), policy);
  pipe.advance(1);
}
