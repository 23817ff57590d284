/* persistent.cuh: matrix products of many rows, at the speed of the tensor cores: Y[R,N] = X[R,K] W[N,K]^T, dense and by expert.
 *
 * One block an SM stays and takes tiles of 128 batch rows by WIDTH weight rows, every gridDim.x-th of them. Two warpgroups
 * multiply, 64 batch rows each (the M operand of wgmma; weight rows are its N operand), and a third fills a ring of stages in
 * shared memory, GMMA_K of K each, across tiles without a pause. Weights come by tensor copies; batch rows too, where they lie one
 * after the other. A gate and up by expert has rows of all places: there the third warpgroup gathers them, 16 bytes a copy.
 *
 * Sums leave by shared memory: a row of a tile is one bulk copy, or for the residual stream one bulk addition, which the copy
 * engine does while the next tile is multiplied. Rows past the tile's are not copied.
 *
 * Gate and up are one product of twice the outputs: weight rows come in turns, 8 of gate and 8 of up (a dimension of the tensor
 * map leads from one matrix to the other), so that both sums of an output lie in one thread.
 *
 * f32 rows come as three bf16 parts, which are exact but for their lowest bits (persistent/f32.cu): planes of x, each [R,K]. Their
 * products with a stage's weights are summed, smallest part first, in accumulators of the stage's own that are then added with
 * rounding, because the tensor cores truncate as they accumulate. Gate and up leave their outputs in such parts too.
 *
 * A sum runs over K in order in one accumulator, whichever block takes the tile. So a row's bits depend neither on the rows
 * beside it nor on where it lies.
 *
 * By expert, tiles are those of the token sort, of at most 128 rows: mates share an expert's weight rows where both tiles are its;
 * of a tile of up to 64 rows one warpgroup alone multiplies.
 *
 * Bound: the tensor cores, 2 R N K FLOP (4096 a cycle and SM). A tile's stage of 256 weight rows is 48 KB for 1,024 cycles, which
 * is more than the second-level cache gives to all SMs at full speed. So the two blocks of a cluster are mates: they take tiles
 * side by side, and each asks for half of the weight rows, for both.
 *
 * Measured alone on an H100 in bf16, 8,192 rows: 6144 outputs of 2048 in 303 us (680 TFLOP/s), 2048 of 2048 added to h in 133 (518),
 * gate and up of 2 x 7168 in 660 (730), 8192^3 in 1,450 (758); experts' gate and up, 32 of 1792, four a row, in 704 (683), down in
 * 399 (602). At 512 rows the experts' are bound by memory: 171 us (154 at 3.05 TB/s) and 96 (77). profiles/log/prompts.md.
 *
 * K is a multiple of 32, N anything; every array starts on 16 bytes. Needs sm_90a.
 */
#ifndef TAILGRAPH_PERSISTENT_CUH
#define TAILGRAPH_PERSISTENT_CUH

#include "common/bulk.cuh"
#include "common/experts.cuh"
#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "common/wgmma.cuh"
#include "persistent/args.h"
#include "tiled/tiled.cuh"
#include <type_traits>

constexpr uint32_t PERSISTENT_GROUPS = 2;  /* warpgroups that multiply */
constexpr uint32_t PERSISTENT_ROWS = PERSISTENT_GROUPS * GMMA_M;
constexpr uint32_t PERSISTENT_THREADS = (PERSISTENT_GROUPS + 1) * GMMA_GROUP;
constexpr uint32_t PERSISTENT_WARPS = PERSISTENT_GROUPS * GMMA_GROUP / WARP;
constexpr uint32_t PERSISTENT_WARP_ROWS = GMMA_M * WARP / GMMA_GROUP;  /* of a tile, whose sums a warp has */
constexpr uint32_t PERSISTENT_EARLY = 6;  /* stages of a block's first tile whose weights are asked for before earlier kernels end */
constexpr uint32_t PERSISTENT_BAND = 16;  /* row tiles whose weight rows are taken in one go, and so come from memory once */

/* Operands of type T, WIDTH weight rows of a tile; blocks that share weight rows; whether batch rows are gathered. */
template <typename T_, uint32_t WIDTH_, uint32_t STAGES_, uint32_t MATES_ = 1, bool GATHERS_ = false>
struct PersistentTile {
  using T = T_;
  static constexpr bool SPLIT = sizeof(T) == sizeof(float);
  using W = std::conditional_t<SPLIT, __nv_bfloat16, T>;  /* of weights, and of rows as they are multiplied */
  static constexpr uint32_t PARTS = SPLIT ? 3 : 1;
  static constexpr uint32_t WIDTH = WIDTH_, MATES = MATES_;
  static constexpr bool GATHERS = GATHERS_;
  static constexpr uint32_t PART_BYTES = PERSISTENT_ROWS * GMMA_ROW_BYTES, X_BYTES = PARTS * PART_BYTES;
  static constexpr uint32_t STAGE_BYTES = X_BYTES + WIDTH * GMMA_ROW_BYTES;
  static constexpr uint32_t STAGES = STAGES_;
  /* Finished columns of a warp's rows at a time, f32 or twice as many of 16 bits, with room between rows that spreads banks. */
  static constexpr uint32_t OUT_COLUMNS = STAGES * STAGE_BYTES > 160 * 1024 ? 64 : 128;
  static constexpr uint32_t OUT_PITCH = OUT_COLUMNS * sizeof(float) + 16;
  static constexpr uint32_t OUT_BYTES = PERSISTENT_WARP_ROWS * OUT_PITCH;
  static constexpr uint32_t BARRIERS = STAGES * STAGE_BYTES + PERSISTENT_WARPS * OUT_BYTES;  /* where they lie */
  static constexpr uint32_t SHARED = BARRIERS + 2 * STAGES * sizeof(uint64_t);
  using Acc = float[WIDTH / 2];
  static_assert(WIDTH % 128 == 0, "whole halves of 128 columns");
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

  /* What unit(t) is if each expert has one tile, or each row of the bucket is there. */
  __device__ inline PersistentUnit foreseen(uint32_t t) const {
    if (tiles) return {0, PERSISTENT_ROWS, t % slices, t / slices * Tile::MATES + rank(), false};
    return unit(t);
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

/* ---- filling the ring -------------------------------------------------------------------------- */

/* Who fills, when all is asked for: until all stages are empty again. Then every arrival that mates send to this block has come, and
 * it may end. (A barrier of the cluster does not say so: an arrival at another block may be on its way for longer.) One thread. */
template <class Tile>
__device__ inline void persistent_drain(PersistentRing<Tile> ring) {
#pragma unroll 1
  for (uint32_t s = 0; s < Tile::STAGES; s++, ring.next()) barrier_wait(ring.empty + ring.at, ring.parity ^ 1);
}

/* The unit's weight rows at stage k of K, by `ask(where they begin in the stage, where they lie in the tensor)`; of mates that share
 * them each asks for its part. */
template <class Tile, class Ask>
__device__ inline void persistent_parts(const PersistentProduct &product, const PersistentUnit &unit, uint32_t k, Ask ask) {
  const bool paired = product.epilogue == TILED_SILU_MUL;
  constexpr uint32_t ROWS = Tile::WIDTH / Tile::MATES;
  const bool by_groups = product.packed || paired;
#pragma unroll
  for (uint32_t part = 0; part < Tile::MATES; part++) {
    if (unit.shares && part != PersistentWork<Tile>::rank()) continue;
    const uint32_t first = unit.slice * Tile::WIDTH + part * ROWS;
    const uint32_t at[5] = {product.packed ? 0 : k * GMMA_K, product.packed ? k * PACKED_ROWS : by_groups ? 0 : first, 0,
                            by_groups ? first / 16 : 0, unit.expert};
    ask(part * ROWS * GMMA_ROW_BYTES, at);
  }
}

/* ... to this stage of the ring; shared ones to all mates'. */
template <class Tile>
__device__ inline void persistent_weights(const PersistentRing<Tile> &ring, const TensorMap *w_map, const PersistentProduct &product,
                                          const PersistentUnit &unit, uint32_t k) {
  const uint64_t policy = cache_policy(false);
  persistent_parts<Tile>(product, unit, k, [&](uint32_t begin, const uint32_t (&at)[5]) {
    if (Tile::MATES > 1 && unit.shares) {
      tensor_copy_to_blocks(ring.w() + begin, w_map, at, ring.full + ring.at, (1u << Tile::MATES) - 1, policy);
    } else {
      tensor_copy(ring.w() + begin, w_map, at, ring.full + ring.at, policy);
    }
  });
}

/* Weights depend on no earlier kernel, and memory has time while those few rows are routed or normed: the beginning of what this
 * block most likely takes first, to the second-level cache. Where it takes something else, another block reads these. One lane. */
template <class Tile>
__device__ inline void persistent_ask_early(const TensorMap *w_map, const PersistentProduct &product) {
  const PersistentWork<Tile> work(product, product.most_rows);
  const PersistentUnit unit = work.foreseen(work.first());
  const uint32_t steps = min(PERSISTENT_EARLY, (product.k_total + GMMA_K - 1) / GMMA_K);
#pragma unroll 1
  for (uint32_t k = 0; k < steps; k++)
    persistent_parts<Tile>(product, unit, k, [&](uint32_t, const uint32_t (&at)[5]) { tensor_prefetch(w_map, at); });
}

/* One lane, where tensor copies bring all. */
template <class Tile>
__device__ inline void persistent_copy(PersistentRing<Tile> ring, const TensorMap *x_map, const TensorMap *w_map,
                                       const PersistentProduct &product, const PersistentWork<Tile> &work) {
  const uint32_t steps = (product.k_total + GMMA_K - 1) / GMMA_K;
#pragma unroll 1
  for (uint32_t t = work.first(); t < work.units; t += work.apart()) {
    const PersistentUnit unit = work.unit(t);
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++, ring.next()) {
      barrier_wait(ring.empty + ring.at, ring.parity ^ 1);
      barrier_arrive_expecting(ring.full + ring.at, Tile::STAGE_BYTES);
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        tensor_copy(ring.x() + part * Tile::PART_BYTES, x_map, k * GMMA_K, part * product.x_plane + unit.first, ring.full + ring.at,
                    cache_policy(false));
      persistent_weights(ring, w_map, product, unit, k);
    }
  }
  if constexpr (Tile::MATES > 1) persistent_drain(ring);
}

/* A whole warpgroup, where rows are gathered. A thread has one piece of 16 bytes of every 16th row. A stage's rows are said to be
 * there once those of the next have been asked for. */
template <class Tile>
__device__ inline void persistent_gather(PersistentRing<Tile> ring, const TensorMap *w_map, const PersistentProduct &product,
                                         const PersistentWork<Tile> &work) {
  using W = typename Tile::W;
  constexpr uint32_t PIECES = GMMA_ROW_BYTES / 16, APART = GMMA_GROUP / PIECES, EACH = PERSISTENT_ROWS / APART;
  const uint32_t thread = threadIdx.x % GMMA_GROUP, lane = threadIdx.x % WARP;
  const uint32_t row = thread / PIECES, piece = thread % PIECES;
  const uint32_t steps = (product.k_total + GMMA_K - 1) / GMMA_K;
  const W *x = static_cast<const W *>(product.x) + piece * 8;
  const size_t plane = (size_t)product.x_plane * product.k_total;
  uint32_t asked = Tile::STAGES;  /* stage that has been asked for and not been said to be there */
  auto there = [&] {
    operands_written();
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.full + asked);
  };
#pragma unroll 1
  for (uint32_t t = work.first(); t < work.units; t += work.apart()) {
    const PersistentUnit unit = work.unit(t);
    uint32_t from[EACH];
    uint32_t valid = 0;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
      const bool has = row + i * APART < unit.rows;
      from[i] = (has ? product.gather[unit.first + row + i * APART] : 0) * product.k_total;
      valid |= (uint32_t)has << i;
    }
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++, ring.next()) {
      barrier_wait(ring.empty + ring.at, ring.parity ^ 1);
      if (thread == 0) {
        barrier_arrive_expecting(ring.full + ring.at, Tile::STAGE_BYTES - Tile::X_BYTES);
        persistent_weights(ring, w_map, product, unit, k);
      }
      char *to = ring.x() + gmma_piece_at(row, piece);
      const bool in_k = k * GMMA_K + piece * 8 < product.k_total;
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
          copy16_async(to + part * Tile::PART_BYTES + i * APART * GMMA_ROW_BYTES, x + part * plane + from[i] + (in_k ? k * GMMA_K : 0),
                       in_k && (valid >> i & 1));
      copy_commit();
      if (asked < Tile::STAGES) {
        copy_wait<1>();
        there();
      }
      asked = ring.at;
    }
  }
  copy_wait<0>();
  if (asked < Tile::STAGES) there();
  if constexpr (Tile::MATES > 1) {
    if (thread == 0) persistent_drain(ring);
  }
}

/* ---- multiplying ------------------------------------------------------------------------------- */

/* acc = this warpgroup's sums over all of K. */
template <class Tile>
__device__ inline void persistent_multiply(typename Tile::Acc &acc, PersistentRing<Tile> &ring, uint32_t group, uint32_t steps) {
  using W = typename Tile::W;
  const bool first_lane = threadIdx.x % GMMA_GROUP == 0;
  const uint32_t full = kept(shared_address(ring.full));
  const uint32_t x = gmma_operand(shared_address(ring.stages)) + group * gmma_apart(GMMA_M * GMMA_ROW_BYTES);
  const uint32_t w = gmma_operand(shared_address(ring.stages)) + gmma_apart(Tile::X_BYTES);
  if constexpr (Tile::SPLIT) {
#pragma unroll
    for (uint32_t i = 0; i < Tile::WIDTH / 2; i++) acc[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++, ring.next()) {
      typename Tile::Acc sums;
      barrier_wait(full + ring.at * (uint32_t)sizeof(uint64_t), ring.parity);
      const uint32_t there = ring.at * gmma_apart(Tile::STAGE_BYTES);
      gmma_fence();
#pragma unroll
      for (int part = Tile::PARTS - 1; part >= 0; part--)
#pragma unroll
        for (uint32_t i = 0; i < GMMA_K / 16; i++)
          gmma<W, Tile::WIDTH>(sums, x + there + part * gmma_apart(Tile::PART_BYTES) + 2 * i, w + there + 2 * i,
                               part + 1 < (int)Tile::PARTS || i > 0);
      gmma_commit();
      gmma_wait<0>();
      gmma_settle(sums);
      if (first_lane) ring.release(ring.at);
#pragma unroll
      for (uint32_t i = 0; i < Tile::WIDTH / 2; i++) acc[i] += sums[i];
    }
  } else {
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++) {
      barrier_wait(full + ring.at * (uint32_t)sizeof(uint64_t), ring.parity);
      const uint32_t there = ring.at * gmma_apart(Tile::STAGE_BYTES);
      gmma_fence();
#pragma unroll
      for (uint32_t i = 0; i < GMMA_K / 16; i++)
        gmma<W, Tile::WIDTH>(acc, x + there + 2 * i, w + there + 2 * i, k > 0 || i > 0);
      gmma_commit();
      if (k > 0) {
        gmma_wait<1>();
        if (first_lane) ring.release(before);
      }
      before = ring.at;
      ring.next();
    }
    gmma_wait<0>();
    gmma_settle(acc);
    if (first_lane) ring.release(before);
  }
}

/* A tile of which this warpgroup has no rows: one thread waits for each of its stages and gives it back. The ring cannot turn past
 * that thread; any other that waited too might be late, and wait for a parity that has been. (Where the group multiplies, none can:
 * a stage is given back behind an instruction that all four warps have issued.) Nor may the others go on before it is through,
 * since what they then waited for would look the same a turn too early. */
template <class Tile>
__device__ inline void persistent_skip(PersistentRing<Tile> &ring, uint32_t group, uint32_t steps) {
#pragma unroll 1
  for (uint32_t k = 0; k < steps; k++, ring.next()) {
    if (threadIdx.x % GMMA_GROUP) continue;
    barrier_wait(ring.full + ring.at, ring.parity);
    ring.release(ring.at);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t g = 0; g < PERSISTENT_GROUPS; g++)
    if (g == group) threads_meet<GMMA_GROUP>(1 + g);
}

/* ---- finished rows ------------------------------------------------------------------------------ */

/* A warp: COLUMNS columns of its rows, of type V, to y[0 ..][n ..]. `pair(i, half)` is this thread's i-th pair of neighbours
 * (columns 8 i + 2 q, of its row g or g + 8); what lies at or past `rows` or n_total stays here. */
template <uint32_t COLUMNS, typename V, class Pair>
__device__ inline void persistent_put(char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds, Pair pair) {
  constexpr uint32_t PITCH = COLUMNS * sizeof(V) + 16;
  const uint32_t lane = threadIdx.x % WARP;
  bulk_read();
  __syncwarp();
  char *to = out + lane / 4 * PITCH + lane % 4 * 2 * sizeof(V);
#pragma unroll
  for (uint32_t i = 0; i < COLUMNS / 8; i++)
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const float2 v = pair(i, half);
      char *at = to + half * 8 * PITCH + i * 8 * sizeof(V);
      if constexpr (sizeof(V) == 4) {
        *reinterpret_cast<float2 *>(at) = v;
      } else {
        *reinterpret_cast<uint32_t *>(at) = pack2<V>(v.x, v.y);
      }
    }
  operands_written();
  __syncwarp();
  const uint32_t columns = n < n_total ? min(COLUMNS, n_total - n) : 0;
  if (n_total % (16 / sizeof(V)) == 0) {
    if (lane < rows && columns > 0) {
      V *at = y + (size_t)lane * n_total + n;
      const char *from = out + lane * PITCH;
      if constexpr (sizeof(V) == 4) {
        if (adds) {
          bulk_add(at, from, columns * sizeof(V));
        } else {
          bulk_store(at, from, columns * sizeof(V));
        }
      } else {
        bulk_store(at, from, columns * sizeof(V));
      }
      bulk_commit();
    }
    return;
  }
  /* Rows of y that do not start on 16 bytes. */
#pragma unroll 1
  for (uint32_t i = lane; i < rows * columns; i += WARP) {
    const uint32_t r = i / columns, c = i % columns;
    const V v = *reinterpret_cast<const V *>(out + r * PITCH + c * sizeof(V));
    V *at = y + (size_t)r * n_total + n + c;
    if constexpr (sizeof(V) == 4) {
      *at = adds ? *at + v : v;
    } else {
      *at = v;
    }
  }
}

/* What becomes of a tile's sums. */
template <class Tile>
__device__ inline void persistent_finish(const typename Tile::Acc &acc, char *out, const PersistentProduct &product,
                                         const PersistentUnit &unit) {
  using T = typename Tile::T;
  const uint32_t above = of_warp(threadIdx.x / WARP) * PERSISTENT_WARP_ROWS, rows = rows_from(above, unit.rows, PERSISTENT_WARP_ROWS);
  const size_t row = (size_t)(unit.first + above) * product.n_total;
  const uint32_t column = threadIdx.x % 4 * 2;
  if (product.epilogue == TILED_SILU_MUL) {
    constexpr uint32_t OUTPUTS = Tile::WIDTH / 2;
    using W = typename Tile::W;
    W *y = static_cast<W *>(product.y) + row;
    auto of = [&](uint32_t i, uint32_t half) {
      const uint32_t at = 8 * i + 2 * half;
      const float2 a = make_float2(acc[at], acc[at + 1]), b = make_float2(acc[at + 4], acc[at + 5]);
      const float2 gate = product.up_first ? b : a, up = product.up_first ? a : b;
      return make_float2(gmma_silu(gate.x) * up.x, gmma_silu(gate.y) * up.y);
    };
    if constexpr (!Tile::SPLIT) {
      persistent_put<OUTPUTS>(out, y, rows, unit.slice * OUTPUTS, product.n_total, false, of);
    } else {
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        persistent_put<OUTPUTS>(out, y + (size_t)part * product.y_plane * product.n_total, rows, unit.slice * OUTPUTS, product.n_total,
                                false, [&](uint32_t i, uint32_t half) {
                                  float2 v = of(i, half);
#pragma unroll
                                  for (uint32_t p = 0; p < part; p++) {
                                    const float2 high = __bfloat1622float2(__float22bfloat162_rn(v));
                                    v = make_float2(v.x - high.x, v.y - high.y);
                                  }
                                  return v;
                                });
    }
    return;
  }
  const uint32_t n = unit.slice * Tile::WIDTH;
  auto of = [&](uint32_t i, uint32_t half) {
    float2 v = make_float2(acc[4 * i + 2 * half], acc[4 * i + 2 * half + 1]);
    const uint32_t c = n + 8 * i + column;
    if (product.bias) {
      if (c < product.n_total) v.x += product.bias[c];
      if (c + 1 < product.n_total) v.y += product.bias[c + 1];
    }
    return v;
  };
  auto put = [&](auto *y, bool adds) {
    constexpr uint32_t ROOM = Tile::OUT_COLUMNS * sizeof(float) / sizeof *y, COLUMNS = ROOM < Tile::WIDTH ? ROOM : Tile::WIDTH;
#pragma unroll
    for (uint32_t part = 0; part < Tile::WIDTH / COLUMNS; part++)
      persistent_put<COLUMNS>(out, y + row, rows, n + part * COLUMNS, product.n_total, adds,
                              [&](uint32_t i, uint32_t half) { return of(part * (COLUMNS / 8) + i, half); });
  };
  if (product.epilogue == TILED_STORE) {
    put(static_cast<T *>(product.y), false);
  } else {
    put(static_cast<float *>(product.y), product.epilogue == TILED_ADD);
  }
}

/* ---- the kernel ---------------------------------------------------------------------------------- */

template <class Tile>
__device__ inline void persistent(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product) {
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];  /* all that a block has, so that nothing aligns it otherwise */
  PersistentRing<Tile> ring;
  ring.stages = persistent_shared;
  ring.full = reinterpret_cast<uint64_t *>(persistent_shared + Tile::BARRIERS), ring.empty = ring.full + Tile::STAGES;
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP);
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < Tile::STAGES; s++) {
      barrier_init(ring.full + s, Tile::GATHERS ? 1 + GMMA_GROUP / WARP : 1);
      barrier_init(ring.empty + s, Tile::MATES * PERSISTENT_GROUPS);
    }
    barriers_ready();
  }
  __syncthreads();
  if constexpr (Tile::MATES > 1) cluster_arrive(), cluster_wait();
  if (threadIdx.x == PERSISTENT_GROUPS * GMMA_GROUP) persistent_ask_early<Tile>(w_map, product);
  wait_for_earlier_kernels();
  const PersistentWork<Tile> work(product, *product.count);
  if (group == PERSISTENT_GROUPS) {
    if constexpr (Tile::GATHERS) {
      persistent_gather(ring, w_map, product, work);
    } else if (threadIdx.x % GMMA_GROUP == 0) {
      persistent_copy(ring, x_map, w_map, product, work);
    }
  } else {
    char *out = ring.stages + Tile::STAGES * Tile::STAGE_BYTES + of_warp(threadIdx.x / WARP) * Tile::OUT_BYTES;
    const uint32_t steps = (product.k_total + GMMA_K - 1) / GMMA_K;
#pragma unroll 1
    for (uint32_t t = work.first(); t < work.units; t += work.apart()) {
      const PersistentUnit unit = work.unit(t);
      if (unit.rows <= group * GMMA_M) {
        persistent_skip(ring, group, steps);
        continue;
      }
      typename Tile::Acc acc;
      persistent_multiply(acc, ring, group, steps);
      persistent_finish<Tile>(acc, out, product, unit);
    }
    bulk_done();
  }
}

/* For the launcher: weight rows of a tile, mates, bytes of shared memory. */
#define PERSISTENT_TILE(NAME, ...) LAUNCH_CONSTANTS(NAME##_tile, 3, __VA_ARGS__::WIDTH, __VA_ARGS__::MATES, __VA_ARGS__::SHARED)

/* Maps: x[R, k_total], or [PARTS x_plane, k_total], in boxes of GMMA_K by PERSISTENT_ROWS; w in boxes of five dimensions, WIDTH / MATES rows of GMMA_K
 * (persistent_weights).
 * Launch: block = PERSISTENT_THREADS; cluster = MATES; grid = a block an SM, or a tile where those are fewer. */
#define PERSISTENT_DENSE(NAME, ...)                                                                                          \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                                         \
  extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)                                                        \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                                         \
           const tg_persistent_args a) {                                                                                     \
    GMMA_BODY(persistent<__VA_ARGS__>(&x, &w, PersistentProduct{a.y, a.bias, nullptr, a.count, nullptr, nullptr, a.row_base, \
                                                                a.most_rows, a.x_plane, a.y_plane, a.n_total, a.k_total,     \
                                                                a.epilogue, false, a.up_first != 0});)                       \
  }

/* By expert, w packed: gate and up of gathered rows x[gather[place]], to y by place; or down of x by place, to y by place. Down's
 * outputs of 16-bit rows are rounded to 16 bits, as is all that such rows leave: as f32 they are more bytes than the experts' weights. */
#define PERSISTENT_GATE_UP(NAME, ...)                                                                                          \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                                           \
  extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)                                                          \
      NAME(const __grid_constant__ TensorMap w, const tg_persistent_gate_up_args a) {                                          \
    GMMA_BODY(persistent<__VA_ARGS__>(nullptr, &w, PersistentProduct{a.y, nullptr, a.x, a.tile_count, a.tiles, a.gather, 0, 0, \
                                                                     a.x_plane, a.y_plane, a.n_total, a.k_total,               \
                                                                     TILED_SILU_MUL, true, a.up_first != 0});)                 \
  }
#define PERSISTENT_DOWN(NAME, ...)                                                                                           \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                                         \
  extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)                                                        \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                                         \
           const tg_persistent_down_args a) {                                                                                \
    GMMA_BODY(persistent<__VA_ARGS__>(&x, &w, PersistentProduct{a.y, nullptr, nullptr, a.tile_count, a.tiles, nullptr, 0, 0, \
                                                                a.x_plane, 0, a.n_total, a.k_total, TILED_STORE, true,       \
                                                                false});)                                                    \
  }

#endif
