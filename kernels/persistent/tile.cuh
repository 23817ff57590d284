/* tile.cuh: what a kernel of persistent/ multiplies, which tiles its blocks take, and the pipeline through which these come. */
#pragma once

#include "common/e4m3.cuh"
#include "common/experts.cuh"
#include "common/packed.cuh"
#include "persistent/args.h"
#include "tiled/tiled.cuh"
#include "wgmma/operand.cuh"
#include "wgmma/pipeline.cuh"

constexpr uint32_t PERSISTENT_WARPS = TG_PERSISTENT_GROUPS * GMMA_GROUP / WARP;
constexpr uint32_t PERSISTENT_WARP_ROWS = GMMA_M * WARP / GMMA_GROUP;  /* of a tile, whose sums a warp has */
constexpr uint32_t PERSISTENT_AHEAD = 6;  /* k-blocks whose weights are prefetched into L2 before the grid dependency wait */
constexpr uint32_t PERSISTENT_BAND = 16;  /* row tiles whose weight rows are taken in one go, and so come from memory once */

/* Rows of type T, WIDTH weight rows of a tile; blocks that multicast weight rows; whether batch rows are gathered; type of weights in memory: where
 * that is E4m3x2, the rows too are in 8 bits (e4m3_rows.cuh). */
template <typename T_, uint32_t WIDTH_, uint32_t STAGES_, uint32_t MULTICAST_ = 1, bool GATHERS_ = false,
          typename Weights = typename OperandOf<T_>::W>
struct PersistentTile {
  using T = T_;
  static constexpr bool E4M3_ROWS = std::is_same<Weights, E4m3x2>::value;
  using W = std::conditional_t<E4M3_ROWS, E4m3x2, typename OperandOf<T>::W>;
  static constexpr uint32_t PARTS = OperandOf<T>::PARTS;
  static constexpr uint32_t WIDTH = WIDTH_, MULTICAST = MULTICAST_, SPLIT_K = 1;
  static constexpr bool GATHERS = GATHERS_, CONVOLVES = false;
  static constexpr uint32_t GROUP_ROWS = 2 * TG_PERSISTENT_TURN_ROWS;  /* weight rows that come in turns, of gate and up */
  static constexpr bool E4M3 = std::is_same<Weights, E4m3>::value;  /* alone: e4m3.cuh */
  static constexpr uint32_t GROUPS = E4M3 && WIDTH == 192 ? 3 : TG_PERSISTENT_GROUPS;  /* warpgroups that multiply */
  static constexpr uint32_t THREADS = (GROUPS + 1) * GMMA_GROUP;
  static constexpr uint32_t OPERANDS = E4M3 ? WIDTH / (GROUPS * GMMA_M) : 1;  /* of GMMA_M rows, that a warpgroup multiplies */
  /* Registers of threads that multiply, and of the others, where a launch gives each thread too few. */
  static constexpr bool TAKES_REGISTERS = E4M3 || WIDTH > 192;
  static constexpr uint32_t REGISTERS = GROUPS > 2 ? 152 : PARTS > 1 ? 200 : 232;
  static constexpr uint32_t OTHER_REGISTERS = (GROUPS > 2 ? 512 : 504) - GROUPS * REGISTERS;
  static constexpr uint32_t W_ROW_BYTES = E4M3 ? PACKED_COLUMNS : GMMA_ROW_BYTES;
  static constexpr uint32_t W_STEP = E4M3 ? 1 : W_ROW_BYTES / PACKED_COLUMNS * PACKED_ROWS;  /* of a k-block, in the map's second dimension, in 8 bits */
  static constexpr uint32_t PART_BYTES = TG_PERSISTENT_ROWS * GMMA_ROW_BYTES, X_BYTES = PARTS * PART_BYTES;
  static constexpr uint32_t STAGE_BYTES = X_BYTES + WIDTH * W_ROW_BYTES;
  static constexpr uint32_t STAGES = STAGES_;
  /* Finished columns of a warp's rows at a time, f32 or twice as many of 16 bits, with room between rows that spreads banks.
   * With weights in 8 bits it holds 64 rows of 16 bits of a warpgroup, or 32 of f32. */
  static constexpr uint32_t OUT_COLUMNS = WIDTH > 128 ? WIDTH / 4 : 64;
  static constexpr uint32_t OUT_PITCH = OUT_COLUMNS * sizeof(float) + 16;
  static constexpr uint32_t OUT_BYTES = E4M3 ? OPERANDS * GMMA_M * (GMMA_ROW_BYTES + 16) : PERSISTENT_WARP_ROWS * OUT_PITCH;
  static constexpr uint32_t BARRIERS = STAGES * STAGE_BYTES + (E4M3 ? GROUPS : PERSISTENT_WARPS) * OUT_BYTES;  /* where they lie */
  static constexpr uint32_t SHARED = BARRIERS + 2 * STAGES * sizeof(uint64_t);
  using Acc = float[WIDTH / GROUPS];
  static_assert(WIDTH % (2 * OUT_COLUMNS) == 0 && WIDTH / MULTICAST % 16 == 0, "whole parts of rows; whole groups of gate and up");
  static_assert(SHARED <= 227 * 1024, "what a block may have");
  static_assert(MULTICAST <= 2, "a tile knows of one other block");
};

/* What a launch multiplies. */
struct PersistentProduct : tg_persistent_args {
  bool packed;       /* w is packed (common/packed.cuh) */
  bool is_up_first;  /* up_first, compared once */

  __device__ inline uint32_t k_blocks() const { return (k_total + GMMA_K - 1) / GMMA_K; }
};

/* By expert w is packed. What of the arguments is the others' is a constant. */
template <bool BY_EXPERT>
__device__ inline PersistentProduct persistent_product(const tg_persistent_args &a, uint32_t epilogue) {
  PersistentProduct product = {a, BY_EXPERT, a.up_first != 0};
  product.epilogue = epilogue;
  if (BY_EXPERT) product.bias = nullptr, product.row_base = product.most_rows = 0;
  else product.tiles = nullptr, product.gather = nullptr;
  return product;
}

struct PersistentWorkTile {
  uint32_t first, rows;  /* of y, of which at most TG_PERSISTENT_ROWS */
  uint32_t slice;        /* of WIDTH weight rows */
  uint32_t expert;
  bool shares;           /* the other block of the cluster has the same weight rows */
};

/* The tiles of a launch, of which a block takes every apart()-th from first() on. Blocks that multicast take row tiles that follow each
 * other, of which the last may have no rows; by expert these may be of two, which share nothing. */
template <class Tile>
struct PersistentScheduler {
  uint32_t rows, row_tiles, pairs, slices, count;  /* pairs: row tiles of a cluster's blocks together; count: tiles */
  const ExpertTile *tiles;

  /* `listed`: as *product.count. */
  __device__ inline PersistentScheduler(const PersistentProduct &product, uint32_t listed) : tiles(product.tiles) {
    const uint32_t outputs = product.epilogue == TILED_SILU_MUL ? Tile::WIDTH / 2 : Tile::WIDTH;
    slices = (product.n_total + outputs - 1) / outputs;
    rows = tiles ? 0 : rows_from(product.row_base, listed, product.most_rows);
    row_tiles = tiles ? listed : (rows + TG_PERSISTENT_ROWS - 1) / TG_PERSISTENT_ROWS;
    pairs = (row_tiles + Tile::MULTICAST - 1) / Tile::MULTICAST;
    count = pairs * slices;
  }

  __device__ inline PersistentWorkTile tile(uint32_t t) const {
    if (tiles) {
      const uint32_t at = t / slices * Tile::MULTICAST + rank(), beside = Tile::MULTICAST > 1 ? at ^ 1 : at;
      const ExpertTile tile = tiles[min(at, row_tiles - 1)], other = tiles[min(beside, row_tiles - 1)];
      return {tile.first, at < row_tiles ? tile.rows : 0, t % slices, tile.expert, tile.expert == other.expert};
    }
    constexpr uint32_t BAND = PERSISTENT_BAND / Tile::MULTICAST;
    const uint32_t band = t / (BAND * slices), in_band = t % (BAND * slices);
    const uint32_t here = min(BAND, pairs - band * BAND);
    const uint32_t first = ((band * BAND + in_band % here) * Tile::MULTICAST + rank()) * TG_PERSISTENT_ROWS;
    return {first, rows_from(first, rows, TG_PERSISTENT_ROWS), in_band / here, 0, true};
  }

  /* What tile(t) is if each expert has one. */
  __device__ inline PersistentWorkTile predicted(uint32_t t) const {
    if (tiles) return {0, TG_PERSISTENT_ROWS, t % slices, t / slices * Tile::MULTICAST + rank(), false};
    return tile(t);
  }

  /* Dense: the tiles of all rows of the bucket. */
  static __device__ inline PersistentScheduler of_bucket(const PersistentProduct &product) {
    return {product, product.row_base + product.most_rows};
  }
  /* The same tiles, of fewer rows: those past *product.count are not there. */
  __device__ inline void count_rows(const PersistentProduct &product) {
    rows = rows_from(product.row_base, *product.count, product.most_rows);
  }

  static __device__ inline uint32_t rank() { return Tile::MULTICAST > 1 ? cluster_rank() : 0; }
  __device__ inline uint32_t first() const { return blockIdx.x / Tile::MULTICAST; }
  __device__ inline uint32_t apart() const { return gridDim.x / Tile::MULTICAST; }
};

template <class Tile>
struct PersistentPipeline : Pipeline<Tile::STAGES, Tile::MULTICAST> {
  using Base = Pipeline<Tile::STAGES, Tile::MULTICAST>;
  /* In a block's shared memory, its barriers so many bytes further. */
  __device__ inline PersistentPipeline(char *shared, uint32_t barriers)
      : Base(shared, reinterpret_cast<uint64_t *>(shared + barriers), reinterpret_cast<uint64_t *>(shared + barriers) + Tile::STAGES) {}
  /* One thread. Where rows are gathered, each warp that does so arrives beside the weights. */
  __device__ inline void init() const { Base::init(Tile::GATHERS ? 1 + GMMA_GROUP / WARP : 1, Tile::GROUPS); }
  __device__ inline char *x() const { return this->stages + this->at * Tile::STAGE_BYTES; }
  __device__ inline char *w() const { return x() + Tile::X_BYTES; }
};
