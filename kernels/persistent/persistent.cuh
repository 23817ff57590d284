/* persistent.cuh: matrix products of many rows, at the speed of the tensor cores: Y[R,N] = X[R,K] W[N,K]^T, dense and by expert.
 *
 * One block an SM stays and takes tiles of 128 batch rows by WIDTH weight rows, every gridDim.x-th of them; of dense products the host
 * chooses the width whose blocks end soonest (families/persistent/tile.rs). Two warpgroups
 * multiply, 64 batch rows each (the M operand of wgmma; weight rows are its N operand), and a third fills a ring of stages in
 * shared memory, GMMA_K of K each, across tiles without a pause. Weights come by tensor copies; batch rows too, where they lie one
 * after the other. A gate and up by expert has rows of all places: there the third warpgroup gathers them, 16 bytes a copy.
 *
 * Sums leave by shared memory and bulk copies, beside the products of the next tile (finish.cuh); or a conv layer's rows do (conv.cuh).
 *
 * If no block has more than one tile of the bucket, which one it has follows from the bucket: then its weights come into the ring before
 * earlier kernels have ended. Else some are asked for into the second-level cache.
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
 * side by side, and each asks for half of the weight rows, for both. Narrower tiles are bound by shared memory: 832 cycles for the 768
 * of 192 weight rows, 640 for the 512 of 128.
 *
 * Measured alone on an H100 in bf16, 8,192 rows: 6144 outputs of 2048 in 303 us (680 TFLOP/s), 2048 of 2048 added to h in 133 (518),
 * gate and up of 2 x 7168 in 660 (730), 8192^3 in 1,450 (758); experts' gate and up, 32 of 1792, four a row, in 704 (683), down in
 * 399 (602). At 512 rows the experts' are bound by memory: 171 us (154 at 3.05 TB/s) and 96 (77). profiles/log/prompts.md.
 *
 * K is a multiple of 32, N anything; every array starts on 16 bytes. Needs sm_90a.
 */
#ifndef TAILGRAPH_PERSISTENT_CUH
#define TAILGRAPH_PERSISTENT_CUH

#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "persistent/finish.cuh"

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
  const bool by_groups = product.packed || paired || Tile::CONVOLVES;
#pragma unroll
  for (uint32_t part = 0; part < Tile::MATES; part++) {
    if (unit.shares && part != PersistentWork<Tile>::rank()) continue;
    const uint32_t first = unit.slice * Tile::WIDTH + part * ROWS;
    const uint32_t at[5] = {product.packed ? 0 : k * GMMA_K, product.packed ? k * PACKED_ROWS : by_groups ? 0 : first, 0,
                            by_groups ? first / Tile::GROUP_ROWS : 0, unit.expert};
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
      tensor_multicast(ring.w() + begin, w_map, at, ring.full + ring.at, (1u << Tile::MATES) - 1, policy);
    } else {
      tensor_copy(ring.w() + begin, w_map, at, ring.full + ring.at, policy);
    }
  });
}

/* Weights depend on no earlier kernel, and memory has time while those few rows are routed or normed: some stages' of the tile that
 * this block most likely takes first, to the second-level cache. Where it takes something else, another block reads these. One lane. */
template <class Tile>
__device__ inline void persistent_ask_early(const TensorMap *w_map, const PersistentProduct &product, const PersistentUnit &unit,
                                            uint32_t first, uint32_t steps) {
#pragma unroll 1
  for (uint32_t k = 0; k < min(PERSISTENT_EARLY, steps); k++)
    persistent_parts<Tile>(product, unit, first + k, [&](uint32_t, const uint32_t (&at)[5]) { tensor_prefetch(w_map, at); });
}

/* Where the unit is known for sure, to the ring itself, as much as it holds of `steps` stages of K from `first` on; then to the cache.
 * For how many stages the weights are under way to the ring. One lane. */
template <class Tile>
__device__ inline uint32_t persistent_begin(PersistentRing<Tile> ring, const TensorMap *w_map, const PersistentProduct &product,
                                            const PersistentUnit &unit, uint32_t first, uint32_t steps) {
  const uint32_t begun = min(Tile::STAGES, steps);
#pragma unroll 1
  for (uint32_t k = 0; k < begun; k++, ring.next()) {
    barrier_arrive_expecting(ring.full + ring.at, Tile::STAGE_BYTES);
    persistent_weights(ring, w_map, product, unit, first + k);
  }
  persistent_ask_early<Tile>(w_map, product, unit, first + begun, steps - begun);
  return begun;
}

/* One lane, where tensor copies bring all: a unit's rows and weights, `steps` stages of K from `first` on, of which those of the first
 * `begun` have been begun. What it does `meanwhile` it does behind each. */
template <class Tile, class Meanwhile>
__device__ inline void persistent_fill(PersistentRing<Tile> &ring, const TensorMap *x_map, const TensorMap *w_map,
                                       const PersistentProduct &product, const PersistentUnit &unit, uint32_t first, uint32_t steps,
                                       uint32_t begun, Meanwhile meanwhile) {
#pragma unroll 1
  for (uint32_t k = 0; k < steps; k++, ring.next()) {
    if (k >= begun) {
      barrier_wait(ring.empty + ring.at, ring.parity ^ 1);
      barrier_arrive_expecting(ring.full + ring.at, Tile::STAGE_BYTES);
    }
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
      tensor_copy(ring.x() + part * Tile::PART_BYTES, x_map, (first + k) * GMMA_K, part * product.x_plane + unit.first,
                  ring.full + ring.at, cache_policy(false));
    if (k >= begun) persistent_weights(ring, w_map, product, unit, first + k);
    meanwhile();
  }
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

/* ---- the kernel ---------------------------------------------------------------------------------- */

/* What becomes of a unit's sums: end(), by the warps that have them, and skip() by those whose group has no rows of it. What these need
 * beside the sums the warps of the third group bring that ask for nothing else, by bring(). */
template <class Tile>
struct PersistentFinish {
  static constexpr bool BRINGS = false;
  const PersistentProduct &product;
  __device__ inline void init() const {}  /* one thread, before anything else */
  __device__ inline void bring(const PersistentUnit &) const {}
  __device__ inline void skip() const {}
  __device__ inline void end(const typename Tile::Acc &acc, char *out, const PersistentUnit &unit) const {
    persistent_finish<Tile>(acc, out, product, unit);
  }
};

template <class Tile, class Finish>
__device__ inline void persistent(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product, Finish finish) {
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];  /* all that a block has, so that nothing aligns it otherwise */
  PersistentRing<Tile> ring(persistent_shared, Tile::BARRIERS);
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), steps = (product.k_total + GMMA_K - 1) / GMMA_K;
  const bool asks = threadIdx.x == PERSISTENT_GROUPS * GMMA_GROUP;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    ring.init();
    finish.init();
    barriers_ready();
  }
  __syncthreads();
  if constexpr (Tile::MATES > 1) cluster_arrive(), cluster_wait();
  /* If no block has more than one tile of the bucket, which one follows from the bucket. */
  const PersistentWork<Tile> bucket = PersistentWork<Tile>::of_bucket(product);
  const bool known = !product.tiles && bucket.units <= bucket.apart();
  uint32_t begun = 0;
  if (asks) {
    if constexpr (!Tile::GATHERS) tensor_map_prefetch(x_map);
    const PersistentUnit unit = bucket.foreseen(bucket.first());
    if (!known) {
      persistent_ask_early<Tile>(w_map, product, unit, 0, steps);
    } else if (bucket.first() < bucket.units) {
      begun = persistent_begin(ring, w_map, product, unit, 0, steps);
    }
  }
  wait_for_earlier_kernels();
  PersistentWork<Tile> work = known ? bucket : PersistentWork<Tile>(product, *product.count);
  if (known && !asks) work.count(product);  /* what it asks for does not depend on how many rows there are */
  if (group == PERSISTENT_GROUPS) {
    if constexpr (Tile::GATHERS) {
      persistent_gather(ring, w_map, product, work);
    } else if (asks) {
#pragma unroll 1
      for (uint32_t t = work.first(); t < work.units; t += work.apart(), begun = 0)
        persistent_fill(ring, x_map, w_map, product, work.unit(t), 0, steps, begun, [] {});
      if constexpr (Tile::MATES > 1) persistent_drain(ring);
    } else if (Finish::BRINGS && threadIdx.x >= PERSISTENT_GROUPS * GMMA_GROUP + WARP) {
#pragma unroll 1
      for (uint32_t t = work.first(); t < work.units; t += work.apart()) finish.bring(work.unit(t));
    }
  } else {
    char *out = ring.stages + Tile::STAGES * Tile::STAGE_BYTES + of_warp(threadIdx.x / WARP) * Tile::OUT_BYTES;
#pragma unroll 1
    for (uint32_t t = work.first(); t < work.units; t += work.apart()) {
      const PersistentUnit unit = work.unit(t);
      if (unit.rows <= group * GMMA_M) {
        persistent_skip(ring, group, steps);
        finish.skip();
        continue;
      }
      typename Tile::Acc acc;
      persistent_multiply(acc, ring, group, steps);
      finish.end(acc, out, unit);
    }
    bulk_done();
  }
}

template <class Tile>
__device__ inline void persistent(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product) {
  persistent<Tile>(x_map, w_map, product, PersistentFinish<Tile>{product});
}

/* For the launcher: weight rows of a tile, mates, blocks that share K, parts of a row, bytes of shared memory. */
#define PERSISTENT_TILE(NAME, ...) \
  LAUNCH_CONSTANTS(NAME##_tile, 5, __VA_ARGS__::WIDTH, __VA_ARGS__::MATES, 1, __VA_ARGS__::PARTS, __VA_ARGS__::SHARED)

/* Maps: x[R, k_total], or [PARTS x_plane, k_total], in boxes of GMMA_K by PERSISTENT_ROWS; w in boxes of five dimensions, WIDTH / MATES
 * rows of GMMA_K (persistent_weights).
 * Launch: block = PERSISTENT_THREADS; cluster = MATES; grid = a block an SM, or a tile where those are fewer. */
#define PERSISTENT_DENSE(NAME, ...)                                                                                \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                               \
  extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)                                              \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const tg_persistent_args a) { \
    GMMA_BODY(persistent<__VA_ARGS__>(&x, &w, persistent_dense(a));)                                               \
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
