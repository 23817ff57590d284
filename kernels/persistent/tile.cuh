/* tile.cuh: what a kernel of persistent/ multiplies, in which tiles, and the ring of shared memory through which these come. */
#ifndef TAILGRAPH_PERSISTENT_TILE_CUH
#define TAILGRAPH_PERSISTENT_TILE_CUH

#include "common/experts.cuh"
#include "common/wgmma.cuh"
#include "persistent/args.h"
#include "tiled/tiled.cuh"
#include <type_traits>

constexpr uint32_t PERSISTENT_GROUPS = TG_PERSISTENT_GROUPS;
constexpr uint32_t PERSISTENT_ROWS = TG_PERSISTENT_ROWS;
constexpr uint32_t PERSISTENT_THREADS = TG_PERSISTENT_THREADS;
constexpr uint32_t PERSISTENT_WARPS = PERSISTENT_GROUPS * GMMA_GROUP / WARP;
constexpr uint32_t PERSISTENT_WARP_ROWS = GMMA_M * WARP / GMMA_GROUP;  /* of a tile, whose sums a warp has */
constexpr uint32_t PERSISTENT_EARLY = 6;  /* stages whose weights are asked for into the second-level cache before earlier kernels end */
constexpr uint32_t PERSISTENT_BAND = 16;  /* row tiles whose weight rows are taken in one go, and so come from memory once */

/* Operands of type T, WIDTH weight rows of a tile; blocks that share weight rows; whether batch rows are gathered. */
template <typename T_, uint32_t WIDTH_, uint32_t STAGES_, uint32_t MATES_ = 1, bool GATHERS_ = false>
struct PersistentTile {
  using T = T_;
  static constexpr bool SPLIT = sizeof(T) == sizeof(float);
  using W = std::conditional_t<SPLIT, __nv_bfloat16, T>;  /* of weights, and of rows as they are multiplied */
  static constexpr uint32_t PARTS = SPLIT ? TG_PARTS : 1;
  static constexpr uint32_t WIDTH = WIDTH_, MATES = MATES_;
  static constexpr bool GATHERS = GATHERS_, CONVOLVES = false;
  static constexpr uint32_t GROUP_ROWS = 2 * TG_PERSISTENT_TURN_ROWS;  /* weight rows that come in turns, of gate and up */
  static constexpr uint32_t PART_BYTES = PERSISTENT_ROWS * GMMA_ROW_BYTES, X_BYTES = PARTS * PART_BYTES;
  static constexpr uint32_t STAGE_BYTES = X_BYTES + WIDTH * GMMA_ROW_BYTES;
  static constexpr uint32_t STAGES = STAGES_;
  /* Finished columns of a warp's rows at a time, f32 or twice as many of 16 bits, with room between rows that spreads banks. */
  static constexpr uint32_t OUT_COLUMNS = WIDTH > 128 ? WIDTH / 4 : 64;
  static constexpr uint32_t OUT_PITCH = OUT_COLUMNS * sizeof(float) + 16;
  static constexpr uint32_t OUT_BYTES = PERSISTENT_WARP_ROWS * OUT_PITCH;
  static constexpr uint32_t BARRIERS = STAGES * STAGE_BYTES + PERSISTENT_WARPS * OUT_BYTES;  /* where they lie */
  static constexpr uint32_t SHARED = BARRIERS + 2 * STAGES * sizeof(uint64_t);
  using Acc = float[WIDTH / 2];
  static_assert(WIDTH % (2 * OUT_COLUMNS) == 0 && WIDTH / MATES % 16 == 0, "whole parts of rows; whole groups of gate and up");
  static_assert(SHARED <= 227 * 1024, "what a block may have");
  static_assert(MATES <= 2, "a unit knows of one mate");
};

/* What a launch multiplies. */
struct PersistentProduct {
  void *y;                  /* [rows, n_total] */
  const float *bias;        /* [n_total] or null */
  const void *x;            /* [R, k_total], where rows are gathered */
  const uint32_t *count;    /* rows, counted from row_base on; by expert the number of tiles */
  const ExpertTile *tiles;  /* by expert */
  const uint32_t *gather;   /* the row at each place of the token sort, where rows are gathered */
  uint32_t row_base, most_rows;
  uint32_t x_plane, y_plane;  /* rows from one part of f32 rows to the next */
  uint32_t n_total, k_total;  /* columns of y; of x */
  uint32_t epilogue;          /* TILED_* */
  bool packed;                /* w is packed (common/packed.cuh) */
  bool up_first;              /* of gate and up, up has the lower address */
};

/* ... of a dense launch. */
__device__ inline PersistentProduct persistent_dense(const tg_persistent_args &a) {
  return {a.y, a.bias, nullptr, a.count, nullptr, nullptr, a.row_base, a.most_rows, a.x_plane, a.y_plane, a.n_total, a.k_total,
          a.epilogue, false, a.up_first != 0};
}

struct PersistentUnit {
  uint32_t first, rows;  /* of y, of which at most PERSISTENT_ROWS */
  uint32_t slice;        /* of WIDTH weight rows */
  uint32_t expert;
  bool shares;           /* the mate's weight rows are the same */
};

/* The tiles of a launch, and which is the t-th of a block: of mates, row tiles that follow each other, of which the last may have no
 * rows. By expert these may be of two, and then nothing is shared. */
template <class Tile>
struct PersistentWork {
  uint32_t rows, row_tiles, pairs, slices, units;  /* pairs: row tiles of all mates together */
  const ExpertTile *tiles;

  /* `count`: as *product.count. */
  __device__ inline PersistentWork(const PersistentProduct &product, uint32_t count) : tiles(product.tiles) {
    const uint32_t outputs = product.epilogue == TILED_SILU_MUL ? Tile::WIDTH / 2 : Tile::WIDTH;
    slices = (product.n_total + outputs - 1) / outputs;
    rows = tiles ? 0 : rows_from(product.row_base, count, product.most_rows);
    row_tiles = tiles ? count : (rows + PERSISTENT_ROWS - 1) / PERSISTENT_ROWS;
    pairs = (row_tiles + Tile::MATES - 1) / Tile::MATES;
    units = pairs * slices;
  }

  __device__ inline PersistentUnit unit(uint32_t t) const {
    if (tiles) {
      const uint32_t at = t / slices * Tile::MATES + rank(), mate = Tile::MATES > 1 ? at ^ 1 : at;
      const ExpertTile tile = tiles[min(at, row_tiles - 1)], other = tiles[min(mate, row_tiles - 1)];
      return {tile.first, at < row_tiles ? tile.rows : 0, t % slices, tile.expert, tile.expert == other.expert};
    }
    constexpr uint32_t BAND = PERSISTENT_BAND / Tile::MATES;
    const uint32_t band = t / (BAND * slices), in_band = t % (BAND * slices);
    const uint32_t here = min(BAND, pairs - band * BAND);
    const uint32_t first = ((band * BAND + in_band % here) * Tile::MATES + rank()) * PERSISTENT_ROWS;
    return {first, rows_from(first, rows, PERSISTENT_ROWS), in_band / here, 0, true};
  }

  /* What unit(t) is if each expert has one tile. */
  __device__ inline PersistentUnit foreseen(uint32_t t) const {
    if (tiles) return {0, PERSISTENT_ROWS, t % slices, t / slices * Tile::MATES + rank(), false};
    return unit(t);
  }

  /* Dense: that of all rows of the bucket. */
  static __device__ inline PersistentWork of_bucket(const PersistentProduct &product) {
    return {product, product.row_base + product.most_rows};
  }
  /* The same tiles, of fewer rows: those past *product.count are not there. */
  __device__ inline void count(const PersistentProduct &product) {
    rows = rows_from(product.row_base, *product.count, product.most_rows);
  }

  static __device__ inline uint32_t rank() { return Tile::MATES > 1 ? cluster_rank() : 0; }
  __device__ inline uint32_t first() const { return blockIdx.x / Tile::MATES; }
  __device__ inline uint32_t apart() const { return gridDim.x / Tile::MATES; }
};

template <class Tile>
struct PersistentRing {
  char *stages;
  uint64_t *full, *empty;
  uint32_t at = 0, parity = 0;

  /* In a block's shared memory, its barriers so many bytes behind it. */
  __device__ inline PersistentRing(char *shared, uint32_t barriers)
      : stages(shared), full(reinterpret_cast<uint64_t *>(shared + barriers)), empty(full + Tile::STAGES) {}
  /* One thread. */
  __device__ inline void init() const {
    for (uint32_t s = 0; s < Tile::STAGES; s++) {
      barrier_init(full + s, Tile::GATHERS ? 1 + GMMA_GROUP / WARP : 1);
      barrier_init(empty + s, Tile::MATES * PERSISTENT_GROUPS);
    }
  }

  __device__ inline void next() {
    if (++at == Tile::STAGES) at = 0, parity ^= 1;
  }
  /* A warpgroup is done with a stage: it is empty once those of all mates are. One thread. */
  __device__ inline void release(uint32_t stage) const {
    if constexpr (Tile::MATES == 1) {
      barrier_arrive(empty + stage);
    } else {
#pragma unroll
      for (uint32_t mate = 0; mate < Tile::MATES; mate++) barrier_arrive_at_block(empty + stage, mate);
    }
  }
  __device__ inline char *x() const { return stages + at * Tile::STAGE_BYTES; }
  __device__ inline char *w() const { return x() + Tile::X_BYTES; }
};

#endif
