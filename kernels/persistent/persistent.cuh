/* persistent.cuh: matrix products of many rows, at the speed of the tensor cores: Y[R,N] = X[R,K] W[N,K]^T, dense and by expert.
 *
 * One block an SM stays and takes work tiles of 128 batch rows by WIDTH weight rows, every gridDim.x-th of them; of dense products the host
 * chooses the width whose blocks end soonest (families/persistent/tile.rs). Batch rows are the M operand of wgmma, weight rows its N; of
 * weights in 8 bits it is the other way round, and all consumers have all batch rows (e4m3.cuh), unless the rows are in 8 bits too (e4m3_rows.cuh).
 *
 *   warps                      | do                                              | wait on                | signal
 *   consumers, two warpgroups  | mainloop over 64 batch rows each, epilogue      | full                   | empty, once a warpgroup
 *   producer, one thread       | tensor copies of weights and of rows            | empty, the grid before | full
 *   gatherers, its warpgroup   | where rows are gathered: these, 16 bytes a copy | empty, the grid before | full, once a warp
 *   loaders, its 3 other warps | what a convolution needs (conv.cuh)             | used, the grid before  | there
 *
 * Where no block has more than one tile of the bucket, its tile follows from the bucket: then its weights come into the pipeline before
 * earlier kernels have ended. Else some are prefetched into L2.
 *
 * Gate and up are one product of twice the outputs: weight rows come in turns, 8 of gate and 8 of up (a dimension of the tensor map leads
 * from one matrix to the other), so that both sums of an output lie in one thread. f32 rows come as bf16x3 (tg_bf16x3_rows), three planes
 * of x; gate and up store such, too. By expert, tiles are those of the token sort, of at most 128 rows: blocks multicast an expert's
 * weight rows where both tiles are its; of a tile of up to 64 rows one warpgroup alone multiplies.
 *
 * A sum runs over K in order in one accumulator, whichever block takes the tile, so a row's bits do not depend on other rows.
 *
 * Bound: the tensor cores, 2 R N K FLOP (4096 a cycle and SM). A stage of 256 weight rows is 48 KB for 1,024 cycles, more than L2 gives to
 * all SMs. So the two blocks of a cluster take tiles side by side, and each copies half of the weight rows, for both. Narrower tiles are
 * bound by shared memory: 832 cycles for the 768 of 192 weight rows, 640 for the 512 of 128.
 * Measured in a step on an H200 in bf16, 8,000 rows (of 790 TFLOP/s): 6144 outputs of 2048 in 276 us (92%), 2048 of 2048 added to h in 113
 * (75%), gate and up of 2 x 7168 in 644 (92%); experts' gate and up, 32 of 1792, four a row, in 693 (86%), down in 347 (86%). With weights in 8
 * bits: 296, 119, 694, 798 and 394. At 512 rows the experts' are bound by memory. profiles/log/prompts.md.
 *
 * K is a multiple of 32, N anything; every array starts on 16 bytes. Needs sm_90a.
 */
#pragma once

#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "persistent/e4m3.cuh"
#include "wgmma/mainloop.cuh"

/* issue(where they begin in the stage, where they lie in the tensor) for the tile's weight rows of k-block k, of shared ones the own part. */
template <class Tile, class Issue>
__device__ inline void persistent_parts(const PersistentProduct &product, const PersistentWorkTile &tile, uint32_t k, Issue issue) {
  const bool paired = product.epilogue == TILED_SILU_MUL;
  constexpr uint32_t ROWS = Tile::WIDTH / Tile::MULTICAST;
  const bool by_groups = product.packed || paired || Tile::CONVOLVES;
#pragma unroll
  for (uint32_t part = 0; part < Tile::MULTICAST; part++) {
    if (tile.shares && part != PersistentScheduler<Tile>::rank()) continue;
    const uint32_t first = tile.slice * Tile::WIDTH + part * ROWS;
    if constexpr (Tile::E4M3 || Tile::E4M3_ROWS) {
      const uint32_t at[5] = {0, k * Tile::W_STEP, 0, first / (product.packed || paired ? Tile::GROUP_ROWS : PACKED_ROWS), tile.expert};
      issue(part * ROWS * Tile::W_ROW_BYTES, at);
      continue;
    }
    const uint32_t at[5] = {product.packed ? 0 : k * GMMA_K, product.packed ? k * PACKED_ROWS : by_groups ? 0 : first, 0,
                            by_groups ? first / Tile::GROUP_ROWS : 0, tile.expert};
    issue(part * ROWS * GMMA_ROW_BYTES, at);
  }
}

/* Weights of k-block k to this stage, or, where they are shared, to both blocks'. */
template <class Tile>
__device__ inline void persistent_weights(const PersistentPipeline<Tile> &pipe, const TensorMap *w_map, const PersistentProduct &product,
                                          const PersistentWorkTile &tile, uint32_t k) {
  const uint64_t policy = cache_policy(false);
  persistent_parts<Tile>(product, tile, k, [&](uint32_t begin, const uint32_t (&at)[5]) {
    if (Tile::MULTICAST > 1 && tile.shares) {
      tensor_multicast(pipe.w() + begin, w_map, at, pipe.arrivals(), (1u << Tile::MULTICAST) - 1, policy);
    } else {
      tensor_copy(pipe.w() + begin, w_map, at, pipe.arrivals(), policy);
    }
  });
}

/* One lane: some k-blocks' weights of the tile that this block most likely takes first, into L2, while earlier kernels run. */
template <class Tile>
__device__ inline void persistent_prefetch(const TensorMap *w_map, const PersistentProduct &product, const PersistentWorkTile &tile,
                                           uint32_t first, uint32_t steps) {
#pragma unroll 1
  for (uint32_t k = 0; k < min(PERSISTENT_AHEAD, steps); k++)
    persistent_parts<Tile>(product, tile, first + k, [&](uint32_t, const uint32_t (&at)[5]) { tensor_prefetch(w_map, at); });
}

/* One lane, where the tile is known: weights of the k-blocks that the pipeline holds into it, of some more into L2. Returns the former. */
template <class Tile>
__device__ inline uint32_t persistent_begin(PersistentPipeline<Tile> pipe, const TensorMap *w_map, const PersistentProduct &product,
                                            const PersistentWorkTile &tile, uint32_t first, uint32_t steps) {
  const uint32_t begun = min(Tile::STAGES, steps);
#pragma unroll 1
  for (uint32_t k = 0; k < begun; k++, pipe.next()) {
    pipe.expect(Tile::STAGE_BYTES);
    persistent_weights(pipe, w_map, product, tile, first + k);
  }
  persistent_prefetch<Tile>(w_map, product, tile, first + begun, steps - begun);
  return begun;
}

/* The producer where no rows are gathered: a tile's `steps` k-blocks from `first` on, meanwhile() behind each. `begun` have their weights. */
template <class Tile, class Meanwhile>
__device__ inline void persistent_copy(PersistentPipeline<Tile> &pipe, const TensorMap *x_map, const TensorMap *w_map,
                                       const PersistentProduct &product, const PersistentWorkTile &tile, uint32_t first, uint32_t steps,
                                       uint32_t begun, Meanwhile meanwhile) {
#pragma unroll 1
  for (uint32_t k = 0; k < steps; k++, pipe.next()) {
    if (k >= begun) {
      pipe.acquire();
      pipe.expect(Tile::STAGE_BYTES);
    }
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
      tensor_copy(pipe.x() + part * Tile::PART_BYTES, x_map, (first + k) * GMMA_K, part * product.x_plane + tile.first, pipe.arrivals(),
                  cache_policy(false));
    if (k >= begun) persistent_weights(pipe, w_map, product, tile, first + k);
    meanwhile();
  }
}

/* The producer warpgroup where rows are gathered, 16 bytes of every 16th row a thread: it signals a stage behind the next one's copies. */
template <class Tile>
__device__ inline void persistent_gather(PersistentPipeline<Tile> pipe, const TensorMap *w_map, const PersistentProduct &product,
                                         const PersistentScheduler<Tile> &scheduler) {
  using W = typename Tile::W;
  constexpr uint32_t PIECES = GMMA_ROW_BYTES / 16, APART = GMMA_GROUP / PIECES, EACH = TG_PERSISTENT_ROWS / APART;
  const uint32_t thread = threadIdx.x % GMMA_GROUP, lane = threadIdx.x % WARP;
  const uint32_t row = thread / PIECES, piece = thread % PIECES;
  const uint32_t steps = product.k_blocks();
  const W *x = static_cast<const W *>(product.x) + piece * 8;
  const size_t plane = (size_t)product.x_plane * product.k_total;
  uint32_t issued = Tile::STAGES;  /* stage whose rows have been issued, and not been signalled */
  auto signal = [&] {
    operands_written();
    __syncwarp();
    if (lane == 0) barrier_arrive(pipe.full + issued);
  };
#pragma unroll 1
  for (uint32_t t = scheduler.first(); t < scheduler.count; t += scheduler.apart()) {
    const PersistentWorkTile tile = scheduler.tile(t);
    uint32_t from[EACH];
    uint32_t valid = 0;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
      const bool has = row + i * APART < tile.rows;
      from[i] = (has ? product.gather[tile.first + row + i * APART] : 0) * product.k_total;
      valid |= (uint32_t)has << i;
    }
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++, pipe.next()) {
      pipe.acquire();
      if (thread == 0) {
        pipe.expect(Tile::STAGE_BYTES - Tile::X_BYTES);
        persistent_weights(pipe, w_map, product, tile, k);
      }
      char *to = pipe.x() + gmma_piece_at(row, piece);
      const bool in_k = k * GMMA_K + piece * 8 < product.k_total;
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
          copy16_async(to + part * Tile::PART_BYTES + i * APART * GMMA_ROW_BYTES, x + part * plane + from[i] + (in_k ? k * GMMA_K : 0),
                       in_k && (valid >> i & 1));
      copy_commit();
      if (issued < Tile::STAGES) {
        copy_wait<1>();
        signal();
      }
      issued = pipe.at;
    }
  }
  copy_wait<0>();
  if (issued < Tile::STAGES) signal();
  if constexpr (Tile::MULTICAST > 1) {
    if (thread == 0) pipe.drain();
  }
}

/* acc = this warpgroup's sums over `steps` k-blocks; of e4m3.cuh's tiles those of at least `rows` batch rows. */
template <class Tile>
__device__ inline void persistent_multiply(typename Tile::Acc &acc, PersistentPipeline<Tile> &pipe, const PersistentProduct &product,
                                           const PersistentWorkTile &tile, uint32_t group, uint32_t steps, uint32_t rows = TG_PERSISTENT_ROWS) {
  using W = typename Tile::W;
  const bool first_lane = threadIdx.x % GMMA_GROUP == 0;
  const uint32_t full = kept(shared_address(pipe.full));
  const uint32_t x = gmma_operand(shared_address(pipe.stages)) + group * gmma_apart(GMMA_M * GMMA_ROW_BYTES);
  const uint32_t w = gmma_operand(shared_address(pipe.stages)) + gmma_apart(Tile::X_BYTES);
  auto release = [&](uint32_t stage, uint32_t) {
    if (first_lane) pipe.release(stage);
  };
  if constexpr (Tile::E4M3) {
    persistent_multiply_e4m3<Tile>(acc, pipe, group, steps, rows);
  } else if constexpr (Tile::PARTS == 1 && !Tile::E4M3_ROWS) {
    mainloop<false>(
        pipe, full, steps, [](uint32_t) {},
        [&](uint32_t stage, uint32_t step) {
          const uint32_t there = stage * gmma_apart(Tile::STAGE_BYTES);
          multiply_k_block<W, Tile::WIDTH>(acc, x + there, w + there, step > 0);
        },
        release);
    gmma_settle(acc);
  } else {
    constexpr uint32_t TURNS = Tile::E4M3_ROWS ? 2 : 1, N = Tile::WIDTH / TURNS;  /* weight rows whose sums have registers at a time */
#pragma unroll
    for (uint32_t i = 0; i < Tile::WIDTH / 2; i++) acc[i] = 0.0f;
    PersistentRowScales<Tile> scales(product, tile, group);
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++, pipe.next()) {
      const uint32_t at = of_warp(pipe.at), there = at * gmma_apart(Tile::STAGE_BYTES);
      barrier_wait(full + at * (uint32_t)sizeof(uint64_t), pipe.parity);
#pragma unroll
      for (uint32_t turn = 0; turn < TURNS; turn++) {
        float sums[N / 2];
        gmma_fence();
#pragma unroll
        for (int part = Tile::PARTS - 1; part >= 0; part--)
          multiply_k_block<W, N>(sums, x + there + part * gmma_apart(Tile::PART_BYTES), w + there + turn * gmma_apart(N * GMMA_ROW_BYTES),
                                 part + 1 < (int)Tile::PARTS);
        gmma_commit();
        if (turn == 0) scales.next(k + 1 < steps);
        gmma_wait<0>();
        gmma_settle(sums);
        if (turn + 1 == TURNS) release(at, k);
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++) acc[turn * (N / 2) + i] = scales.add(acc[turn * (N / 2) + i], sums[i], i);
      }
    }
  }
}

/* A tile of which this warpgroup has no rows: one thread waits for each stage and releases it, so that the pipeline cannot turn past that
 * thread. Another that waited too might be late, for a parity that has been; one that went on before would be a turn too soon. (Where the
 * group multiplies, neither can happen: a stage is released behind an instruction that all four warps have issued.) */
template <class Tile>
__device__ inline void persistent_skip(PersistentPipeline<Tile> &pipe, uint32_t group, uint32_t steps) {
#pragma unroll 1
  for (uint32_t k = 0; k < steps; k++, pipe.next()) {
    if (threadIdx.x % GMMA_GROUP) continue;
    pipe.wait();
    pipe.release(pipe.at);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t g = 0; g < Tile::GROUPS; g++)
    if (g == group) threads_meet<GMMA_GROUP>(1 + g);
}

template <class Tile, class Epilogue = PersistentEpilogueOf<Tile>>
__device__ inline void persistent(const TensorMap *x_map, const TensorMap *w_map, const PersistentProduct &product,
                                  Epilogue epilogue = {}) {
  extern __shared__ __align__(GMMA_ATOM_BYTES) char persistent_shared[];  /* all that a block has, so that nothing aligns it otherwise */
  PersistentPipeline<Tile> pipe(persistent_shared, Tile::BARRIERS);
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), steps = product.k_blocks();
  const bool produces = threadIdx.x == Tile::GROUPS * GMMA_GROUP;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    pipe.init();
    epilogue.init();
    barriers_ready();
  }
  __syncthreads();
  if constexpr (Tile::MULTICAST > 1) cluster_arrive(), cluster_wait();
  const auto bucket = PersistentScheduler<Tile>::of_bucket(product);
  const bool known = !product.tiles && bucket.count <= bucket.apart();
  uint32_t begun = 0;
  if (produces) {
    if constexpr (!Tile::GATHERS) tensor_map_prefetch(x_map);
    const PersistentWorkTile tile = bucket.predicted(bucket.first());
    if (!known) {
      persistent_prefetch<Tile>(w_map, product, tile, 0, steps);
    } else if (bucket.first() < bucket.count) {
      begun = persistent_begin(pipe, w_map, product, tile, 0, steps);
    }
  }
  wait_for_earlier_kernels();
  PersistentScheduler<Tile> scheduler = known ? bucket : PersistentScheduler<Tile>(product, *product.count);
  if (known && !produces) scheduler.count_rows(product);  /* what it copies does not depend on how many rows there are */
  if (group == Tile::GROUPS) {
    if constexpr (Tile::TAKES_REGISTERS) give_registers<Tile::OTHER_REGISTERS>();
    if constexpr (Tile::GATHERS) {
      persistent_gather(pipe, w_map, product, scheduler);
    } else if (produces) {
#pragma unroll 1
      for (uint32_t t = scheduler.first(); t < scheduler.count; t += scheduler.apart(), begun = 0)
        persistent_copy(pipe, x_map, w_map, product, scheduler.tile(t), 0, steps, begun, [] {});
      if constexpr (Tile::MULTICAST > 1) pipe.drain();
    } else if (Epilogue::LOADS && threadIdx.x >= Tile::GROUPS * GMMA_GROUP + WARP) {
#pragma unroll 1
      for (uint32_t t = scheduler.first(); t < scheduler.count; t += scheduler.apart()) epilogue.load(scheduler.tile(t));
    }
  } else {
    if constexpr (Tile::TAKES_REGISTERS) take_registers<Tile::REGISTERS>();
    char *out = pipe.stages + Tile::STAGES * Tile::STAGE_BYTES + (Tile::E4M3 ? group : of_warp(threadIdx.x / WARP)) * Tile::OUT_BYTES;
#pragma unroll 1
    for (uint32_t t = scheduler.first(); t < scheduler.count; t += scheduler.apart()) {
      const PersistentWorkTile tile = scheduler.tile(t);
      if (tile.rows <= (Tile::E4M3 ? 0 : group * GMMA_M)) {
        persistent_skip(pipe, group, steps);
        epilogue.skip();
        continue;
      }
      typename Tile::Acc acc;
      epilogue.begin(product, tile);
      if constexpr (Tile::E4M3_ROWS) persistent_load_scales<Tile>(out, product, tile);
      persistent_multiply(acc, pipe, product, tile, group, steps, Tile::E4M3 && product.tiles ? of_warp(tile.rows) : TG_PERSISTENT_ROWS);
      if constexpr (Tile::E4M3_ROWS) persistent_scale<Tile>(acc, out);
      epilogue.store(acc, out, product, tile);
    }
    if constexpr (Tile::CONVOLVES) bulk_done();
  }
}

/* For the launcher: weight rows of a tile, blocks that multicast, blocks that split K, parts of a row, bytes of shared memory, threads, bytes of a
 * weight row in a stage. */
#define PERSISTENT_TILE(NAME, ...)                                                                              \
  LAUNCH_CONSTANTS(NAME##_tile, 7, __VA_ARGS__::WIDTH, __VA_ARGS__::MULTICAST, __VA_ARGS__::SPLIT_K, __VA_ARGS__::PARTS, \
                   __VA_ARGS__::SHARED, __VA_ARGS__::THREADS, __VA_ARGS__::W_ROW_BYTES)

/* Maps: x[R, k_total], or [PARTS x_plane, k_total], in boxes of GMMA_K by TG_PERSISTENT_ROWS; w in boxes of five dimensions,
 * WIDTH / MULTICAST rows of GMMA_K (persistent_weights).
 * Launch: block = THREADS; cluster = MULTICAST; grid = a block an SM, or a tile where those are fewer. */
#define PERSISTENT_DENSE(NAME, ...) PERSISTENT_KERNEL(NAME, persistent, persistent_product<false>(a, a.epilogue), __VA_ARGS__)
#define PERSISTENT_KERNEL(NAME, BODY, PRODUCT, ...)                                                                \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                               \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                              \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const tg_persistent_args a) { \
    BODY<__VA_ARGS__>(&x, &w, PRODUCT);                                                                            \
  }

/* By expert: gate and up of gathered rows x[gather[place]], to y by place; or down of x by place, to y by place. Down's outputs of
 * 16-bit rows are rounded to 16 bits: as f32 they are more bytes than the experts' weights. */
#define PERSISTENT_DOWN(NAME, ...) PERSISTENT_KERNEL(NAME, persistent, persistent_product<true>(a, TILED_STORE), __VA_ARGS__)
#define PERSISTENT_GATE_UP(NAME, ...)                                                                    \
  PERSISTENT_TILE(NAME, __VA_ARGS__)                                                                     \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                    \
      NAME(const __grid_constant__ TensorMap w, const tg_persistent_args a) {                            \
    persistent<__VA_ARGS__>(nullptr, &w, persistent_product<true>(a, TILED_SILU_MUL));                   \
  }
