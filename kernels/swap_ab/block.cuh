/* block.cuh: a block of swap_ab/'s kernels: its tile, its roles, and the exchange where a cluster splits K.
 *
 *   warps              | do                                                    | wait on                 | signal
 *   consumers          | mainloop, split-K's exchange, epilogue                | full, summed,           | empty; other blocks'
 *                      |                                                       | the grid before         | summed, where K is split
 *   weights' producer  | copies of weight rows, from before that wait on       | empty                   | full, whose phase it opens
 *   rows' producer     | copies of batch rows                                  | empty, the grid before  | full, by bytes alone
 */
#pragma once

#include "swap_ab/args.h"
#include "tiled/tiled.cuh"
#include "wgmma/mainloop.cuh"
#include "wgmma/operand.cuh"

constexpr uint32_t SWAP_AB_BARRIERS = 2 * TG_SWAP_AB_MOST_STAGES + 1;  /* full, empty, and one for split-K's sums */
constexpr uint32_t SWAP_AB_PRODUCERS = 2 * WARP;                    /* threads */
constexpr uint32_t SWAP_AB_BF16X3_BUFFERS = 3;  /* one is read, one is written, one may be either for a warp that is behind */

/* What the blocks of a cluster share. */
enum SwapAbCluster { SWAP_AB_SPLIT_K /* a tile, of which each sums over a run of K */, SWAP_AB_ALONE, SWAP_AB_MULTICAST /* rows */ };

/* ROWS batch rows, GROUPS warpgroups of WIDTH weight rows; or, with batch rows first, of 64 of them (conv.cuh). Weights in 8 bits, which warps
 * hold, are BOXES of WIDTH rows, of which each warp of the groups has the next 16. */
template <class Operand_, int ROWS_, int GROUPS_, int WIDTH_, SwapAbCluster CLUSTER = SWAP_AB_SPLIT_K, bool ROWS_FIRST_ = false,
          int BOXES_ = ROWS_FIRST_ ? 3 : GROUPS_>
struct SwapAbTile {
  using Operand = Operand_;
  using X = typename Operand::X;
  static constexpr bool ROWS_FIRST = ROWS_FIRST_;  /* batch rows are the instruction's M, else weight rows are */
  static constexpr bool IN_8_BITS = sizeof(typename Operand::Stored) == 1;  /* weights; else in 16 */
  static constexpr uint32_t ROWS = ROWS_, GROUPS = GROUPS_, WIDTH = WIDTH_, BOXES = BOXES_, OUTPUTS = BOXES * WIDTH;
  static constexpr bool SPLITS_K = CLUSTER == SWAP_AB_SPLIT_K, IS_BF16X3 = Operand::PARTS > 1;
  static constexpr uint32_t MULTICAST = CLUSTER == SWAP_AB_MULTICAST ? 2 : 1;  /* blocks */
  static constexpr uint32_t CONSUMERS = GROUPS * GMMA_GROUP, THREADS = CONSUMERS + SWAP_AB_PRODUCERS;
  static constexpr uint32_t GROUP_BYTES = (ROWS_FIRST ? GMMA_M : WIDTH) * GMMA_ROW_BYTES;  /* of M */
  static constexpr uint32_t BOX_BYTES = WIDTH * GMMA_K * sizeof(typename Operand::Stored), W_BYTES = BOXES * BOX_BYTES, X_BYTES = ROWS * GMMA_K * sizeof(X);
  static constexpr uint32_t STAGE_BYTES = W_BYTES + X_BYTES;
  static constexpr uint32_t BF16X3_BYTES = IS_BF16X3 ? Operand::PARTS * ROWS * GMMA_ROW_BYTES : 0;  /* of a buffer */
  static constexpr uint32_t BUFFERS_BYTES = SWAP_AB_BF16X3_BUFFERS * BF16X3_BYTES;
  /* What an instruction reads behind the last group. */
  static constexpr uint32_t PAST_BYTES = IN_8_BITS ? 0 : GMMA_M * GMMA_ROW_BYTES - GROUP_BYTES;
  static constexpr uint32_t OUT_PITCH = OUTPUTS + 4;  /* floats: the rows that a warp writes lie in different banks */
  static constexpr uint32_t FRAGMENTS = ROWS / 8;     /* of 8 batch rows, of which a thread has four sums each */
  static constexpr uint32_t FRAGMENT_BYTES = CONSUMERS * sizeof(float4);
  /* Where K is split, the own sums of the fragments that a block sums come before its finished rows. */
  static constexpr uint32_t OUT_BYTES = ROWS_FIRST ? 0 : ROWS * OUT_PITCH * sizeof(float) + (SPLITS_K ? FRAGMENTS * FRAGMENT_BYTES : 0);
  static constexpr uint32_t N = ROWS_FIRST ? OUTPUTS : ROWS;
  using Acc = float[N / 2];
  static_assert(WIDTH % 16 == 0 && WIDTH <= GMMA_M && (ROWS_FIRST || OUTPUTS % 32 == 0), "whole warps; rows of sums in different banks");
  static_assert(IN_8_BITS ? !ROWS_FIRST && OUTPUTS <= GROUPS * GMMA_M : ROWS_FIRST || BOXES == GROUPS, "weight rows have warps");

  /* Copies a box of WIDTH weight rows from `row` on. Maps of 16 bits are of a matrix, and of 8 bits of its packed blocks in elements of 16. */
  static __device__ inline void copy_weights(char *to, const TensorMap *map, uint32_t k_block, uint32_t row, uint64_t *barrier,
                                             uint64_t policy) {
    tensor_copy(to, map, k_block * BOX_COLUMNS, row / BOX_LINE, barrier, policy);
  }
  static __device__ inline void prefetch_weights(const TensorMap *map, uint32_t k_block, uint32_t row) {
    tensor_prefetch(map, k_block * BOX_COLUMNS, row / BOX_LINE);
  }

private:
  static constexpr uint32_t BOX_COLUMNS = IN_8_BITS ? E4M3_BLOCK_BYTES / 2 : GMMA_K, BOX_LINE = IN_8_BITS ? PACKED_ROWS : 1;
};

/* The k-blocks that block `rank` of `blocks` takes. */
struct SwapAbRun {
  uint32_t first, steps;
  __device__ inline SwapAbRun(uint32_t inner, uint32_t rank, uint32_t blocks) {
    const uint32_t all = (inner + GMMA_K - 1) / GMMA_K;
    first = all * rank / blocks;
    steps = all * (rank + 1) / blocks - first;
  }
};

/* Dynamic shared memory, from the next 1 KB on: bf16x3 of f32 rows; the pipeline, or once all is multiplied own() and out(); the other
 * blocks' sums, [blocks - 1, most(), CONSUMERS] of a thread's four. */
template <class Tile>
struct SwapAbBlock {
  using W = typename Tile::Operand::W;
  char *bf16x3;
  float4 *sums;
  uint64_t *summed;
  Pipeline<0, Tile::MULTICAST> pipe;
  uint32_t rank, blocks, log_blocks;  /* of those that split K; a power of two */
  uint32_t buffer = 0;                /* of bf16x3, the next: it goes on from tile to tile, as the pipeline does */

  __device__ inline SwapAbBlock(uint4 *shared, uint64_t (&barriers)[SWAP_AB_BARRIERS], uint32_t stages)
      : rank(Tile::SPLITS_K ? cluster_rank() : 0), blocks(Tile::SPLITS_K ? cluster_blocks() : 1), log_blocks(blocks > 4 ? 3 : blocks / 2) {
    const uint32_t over = shared_address(shared) % GMMA_ATOM_BYTES;
    bf16x3 = reinterpret_cast<char *>(shared) + (over ? GMMA_ATOM_BYTES - over : 0);
    pipe.stages = bf16x3 + Tile::BUFFERS_BYTES, pipe.count = stages;
    pipe.full = barriers, pipe.empty = barriers + TG_SWAP_AB_MOST_STAGES, summed = pipe.empty + TG_SWAP_AB_MOST_STAGES;
    sums = reinterpret_cast<float4 *>(pipe.stages + max(stages * Tile::STAGE_BYTES + Tile::PAST_BYTES, Tile::OUT_BYTES));
    if (threadIdx.x == 0) {
      pipe.init(1, Tile::CONSUMERS / WARP);
      barrier_init(summed, 1);
      barriers_ready();
      barrier_arrive_expecting(summed, (blocks - 1) * fragments() * Tile::OUTPUTS / 16 * WARP * sizeof(float4));
    }
    __syncthreads();
    if (blocks > 1 || Tile::MULTICAST > 1) cluster_arrive();
    if (Tile::MULTICAST > 1) cluster_wait();  /* what one issues for both may come at once */
  }

  static __device__ inline void consumers_meet() { threads_meet<Tile::CONSUMERS, 1>(); }

  /* ---- producers ---- */

  /* Whether this thread's warp is a consumer. */
  static __device__ inline bool consumes() { return of_warp(threadIdx.x / WARP) < Tile::CONSUMERS / WARP; }

  /* The other two warps: `steps` k-blocks, of which weights(step, to, barrier) and rows(step, to, barrier) issue the copies; only rows
   * depend on the grid before. beyond() is called once, where the pipeline has no more room for weights. */
  template <class Weights, class Rows, class Beyond>
  __device__ inline void produce(uint32_t steps, Weights weights, Rows rows, Beyond beyond) {
    const bool of_rows = of_warp(threadIdx.x / WARP) > Tile::CONSUMERS / WARP;
    if (of_rows) wait_for_earlier_kernels();
    if (threadIdx.x % WARP == 0) {
      for (uint32_t s = 0; s < steps; s++, pipe.next()) {
        if (!of_rows && s == pipe.count) beyond();
        pipe.acquire();
        char *stage = pipe.stages + pipe.at * Tile::STAGE_BYTES;
        if (of_rows) {
          rows(s, stage + Tile::W_BYTES, pipe.arrivals());
        } else {
          pipe.expect(Tile::STAGE_BYTES);
          weights(s, stage, pipe.arrivals());
        }
      }
    }
    __syncwarp();
    if (!of_rows) wait_for_earlier_kernels();
    if (blocks > 1) cluster_wait();
  }

  /* ---- consumers ---- */

  /* A consumer warp is done with a stage. Blocks that multicast signal each other, and only one that fills it `again` is sure to be there. */
  __device__ inline void release(uint32_t stage, bool again) const {
    if (threadIdx.x % WARP > 0) return;
    if (Tile::MULTICAST == 1 || again) pipe.release(stage);
  }

  /* acc = this warpgroup's sums over the next `steps` stages, at least one; `after` more will come. */
  __device__ inline void multiply(typename Tile::Acc &acc, uint32_t steps, uint32_t after = 0) {
    const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), full = kept(shared_address(pipe.full));
    const uint32_t w = gmma_operand(shared_address(pipe.stages)), x = w + gmma_apart(Tile::W_BYTES);
    const uint32_t m = (Tile::ROWS_FIRST ? x : w) + group * gmma_apart(Tile::GROUP_BYTES), n = Tile::ROWS_FIRST ? w : x;
    auto again = [&](uint32_t step) { return step + pipe.count < steps + after; };
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 2; i++) acc[i] = 0.0f;
    gmma_settle(acc);
    if constexpr (Tile::IN_8_BITS) {
      multiply_e4m3(acc, x, full, steps, again);
    } else if constexpr (!Tile::IS_BF16X3) {
      mainloop<false>(
          pipe, full, steps, [](uint32_t) {},
          [&](uint32_t stage, uint32_t) {
            const uint32_t there = stage * gmma_apart(Tile::STAGE_BYTES);
            multiply_k_block<W, Tile::N>(acc, m + there, n + there, true);
          },
          [&](uint32_t stage, uint32_t step) { release(stage, again(step)); });
      gmma_settle(acc);
    } else {
      constexpr uint32_t N = Tile::Operand::PARTS * Tile::ROWS;
      float part[N / 2];
      char *to;
      mainloop<true>(
          pipe, full, steps,
          [&](uint32_t stage) { to = prepared(stage); },
          [&](uint32_t stage, uint32_t) {
            multiply_k_block<W, N>(part, m + stage * gmma_apart(Tile::STAGE_BYTES), gmma_operand(shared_address(to)), false);
          },
          [&](uint32_t stage, uint32_t step) {
            gmma_settle(part);
            add_bf16x3(acc, part);
            release(stage, again(step));
          });
    }
  }

  /* Products of fragments, which follow each other along K. */
  template <int N, int COUNT>
  static __device__ inline void issue(float (&sums)[N / 2], const uint32_t (&a)[COUNT][4], uint32_t rows, bool add) {
    gmma_fence();
#pragma unroll
    for (int k = 0; k < COUNT; k++) gmma<W, N>(sums, a[k], rows + 2 * k, add || k > 0);
  }

  /* The same of weights in 8 bits, of which each warp holds 16 rows. x: the gmma_operand() of stage 0's rows. */
  template <class Again>
  __device__ inline void multiply_e4m3(typename Tile::Acc &acc, uint32_t x, uint32_t full, uint32_t steps, Again again) {
    /* A warp beyond the last weight row has that one's. */
    const uint32_t above = min(threadIdx.x / WARP, Tile::OUTPUTS / 16 - 1) * 2 * E4M3_BLOCK_BYTES, own = kept(above + E4m3Words::own_bytes());
    auto weights = [&](uint32_t stage) { return pipe.stages + above + stage * Tile::STAGE_BYTES; };
    auto rows = [&](uint32_t stage) {
      if constexpr (Tile::IS_BF16X3)
        return gmma_operand(shared_address(prepared(stage)));
      else
        return x + stage * gmma_apart(Tile::STAGE_BYTES);
    };
    constexpr uint32_t N = Tile::Operand::PARTS * Tile::ROWS;
    float part[Tile::IS_BF16X3 ? N / 2 : 1];
    auto done = [&](uint32_t stage, uint32_t step) {
      if constexpr (Tile::IS_BF16X3) gmma_settle(part), add_bf16x3(acc, part);
      release(stage, again(step));
    };
    /* Fragments of whole k-blocks would leave too few registers to bf16x3's sums, and to those of 256 rows. */
    if constexpr (!Tile::IS_BF16X3 && Tile::ROWS <= 128) {
      mainloop_fragments<1>(
          pipe, full, steps, [&](uint32_t stage, uint32_t) { return E4m3Words::load_own(pipe.stages + own + stage * Tile::STAGE_BYTES); },
          [&](const uint32_t(&a)[4][4], uint32_t stage, uint32_t, uint32_t) { issue<N>(acc, a, rows(stage), true), gmma_commit(); }, done);
    } else {
      mainloop_e4m3<Tile::IS_BF16X3>(
          pipe, full, steps, weights, rows,
          [&](const uint32_t(&a)[2][4], uint32_t operand, bool add) {
            if constexpr (Tile::IS_BF16X3)
              issue<N>(part, a, operand, add);
            else
              issue<N>(acc, a, operand, add);
          },
          done);
    }
    gmma_settle(acc);
  }

  /* A consumer's sums times the scales of its two weight rows in 8 bits. */
  static __device__ inline void scale(typename Tile::Acc &acc, const float (&scales)[2]) {
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 2; i++) acc[i] *= scales[i % 4 / 2];
  }

  /* A stage's rows of f32 as bf16x3, in the next buffer. */
  __device__ inline char *prepared(uint32_t stage) {
    char *to = bf16x3 + buffer * Tile::BF16X3_BYTES;
    if (++buffer == SWAP_AB_BF16X3_BUFFERS) buffer = 0;
    prepare(to, reinterpret_cast<const float *>(pipe.stages + stage * Tile::STAGE_BYTES + Tile::W_BYTES));
    operands_written();
    consumers_meet();
    return to;
  }

  /* Rows x[ROWS,GMMA_K] as bf16x3, [PARTS,ROWS] rows of an operand. */
  static __device__ inline void prepare(char *to, const float *x) {
    constexpr uint32_t PIECES = GMMA_ROW_BYTES / 16;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < Tile::ROWS * PIECES; i += Tile::CONSUMERS) {
      const float *from = x + i / PIECES * GMMA_K + i % PIECES * 8;
      Bf16x3::store(to + gmma_piece_at(i / PIECES, i % PIECES), Tile::ROWS * GMMA_ROW_BYTES, {load4(from), load4(from + 4)});
    }
  }

  /* ---- split-K: fragment j is summed by block j % blocks ---- */

  /* Fragments that this block sums, and that the first one does. */
  __device__ inline uint32_t fragments() const {
    return rank < Tile::FRAGMENTS ? ((Tile::FRAGMENTS - 1 - rank) >> log_blocks) + 1 : 0;
  }
  __device__ inline uint32_t most() const { return ((Tile::FRAGMENTS - 1) >> log_blocks) + 1; }

  /* The own sums of those fragments: [most(), CONSUMERS] of a thread's four. */
  __device__ inline float4 *own() const { return reinterpret_cast<float4 *>(pipe.stages); }
  /* Finished rows: [rows(), OUT_PITCH], weight rows innermost. */
  __device__ inline float *out() const {
    return reinterpret_cast<float *>(pipe.stages + (Tile::SPLITS_K ? most() * Tile::FRAGMENT_BYTES : 0));
  }

  /* Whether this warp's sums are of weight rows of the tile. */
  static __device__ inline bool counts() {
    return Tile::IN_8_BITS ? threadIdx.x / WARP * 16 < Tile::OUTPUTS : threadIdx.x % GMMA_GROUP / WARP * 16 < Tile::WIDTH;
  }

  /* All consumers, where K is split: each fragment goes to the block that sums it. Then all of this block's own are there. */
  __device__ inline void send(const typename Tile::Acc &acc) const {
    if (blocks > 1) cluster_wait();  /* all blocks have their barriers */
    consumers_meet();                /* no warp reads the stages any more */
    if (counts()) {
      const uint32_t to = shared_address(sums + threadIdx.x), counted = shared_address(summed);
#pragma unroll
      for (uint32_t j = 0; j < Tile::FRAGMENTS; j++) {
        const uint32_t owner = j & (blocks - 1), i = j >> log_blocks, from = rank < owner ? rank : rank - 1;
        if (owner == rank)
          own()[i * Tile::CONSUMERS + threadIdx.x] = fragment(acc, j);
        else
          store4_to_block(to + (from * most() + i) * Tile::FRAGMENT_BYTES, owner, fragment(acc, j), counted);
      }
    }
    if (blocks > 1) barrier_wait_cluster(summed, 0);
  }

  /* After send(), a warp that counts(): this thread's sums over all blocks, in order, of COUNT own fragments from the first-th on. */
  template <uint32_t COUNT>
  __device__ inline void sum(float4 (&of)[COUNT], uint32_t first) const {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) of[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (uint32_t b = 0; b < blocks; b++) {
      const float4 *from = (b == rank ? own() : sums + (b < rank ? b : b - 1) * most() * Tile::CONSUMERS) + threadIdx.x;
#pragma unroll
      for (uint32_t i = 0; i < COUNT; i++) of[i] = sum4(of[i], from[min(first + i, most() - 1) * Tile::CONSUMERS]);
    }
  }

  /* ---- the epilogue through shared memory ---- */

  /* The tile's weight row of a thread's first two sums of four; the others are of the one 8 further. */
  static __device__ inline uint32_t output() {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x % GMMA_GROUP / WARP;
    return threadIdx.x / GMMA_GROUP * (Tile::IN_8_BITS ? GMMA_M : Tile::WIDTH) + warp * 16 + lane / 4;
  }

  /* All consumers, where K is split after send(): finished sums of the i-th fragment that this block sums to row 8 i of out(). */
  __device__ inline void put(const typename Tile::Acc &acc) const {
    float *to = out() + threadIdx.x % 4 * 2 * Tile::OUT_PITCH + output();
    auto write = [&](uint32_t i, float4 v) {
      float *at = to + i * 8 * Tile::OUT_PITCH;
      at[0] = v.x, at[Tile::OUT_PITCH] = v.y, at[8] = v.z, at[Tile::OUT_PITCH + 8] = v.w;
    };
    if constexpr (!Tile::SPLITS_K) {
      consumers_meet();  /* no warp reads the stages any more */
      if (counts())
#pragma unroll
        for (uint32_t i = 0; i < Tile::FRAGMENTS; i++) write(i, fragment(acc, i));
    } else if (counts()) {
#pragma unroll 1
      for (uint32_t first = 0; first < fragments(); first += 2) {
        float4 of[2];
        sum(of, first);
        write(first, of[0]);
        if (first + 1 < fragments()) write(first + 1, of[1]);
      }
    }
    consumers_meet();
  }

  /* The row of the tile that is row i of out(), and how many rows out() has. */
  __device__ inline uint32_t row(uint32_t i) const { return ((i / 8 << log_blocks) + rank) * 8 + i % 8; }
  __device__ inline uint32_t rows() const { return fragments() * 8; }

  __device__ inline float4 get(uint32_t i, uint32_t n) const { return load4(out() + i * Tile::OUT_PITCH + n); }
};
