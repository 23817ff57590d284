/* block.cuh: what a block of swap_ab/swap_ab.cuh's kernels is made of: the ring through which rows and weights come, their products,
 * and how the blocks of a cluster put sums together.
 */
#ifndef TAILGRAPH_SWAP_AB_BLOCK_CUH
#define TAILGRAPH_SWAP_AB_BLOCK_CUH

#include "tiled/tiled.cuh"
#include "swap_ab/args.h"
#include "common/wgmma.cuh"

constexpr uint32_t SWAP_AB_MOST_STAGES = TG_SWAP_AB_MOST_STAGES;
constexpr uint32_t SWAP_AB_PRODUCERS = 2 * WARP; /* threads: a warp asks for weights, and one for rows */
constexpr uint32_t SWAP_AB_PARTS = TG_PARTS;     /* of an f32 row */
constexpr uint32_t SWAP_AB_PART_BUFFERS = 3; /* one is read, one is written, one may be either for a warp that is behind */

/* Rows and weights of the same 16-bit type. */
template <typename T>
struct SwapAbHalf {
  using X = T;
  using W = T;
  static constexpr bool SPLIT = false;
};

/* f32 rows, bf16 weights. */
struct SwapAbSplit {
  using X = float;
  using W = __nv_bfloat16;
  static constexpr bool SPLIT = true;
};

/* How blocks of a cluster share. */
enum SwapAbSharing { SWAP_AB_SHARED /* K */, SWAP_AB_LONE /* nothing */, SWAP_AB_MATES /* rows, of the LM head */ };

/* ROWS batch rows, GROUPS warpgroups of WIDTH weight rows. */
template <class Math_, int ROWS_, int GROUPS_, int WIDTH_, SwapAbSharing SHARING = SWAP_AB_SHARED>
struct SwapAbTile {
  using Math = Math_;
  using X = typename Math::X;
  using W = typename Math::W;
  static constexpr uint32_t ROWS = ROWS_, GROUPS = GROUPS_, WIDTH = WIDTH_, OUTPUTS = GROUPS * WIDTH;
  static constexpr bool ALONE = SHARING != SWAP_AB_SHARED;            /* all of K is this block's */
  static constexpr uint32_t MATES = SHARING == SWAP_AB_MATES ? 2 : 1;  /* blocks of a cluster */
  static constexpr uint32_t CONSUMERS = GROUPS * GMMA_GROUP, THREADS = CONSUMERS + SWAP_AB_PRODUCERS;
  static constexpr uint32_t GROUP_BYTES = WIDTH * GMMA_ROW_BYTES;
  static constexpr uint32_t W_BYTES = GROUPS * GROUP_BYTES, X_BYTES = ROWS * GMMA_K * sizeof(X);
  static constexpr uint32_t STAGE_BYTES = W_BYTES + X_BYTES;
  static constexpr uint32_t PART_BYTES = Math::SPLIT ? SWAP_AB_PARTS * ROWS * GMMA_ROW_BYTES : 0;
  static constexpr uint32_t SPLIT_BYTES = SWAP_AB_PART_BUFFERS * PART_BYTES;
  static constexpr uint32_t PAST_BYTES = (GMMA_M - WIDTH) * GMMA_ROW_BYTES;  /* what an instruction reads behind the last group */
  static constexpr uint32_t OUT_PITCH = OUTPUTS + 4;  /* floats: the rows that a warp writes lie in different banks */
  static constexpr uint32_t EIGHTS = ROWS / 8;  /* of batch rows */
  static constexpr uint32_t EIGHT_BYTES = CONSUMERS * sizeof(float4);
  /* Where K is shared, what a block has of the eights that it sums itself comes before its finished rows. */
  static constexpr uint32_t OUT_BYTES = ROWS * OUT_PITCH * sizeof(float) + (ALONE ? 0 : EIGHTS * EIGHT_BYTES);
  static constexpr bool ROWS_FIRST = false;  /* weight rows are the instruction's M */
  static constexpr uint32_t N = ROWS;
  using Acc = float[N / 2];
  static_assert(WIDTH % 16 == 0 && WIDTH <= GMMA_M && OUTPUTS % 32 == 0, "whole warps; rows of sums in different banks");
};

/* Dynamic shared memory, from the next 1 KB on: the parts of f32 rows, the ring (whose place sums take once all is multiplied:
 * own(), out()), and the other blocks' sums: [blocks - 1, most(), CONSUMERS] of a thread's four. */
template <class Tile>
struct SwapAbBlock {
  using X = typename Tile::X;
  char *parts, *stages;
  float4 *sums;
  uint64_t *full, *empty, *summed;  /* [SWAP_AB_MOST_STAGES] each, and one */
  uint32_t count, rank, blocks, log_blocks;  /* a power of two */
  uint32_t at = 0, parity = 0;
  uint32_t part_at = 0;  /* buffer of parts that comes next: it goes on from tile to tile, as the ring does */

  __device__ inline SwapAbBlock(uint4 *shared, uint64_t *barriers, uint32_t stages_)
      : full(barriers), empty(barriers + SWAP_AB_MOST_STAGES), summed(barriers + 2 * SWAP_AB_MOST_STAGES), count(stages_),
        rank(Tile::ALONE ? 0 : cluster_rank()), blocks(Tile::ALONE ? 1 : cluster_blocks()), log_blocks(blocks > 4 ? 3 : blocks / 2) {
    const uint32_t over = shared_address(shared) % GMMA_ATOM_BYTES;
    parts = reinterpret_cast<char *>(shared) + (over ? GMMA_ATOM_BYTES - over : 0);
    stages = parts + Tile::SPLIT_BYTES;
    sums = reinterpret_cast<float4 *>(stages + max(count * Tile::STAGE_BYTES + Tile::PAST_BYTES, Tile::OUT_BYTES));
    if (threadIdx.x == 0) {
      for (uint32_t s = 0; s < count; s++)
        barrier_init(full + s, 1), barrier_init(empty + s, Tile::MATES * Tile::CONSUMERS / WARP);
      barrier_init(summed, 1);
      barriers_ready();
      barrier_arrive_expecting(summed, (blocks - 1) * eights() * Tile::OUTPUTS / 16 * WARP * sizeof(float4));
    }
    __syncthreads();
    if (blocks > 1 || Tile::MATES > 1) cluster_arrive();
    if (Tile::MATES > 1) cluster_wait();  /* what one asks for both may come at once */
  }

  __device__ inline char *stage(uint32_t s) const { return stages + s * Tile::STAGE_BYTES; }

  /* Eights that this block sums, and that the first one does. */
  __device__ inline uint32_t eights() const { return rank < Tile::EIGHTS ? ((Tile::EIGHTS - 1 - rank) >> log_blocks) + 1 : 0; }
  __device__ inline uint32_t most() const { return ((Tile::EIGHTS - 1) >> log_blocks) + 1; }

  /* Of those eights, what this block has itself: [most(), CONSUMERS] of a thread's four. */
  __device__ inline float4 *own() const { return reinterpret_cast<float4 *>(stages); }
  /* Finished rows: [rows(), OUT_PITCH], weight rows innermost. */
  __device__ inline float *out() const {
    return reinterpret_cast<float *>(stages + (Tile::ALONE ? 0 : most() * Tile::EIGHT_BYTES));
  }

  __device__ inline void next() {
    if (++at == count) at = 0, parity ^= 1;
  }

  static __device__ inline void consumers_meet() { threads_meet<Tile::CONSUMERS, 1>(); }

  /* A consumer warp is done with stage s, which will be filled again if `again`. Mates wait for each other there, and only
   * one that waits is sure to be still there. */
  __device__ inline void release(uint32_t s, bool again) const {
    if (threadIdx.x % WARP > 0) return;
    if (Tile::MATES == 1) {
      barrier_arrive(empty + s);
    } else if (again) {
#pragma unroll
      for (uint32_t mate = 0; mate < Tile::MATES; mate++) barrier_arrive_at_block(empty + s, mate);
    }
  }

  /* Whether this thread's warp multiplies. */
  static __device__ inline bool consumes() { return of_warp(threadIdx.x / WARP) < Tile::CONSUMERS / WARP; }

  /* The other two warps: `units` units, unit u being weights(u, to, barrier) and rows(u, to, barrier), of which only the latter
   * wait for earlier kernels; soon() where the ring has no more room for weights. */
  template <class Weights, class Rows, class Soon>
  __device__ inline void produce(uint32_t units, Weights weights, Rows rows, Soon soon) {
    const bool of_rows = of_warp(threadIdx.x / WARP) > Tile::CONSUMERS / WARP;
    if (of_rows) wait_for_earlier_kernels();
    if (threadIdx.x % WARP == 0) {
      for (uint32_t u = 0; u < units; u++, next()) {
        if (!of_rows && u == count) soon();
        barrier_wait(empty + at, parity ^ 1);
        if (of_rows) {
          rows(u, stage(at) + Tile::W_BYTES, full + at);
        } else {
          barrier_arrive_expecting(full + at, Tile::STAGE_BYTES);
          weights(u, stage(at), full + at);
        }
      }
    }
    __syncwarp();
    if (!of_rows) wait_for_earlier_kernels();
    if (blocks > 1) cluster_wait();
  }

  /* All consumers: acc = this warpgroup's sums over the next `steps` stages, at least one; `after` more will come. */
  __device__ inline void multiply(typename Tile::Acc &acc, uint32_t steps, uint32_t after = 0) {
    const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), full_at = kept(shared_address(full));
    const uint32_t w = gmma_operand(shared_address(stages)), x = w + gmma_apart(Tile::W_BYTES);
    const uint32_t m = (Tile::ROWS_FIRST ? x : w) + group * gmma_apart(Tile::GROUP_BYTES), n = Tile::ROWS_FIRST ? w : x;
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 2; i++) acc[i] = 0.0f;
    gmma_settle(acc);
    if constexpr (!Tile::Math::SPLIT) {
#pragma unroll 1
      for (uint32_t s = 0; s < steps; s++) {
        barrier_wait(full_at + at * (uint32_t)sizeof(uint64_t), parity);
        const uint32_t there = at * gmma_apart(Tile::STAGE_BYTES);
        gmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < GMMA_K / 16; k++)
          gmma<typename Tile::W, Tile::N>(acc, m + there + 2 * k, n + there + 2 * k, true);
        gmma_commit();
        if (s > 0) {
          gmma_wait<1>();
          release(before, s - 1 + count < steps + after);
        }
        before = at;
        next();
      }
      gmma_wait<0>();
      gmma_settle(acc);
      release(before, count <= after);
    } else {
      float part[SWAP_AB_PARTS * Tile::ROWS / 2];
      auto add = [&](bool again) {
        gmma_wait<0>();
        gmma_settle(part);
        constexpr uint32_t EACH = Tile::ROWS / 2;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) acc[i] += part[i] + (part[EACH + i] + part[2 * EACH + i]);
        release(before, again);
      };
#pragma unroll 1
      for (uint32_t s = 0; s < steps; s++) {
        barrier_wait(full + at, parity);
        char *to = parts + part_at * Tile::PART_BYTES;
        if (++part_at == SWAP_AB_PART_BUFFERS) part_at = 0;
        split(to, reinterpret_cast<const float *>(stage(at) + Tile::W_BYTES));
        operands_written();
        consumers_meet();
        if (s > 0) add(s - 1 + count < steps + after);
        const uint32_t parts_at = gmma_operand(shared_address(to)), there = m + at * gmma_apart(Tile::STAGE_BYTES);
        gmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < GMMA_K / 16; k++)
          gmma<typename Tile::W, SWAP_AB_PARTS * Tile::ROWS>(part, there + 2 * k, parts_at + 2 * k, k > 0);
        gmma_commit();
        before = at;
        next();
      }
      add(count <= after);
    }
  }

  /* All consumers: rows x[ROWS,GMMA_K] as their parts, [SWAP_AB_PARTS,ROWS] rows of an operand. */
  static __device__ inline void split(char *to, const float *x) {
    constexpr uint32_t PIECES = GMMA_ROW_BYTES / 16;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < Tile::ROWS * PIECES; i += Tile::CONSUMERS) {
      const uint32_t row = i / PIECES, piece = i % PIECES;
      const float4 lo = load4(x + row * GMMA_K + piece * 8), hi = load4(x + row * GMMA_K + piece * 8 + 4);
      uint32_t of[4][3];
      SplitMath::split(make_float2(lo.x, lo.y), of[0]);
      SplitMath::split(make_float2(lo.z, lo.w), of[1]);
      SplitMath::split(make_float2(hi.x, hi.y), of[2]);
      SplitMath::split(make_float2(hi.z, hi.w), of[3]);
#pragma unroll
      for (uint32_t p = 0; p < SWAP_AB_PARTS; p++)
        *reinterpret_cast<uint4 *>(to + (p * Tile::ROWS + row) * GMMA_ROW_BYTES + (piece ^ row % 8) * 16) =
            make_uint4(of[0][p], of[1][p], of[2][p], of[3][p]);
    }
  }

  /* Whether this warp's sums are of weight rows of the group. */
  static __device__ inline bool counts() { return threadIdx.x % GMMA_GROUP / WARP * 16 < Tile::WIDTH; }

  /* All consumers, where K is shared: what this block has of each eight to the block that sums it; then all of it is there. */
  __device__ inline void send(const typename Tile::Acc &acc) const {
    if (blocks > 1) cluster_wait();  /* all blocks have their barriers */
    consumers_meet();                /* no warp reads the ring any more */
    if (counts()) {
      const uint32_t to = shared_address(sums + threadIdx.x), counted = shared_address(summed);
#pragma unroll
      for (uint32_t j = 0; j < Tile::EIGHTS; j++) {
        const uint32_t owner = j & (blocks - 1), i = j >> log_blocks, from = rank < owner ? rank : rank - 1;
        const float4 v = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
        if (owner == rank)
          own()[i * Tile::CONSUMERS + threadIdx.x] = v;
        else
          store4_to_block(to + (from * most() + i) * Tile::EIGHT_BYTES, owner, v, counted);
      }
    }
    if (blocks > 1) barrier_wait_cluster(summed, 0);
  }

  /* After send(), a warp that counts(): this thread's sums over all blocks of the COUNT eights from the first-th on of those
   * that this block sums, in the order of the blocks. Of what lies past the last, nothing of use. */
  template <uint32_t COUNT>
  __device__ inline void sum(float4 (&of)[COUNT], uint32_t first) const {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) of[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (uint32_t b = 0; b < blocks; b++) {
      const float4 *from = (b == rank ? own() : sums + (b < rank ? b : b - 1) * most() * Tile::CONSUMERS) + threadIdx.x;
#pragma unroll
      for (uint32_t i = 0; i < COUNT; i++) {
        const float4 v = from[min(first + i, most() - 1) * Tile::CONSUMERS];
        of[i] = make_float4(of[i].x + v.x, of[i].y + v.y, of[i].z + v.z, of[i].w + v.w);
      }
    }
  }

  /* The weight row of the tile that v = 0 and 1 of a thread's four sums are of; 2 and 3 are of the one 8 further. */
  static __device__ inline uint32_t output() {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x % GMMA_GROUP / WARP;
    return threadIdx.x / GMMA_GROUP * Tile::WIDTH + warp * 16 + lane / 4;
  }

  /* All consumers: finished sums of the eights that this block sums to out(), the i-th of them at row 8 i; where K is shared
   * after send(). */
  __device__ inline void put(const typename Tile::Acc &acc) const {
    float *to = out() + threadIdx.x % 4 * 2 * Tile::OUT_PITCH + output();
    auto write = [&](uint32_t i, float4 v) {
      float *eight = to + i * 8 * Tile::OUT_PITCH;
      eight[0] = v.x, eight[Tile::OUT_PITCH] = v.y, eight[8] = v.z, eight[Tile::OUT_PITCH + 8] = v.w;
    };
    if constexpr (Tile::ALONE) {
      consumers_meet();  /* no warp reads the ring any more */
      if (counts())
#pragma unroll
        for (uint32_t i = 0; i < Tile::EIGHTS; i++)
          write(i, make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
    } else if (counts()) {
#pragma unroll 1
      for (uint32_t first = 0; first < eights(); first += 2) {
        float4 of[2];
        sum(of, first);
        write(first, of[0]);
        if (first + 1 < eights()) write(first + 1, of[1]);
      }
    }
    consumers_meet();
  }

  /* The row of the tile that is row i of out(). */
  __device__ inline uint32_t row(uint32_t i) const { return ((i / 8 << log_blocks) + rank) * 8 + i % 8; }

  /* Rows of out(), of which those at or past the tile's rows are no rows of the batch. */
  __device__ inline uint32_t rows() const { return eights() * 8; }

  __device__ inline float4 get(uint32_t i, uint32_t n) const { return load4(out() + i * Tile::OUT_PITCH + n); }
};

/* The stages of K that block `rank` of `blocks` takes. */
struct SwapAbRun {
  uint32_t first, steps;
  __device__ inline SwapAbRun(uint32_t inner, uint32_t rank, uint32_t blocks) {
    const uint32_t all = (inner + GMMA_K - 1) / GMMA_K;
    first = all * rank / blocks;
    steps = all * (rank + 1) / blocks - first;
  }
};

#endif
