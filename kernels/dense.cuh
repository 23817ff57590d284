/* dense.cuh: matrix products of decode steps of up to 256 rows, at the speed of memory: Y[R,N] = X[R,K] W[N,K]^T.
 *
 * Weight rows are the M operand of wgmma (64 a warpgroup), batch rows its N operand: all rows of the bucket, so that a
 * weight crosses memory once. A block has GROUPS warpgroups that multiply, 64 weight rows each, and a producer warp that
 * fills a ring of stages in shared memory with tensor copies: GMMA_K of K of all of the block's weight rows, and of all
 * batch rows. Weights depend on no kernel, so the whole ring's are asked for before griddepcontrol.wait; where blocks share a
 * tile, what the ring has no room for comes to the second-level cache meanwhile.
 *
 * Where N has too few tiles to fill the GPU the blocks of a cluster share one: each takes a run of K, sends what it has of
 * eight batch rows in turn to the block that sums those, and sums its own, in the order of the blocks. So the order of
 * every sum follows from K and the size of the cluster alone, and a row's bits depend neither on the rows beside it nor on
 * where it lies.
 *
 * Where there are several row tiles, blocks of a cluster may instead be mates: of the same weight rows, each with a row tile
 * of its own. Then each asks for its share of the weights, for both, so that they leave the second-level cache once. The LM head's
 * mates have weight rows of their own and share the batch rows likewise (dense_head.cuh).
 *
 * A group may have fewer weight rows than its instruction takes: then the others' sums are of whatever lies there, and
 * nobody looks at them.
 *
 * f32 rows are the sum of three bf16 parts, exactly but for their lowest bits; the parts are rows of their own for the
 * instruction. It truncates as it accumulates, so a stage has sums of its own that are added with rounding.
 *
 * Measured on an H200 in bf16, 2048 outputs of 2048 that add to h (floor; how: profiles/README.md): 7.3 us (1.8) at 64 rows, 15.6
 * (2.7) at 256.
 *
 * N may be anything, K is a multiple of 32 (what a copy finds past a matrix are zeros). Every array starts on 16 bytes.
 * Needs sm_90a.
 */
#ifndef TAILGRAPH_DENSE_CUH
#define TAILGRAPH_DENSE_CUH

#include "linear.cuh"
#include "warpgroup.cuh"

constexpr uint32_t DENSE_MOST_STAGES = 16;
constexpr uint32_t DENSE_MOST_SOON = 24;   /* stages that find no room in the ring, and come to the second-level cache early */
constexpr uint32_t DENSE_MOST_AHEAD = 4;   /* float4 of a thread that are asked for before the products they are added to */
constexpr uint32_t DENSE_PARTS = 3;        /* of an f32 row */
constexpr uint32_t DENSE_PART_BUFFERS = 3; /* one is read, one is written, one may be either for who is behind */

/* Rows and weights of the same 16-bit type. */
template <typename T>
struct DenseHalf {
  using X = T;
  using W = T;
  static constexpr bool SPLIT = false;
};

/* f32 rows, bf16 weights. */
struct DenseSplit {
  using X = float;
  using W = __nv_bfloat16;
  static constexpr bool SPLIT = true;
};

/* How blocks of a cluster share. */
enum DenseSharing { DENSE_SHARED /* K */, DENSE_LONE /* nothing */, DENSE_MATES /* weights; of the LM head: rows */ };

/* ROWS batch rows, GROUPS warpgroups of WIDTH weight rows. */
template <class Math_, int ROWS_, int GROUPS_, int WIDTH_, DenseSharing SHARING = DENSE_SHARED>
struct DenseTile {
  using Math = Math_;
  using X = typename Math::X;
  using W = typename Math::W;
  static constexpr uint32_t ROWS = ROWS_, GROUPS = GROUPS_, WIDTH = WIDTH_, OUTPUTS = GROUPS * WIDTH;
  static constexpr bool ALONE = SHARING != DENSE_SHARED;            /* all of K is this block's */
  static constexpr uint32_t MATES = SHARING == DENSE_MATES ? 2 : 1;  /* blocks of a cluster */
  static constexpr uint32_t CONSUMERS = GROUPS * GMMA_GROUP, THREADS = CONSUMERS + WARP;
  static constexpr uint32_t GROUP_BYTES = WIDTH * GMMA_ROW_BYTES;
  static constexpr uint32_t W_BYTES = GROUPS * GROUP_BYTES, X_BYTES = ROWS * GMMA_K * sizeof(X);
  static constexpr uint32_t STAGE_BYTES = W_BYTES + X_BYTES;
  static constexpr uint32_t PART_BYTES = Math::SPLIT ? DENSE_PARTS * ROWS * GMMA_ROW_BYTES : 0;
  static constexpr uint32_t SPLIT_BYTES = DENSE_PART_BUFFERS * PART_BYTES;
  static constexpr uint32_t PAST_BYTES = (GMMA_M - WIDTH) * GMMA_ROW_BYTES;  /* what an instruction reads behind the last group */
  static constexpr uint32_t OUT_PITCH = OUTPUTS + 4;  /* floats: the rows that a warp writes lie in different banks */
  static constexpr uint32_t OUT_BYTES = ROWS * OUT_PITCH * sizeof(float);
  static constexpr uint32_t EIGHTS = ROWS / 8;  /* of batch rows */
  static constexpr uint32_t EIGHT_BYTES = CONSUMERS * sizeof(float4);
  using Acc = float[ROWS / 2];
  static_assert(WIDTH % (8 * MATES) == 0, "a mate asks for whole atoms");
  static_assert(WIDTH % 16 == 0 && WIDTH <= GMMA_M && OUTPUTS % 32 == 0, "whole warps; rows of sums in different banks");
};

/* Dynamic shared memory, from the next 1 KB on: the parts of f32 rows, the ring (whose place finished sums take where they
 * change hands), and the other blocks' sums: [blocks - 1, this block's eights, CONSUMERS] of a thread's four. */
template <class Tile>
struct DenseBlock {
  using X = typename Tile::X;
  char *parts, *stages;
  float4 *sums;
  uint64_t *full, *empty, *summed;  /* [DENSE_MOST_STAGES] each, and one */
  uint32_t count, rank, blocks, log_blocks;  /* a power of two */
  uint32_t at = 0, parity = 0;
  uint32_t part_at = 0;  /* buffer of parts that comes next: it goes on from tile to tile, as the ring does */

  __device__ inline DenseBlock(uint4 *shared, uint64_t *barriers, uint32_t stages_)
      : full(barriers), empty(barriers + DENSE_MOST_STAGES), summed(barriers + 2 * DENSE_MOST_STAGES), count(stages_),
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
      const uint32_t mine = rank < Tile::EIGHTS ? ((Tile::EIGHTS - 1 - rank) >> log_blocks) + 1 : 0;
      barrier_arrive_expecting(summed, (blocks - 1) * mine * Tile::OUTPUTS / 16 * WARP * sizeof(float4));
    }
    __syncthreads();
    if (blocks > 1 || Tile::MATES > 1) cluster_arrive();
    if (Tile::MATES > 1) cluster_wait();  /* what one asks for both may come at once */
  }

  __device__ inline char *stage(uint32_t s) const { return stages + s * Tile::STAGE_BYTES; }
  __device__ inline float *out() const { return reinterpret_cast<float *>(stages); }

  __device__ inline void next() {
    if (++at == count) at = 0, parity ^= 1;
  }

  static __device__ inline void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(Tile::CONSUMERS) : "memory"); }

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

  /* This thread asks for a group's weights, rows from `row` on: for its mates too, which ask for the rest of them. */
  static __device__ inline void ask_for_weights(char *to, const TensorMap *map, uint32_t column, uint32_t row, uint64_t *barrier,
                                                uint64_t policy) {
    if constexpr (Tile::MATES == 1) {
      tensor_copy(to, map, column, row, barrier, policy);
    } else {
      constexpr uint32_t SHARE = Tile::WIDTH / Tile::MATES;
      const uint32_t mate = cluster_rank();
      tensor_copy_to_blocks(to + mate * SHARE * GMMA_ROW_BYTES, map, column, row + mate * SHARE, barrier,
                            (1u << Tile::MATES) - 1, policy);
    }
  }

  /* The producer's thread: `count_` units, unit u being weights(u, to, barrier) and rows(u, to, barrier), of which only the
   * former may come before the wait, which is wait(). */
  template <class Weights, class Rows, class Wait>
  __device__ inline void produce(uint32_t units, Weights weights, Rows rows, Wait wait) {
    const uint32_t early = min(units, count);
    for (uint32_t u = 0; u < early; u++) {
      barrier_arrive_expecting(full + u, Tile::STAGE_BYTES);
      weights(u, stage(u), full + u);
    }
    wait();
    for (uint32_t u = 0; u < early; u++) rows(u, stage(u) + Tile::W_BYTES, full + u);
    at = early % count, parity = early / count;
    for (uint32_t u = early; u < units; u++, next()) {
      barrier_wait(empty + at, parity ^ 1);
      barrier_arrive_expecting(full + at, Tile::STAGE_BYTES);
      weights(u, stage(at), full + at);
      rows(u, stage(at) + Tile::W_BYTES, full + at);
    }
  }

  /* All consumers: acc = this warpgroup's sums over the next `steps` stages, at least one; `after` more will come. */
  __device__ inline void multiply(typename Tile::Acc &acc, uint32_t steps, uint32_t after = 0) {
    const uint32_t group = threadIdx.x / GMMA_GROUP;
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < Tile::ROWS / 2; i++) acc[i] = 0.0f;
    gmma_settle(acc);
    if constexpr (!Tile::Math::SPLIT) {
#pragma unroll 1
      for (uint32_t s = 0; s < steps; s++) {
        barrier_wait(full + at, parity);
        const uint64_t w = gmma_operand(stage(at) + group * Tile::GROUP_BYTES), x = gmma_operand(stage(at) + Tile::W_BYTES);
        gmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma<typename Tile::W, Tile::ROWS>(acc, w + 2 * k, x + 2 * k, true);
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
      float part[DENSE_PARTS * Tile::ROWS / 2];
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
        if (++part_at == DENSE_PART_BUFFERS) part_at = 0;
        split(to, reinterpret_cast<const float *>(stage(at) + Tile::W_BYTES));
        operands_written();
        consumers_meet();
        if (s > 0) add(s - 1 + count < steps + after);
        const uint64_t w = gmma_operand(stage(at) + group * Tile::GROUP_BYTES), x = gmma_operand(to);
        gmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < GMMA_K / 16; k++)
          gmma<typename Tile::W, DENSE_PARTS * Tile::ROWS>(part, w + 2 * k, x + 2 * k, k > 0);
        gmma_commit();
        before = at;
        next();
      }
      add(count <= after);
    }
  }

  /* All consumers: rows x[ROWS,GMMA_K] as their parts, [DENSE_PARTS,ROWS] rows of an operand. */
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
      for (uint32_t p = 0; p < DENSE_PARTS; p++)
        *reinterpret_cast<uint4 *>(to + (p * Tile::ROWS + row) * GMMA_ROW_BYTES + (piece ^ row % 8) * 16) =
            make_uint4(of[0][p], of[1][p], of[2][p], of[3][p]);
    }
  }

  /* Whether this warp's sums are of weight rows of the group. */
  static __device__ inline bool counts() { return threadIdx.x % GMMA_GROUP / WARP * 16 < Tile::WIDTH; }

  /* Whether this block sums the eight batch rows from 8 j on. */
  __device__ inline bool owns(uint32_t j) const { return (j & (blocks - 1)) == rank; }

  /* All consumers: of the eights that this block owns acc becomes the sums over all blocks of the cluster. */
  __device__ inline void reduce(typename Tile::Acc &acc) const {
    if (blocks == 1) return;
    cluster_wait();  /* all blocks have their barriers */
    const uint32_t most = ((Tile::EIGHTS - 1) >> log_blocks) + 1;
    const uint32_t mine = shared_address(sums + threadIdx.x), counted = shared_address(summed);
    if (counts()) {
#pragma unroll
      for (uint32_t j = 0; j < Tile::EIGHTS; j++) {
        if (owns(j)) continue;
        const uint32_t owner = j & (blocks - 1), from = rank < owner ? rank : rank - 1;
        store4_to_block(mine + (from * most + (j >> log_blocks)) * Tile::EIGHT_BYTES, owner,
                        make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]), counted);
      }
    }
    barrier_wait_cluster(summed, 0);
#pragma unroll
    for (uint32_t j = 0; j < Tile::EIGHTS; j++) {
      if (!owns(j)) continue;
      asm volatile("" ::: "memory");  /* one after the other: registers are short */
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
      for (uint32_t b = 0; b < blocks; b++) {
        float4 v = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
        if (b != rank) v = sums[((b < rank ? b : b - 1) * most + (j >> log_blocks)) * Tile::CONSUMERS + threadIdx.x];
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      acc[4 * j] = sum.x, acc[4 * j + 1] = sum.y, acc[4 * j + 2] = sum.z, acc[4 * j + 3] = sum.w;
    }
  }

  /* The weight row of the tile that v = 0 and 1 of a thread's four sums are of; 2 and 3 are of the one 8 further. */
  static __device__ inline uint32_t output() {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x % GMMA_GROUP / WARP;
    return threadIdx.x / GMMA_GROUP * Tile::WIDTH + warp * 16 + lane / 4;
  }

  /* All consumers: the sums that this block owns to out()[rows,OUT_PITCH], weight rows innermost; the i-th of the eights it
   * owns at row 8 i. */
  __device__ inline void put(const typename Tile::Acc &acc) const {
    float *to = out() + threadIdx.x % 4 * 2 * Tile::OUT_PITCH + output();
    consumers_meet();  /* nobody reads the ring any more */
    if (counts()) {
#pragma unroll
      for (uint32_t j = 0; j < Tile::EIGHTS; j++) {
        if (!owns(j)) continue;
        float *eight = to + (j >> log_blocks) * 8 * Tile::OUT_PITCH;
        eight[0] = acc[4 * j], eight[Tile::OUT_PITCH] = acc[4 * j + 1];
        eight[8] = acc[4 * j + 2], eight[Tile::OUT_PITCH + 8] = acc[4 * j + 3];
      }
    }
    consumers_meet();
  }

  /* The row of the tile that is row i of out(). */
  __device__ inline uint32_t row(uint32_t i) const { return ((i / 8 << log_blocks) + rank) * 8 + i % 8; }

  /* Rows of out(), of which those at or past the tile's rows are nobody's. */
  __device__ inline uint32_t rows() const { return rank < Tile::EIGHTS ? (((Tile::EIGHTS - 1 - rank) >> log_blocks) + 1) * 8 : 0; }

  __device__ inline float4 get(uint32_t i, uint32_t n) const { return load4(out() + i * Tile::OUT_PITCH + n); }
};

/* The stages of K that block `rank` of `blocks` takes. */
struct DenseRun {
  uint32_t first, steps;
  __device__ inline DenseRun(uint32_t inner, uint32_t rank, uint32_t blocks) {
    const uint32_t all = (inner + GMMA_K - 1) / GMMA_K;
    first = all * rank / blocks;
    steps = all * (rank + 1) / blocks - first;
  }
};

/* y[R,N] as linear.cuh's epilogues have it; maps of x[R,K], w[N,K] and, for LINEAR_SILU_MUL, w_pair[N,K], whose boxes are
 * GMMA_K by ROWS and by WIDTH. A tile of LINEAR_SILU_MUL is WIDTH rows of both matrices (GROUPS is 2).
 * Launch: block = THREADS; grid = (clusters of as many blocks as share a tile, a cluster a tile; rows of the bucket / ROWS).
 * Where a block has a tile to itself and stores f32 it takes tiles in a grid-stride loop; an ALONE one never adds. */
template <class Tile>
__device__ inline void dense_product(void *y, const TensorMap *x_map, const TensorMap *w_map, const TensorMap *pair_map,
                                    const float *bias, const uint32_t *count, uint32_t n_total, uint32_t inner,
                                    uint32_t epilogue, uint32_t stages) {
  using X = typename Tile::X;
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2 * DENSE_MOST_STAGES + 1];
  let_next_kernel_start();
  DenseBlock<Tile> block(shared, barriers, stages);
  const uint32_t rank = block.rank, blocks = block.blocks, first_row = blockIdx.y * Tile::ROWS;
  const bool paired = epilogue == LINEAR_SILU_MUL;
  const uint32_t outputs = paired ? Tile::WIDTH : Tile::OUTPUTS;  /* of Y, in a tile */
  const uint32_t tiles = (n_total + outputs - 1) / outputs, first_tile = blockIdx.x / blocks, step_tiles = gridDim.x / blocks;
  const DenseRun run(inner, rank, blocks);
  if (threadIdx.x >= Tile::CONSUMERS) {
    if (threadIdx.x > Tile::CONSUMERS) {
      wait_for_earlier_kernels();
    } else {
      const uint64_t policy = cache_policy(gridDim.y == 1), stays = cache_policy(false);
      const uint32_t mine = first_tile < tiles ? (tiles - first_tile - 1) / step_tiles + 1 : 0;
      block.produce(
          mine * run.steps,
          [&](uint32_t u, char *to, uint64_t *barrier) {
            const uint32_t column = (run.first + u % run.steps) * GMMA_K, row = (first_tile + u / run.steps * step_tiles) * outputs;
#pragma unroll
            for (uint32_t g = 0; g < Tile::GROUPS; g++)
              tensor_copy(to + g * Tile::GROUP_BYTES, paired && g > 0 ? pair_map : w_map, column,
                          row + (paired ? 0 : g * Tile::WIDTH), barrier, policy);
          },
          [&](uint32_t u, char *to, uint64_t *barrier) {
            tensor_copy(to, x_map, (run.first + u % run.steps) * GMMA_K, first_row, barrier, stays);
          },
          [&] {
            if (!Tile::ALONE && blockIdx.y == 0) {
              const uint32_t most = min(run.steps, stages + DENSE_MOST_SOON);
              for (uint32_t u = stages; u < most; u++)
#pragma unroll
                for (uint32_t g = 0; g < Tile::GROUPS; g++)
                  tensor_prefetch(w_map, (run.first + u) * GMMA_K, first_tile * outputs + g * Tile::WIDTH);
            }
            wait_for_earlier_kernels();
          });
    }
    __syncwarp();
    if (blocks > 1) cluster_wait();
    return;
  }
  wait_for_earlier_kernels();
  const uint32_t rows = *count > first_row ? min(*count - first_row, Tile::ROWS) : 0;
  typename Tile::Acc acc;
  const bool aligned = n_total % 4 == 0;
  if (epilogue == LINEAR_STORE_F32) {
    float *to = static_cast<float *>(y) + (size_t)first_row * n_total;
    const uint32_t q = threadIdx.x % 4 * 2;
    for (uint32_t tile = first_tile; tile < tiles; tile += step_tiles) {
      const uint32_t n = tile * outputs + DenseBlock<Tile>::output();
      auto there = [&](uint32_t j, uint32_t v) { return j * 8 + q + v % 2 < rows && n + v / 2 * 8 < n_total; };
      auto at = [&](uint32_t j, uint32_t v) { return (size_t)(j * 8 + q + v % 2) * n_total + n + v / 2 * 8; };
      block.multiply(acc, run.steps);
      block.reduce(acc);
      if (!DenseBlock<Tile>::counts()) continue;
#pragma unroll
      for (uint32_t j = 0; j < Tile::EIGHTS; j++) {
        if (!block.owns(j)) continue;
#pragma unroll
        for (uint32_t v = 0; v < 4; v++) {
          if (there(j, v)) to[at(j, v)] = acc[4 * j + v] + (bias ? bias[n + v / 2 * 8] : 0.0f);
        }
      }
    }
    return;
  }
  /* Calls with(row, output, outputs from there on) for item i of this block, a row has `fours`, unless it is nobody's. */
  auto item = [&](uint32_t i, uint32_t fours, auto with) {
    const uint32_t r = block.row(i / fours), n = first_tile * outputs + i % fours * 4;
    if (i < block.rows() * fours && r < rows && n < n_total) with(r, n, n_total - n);
  };
  auto sum4 = [](float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); };
  auto biased = [&](float4 v, uint32_t n, uint32_t left) {
    if (!bias) return v;
    v.x += bias[n];
    if (left > 1) v.y += bias[n + 1];
    if (left > 2) v.z += bias[n + 2];
    if (left > 3) v.w += bias[n + 3];
    return v;
  };
  if constexpr (!Tile::ALONE) {
    if (epilogue == LINEAR_ADD) {
      float *to = static_cast<float *>(y) + (size_t)first_row * n_total;
      constexpr uint32_t FOURS = Tile::OUTPUTS / 4, APART = Tile::CONSUMERS / FOURS, EACH = Tile::ROWS / APART;
      static_assert(Tile::CONSUMERS % FOURS == 0, "a thread's outputs are those of its first row");
      /* What is added to is asked for before it is needed, but for what would find no registers: without a branch between the
       * loads, which are of y's first elements where there is nothing to add to. */
      constexpr uint32_t AHEAD = EACH < DENSE_MOST_AHEAD ? EACH : DENSE_MOST_AHEAD;
      const uint32_t column = threadIdx.x % FOURS * 4, n = first_tile * outputs + column, left = n_total - n;
      auto line = [&](uint32_t t) { return threadIdx.x / FOURS + t * APART; };
      auto place = [&](uint32_t t) {
        const uint32_t r = block.row(line(t));
        return line(t) < block.rows() && r < rows && n < n_total ? to + (size_t)r * n_total + n : nullptr;
      };
      float4 old[AHEAD], of_bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (aligned) {
#pragma unroll
        for (uint32_t t = 0; t < AHEAD; t++) old[t] = load4(place(t) ? place(t) : static_cast<const float *>(y));
        if (bias && n < n_total) of_bias = load4(bias + n);
      }
      block.multiply(acc, run.steps);
      block.reduce(acc);
      block.put(acc);
      if (aligned) {
#pragma unroll
        for (uint32_t t = 0; t < AHEAD; t++) {
          float *at = place(t);
          if (!at) continue;
          const float4 v = block.get(line(t), column);
          store4(at, sum4(bias ? sum4(v, of_bias) : v, old[t]));
        }
      }
#pragma unroll 1
      for (uint32_t t = aligned ? AHEAD : 0; t * APART < block.rows(); t++)
        if (float *at = place(t)) add4(at, biased(block.get(line(t), column), n, left), left, aligned);
      return;
    }
  }
  block.multiply(acc, run.steps);
  block.reduce(acc);
  block.put(acc);
  X *to = static_cast<X *>(y) + (size_t)first_row * n_total;
  const uint32_t fours = outputs / 4;
  for (uint32_t i = threadIdx.x; i < block.rows() * fours; i += Tile::CONSUMERS)
    item(i, fours, [&](uint32_t r, uint32_t n, uint32_t left) {
      float4 v = biased(block.get(i / fours, i % fours * 4), n, left);
      if (paired) {
        const float4 up = block.get(i / fours, Tile::WIDTH + i % fours * 4);
        v = make_float4(gmma_silu(v.x) * up.x, gmma_silu(v.y) * up.y, gmma_silu(v.z) * up.z, gmma_silu(v.w) * up.w);
      }
      put4(to + (size_t)r * n_total + n, v, left, aligned);
    });
}

/* For the launcher: rows, groups, weight rows of a group, threads, bytes of a stage, of the parts before the ring, of what
 * lies behind it, of sums that change hands, of one eight of another block's; mates. */
#define DENSE_TILE(NAME, ...)                                                                                            \
  extern "C" __constant__ uint32_t NAME##_tile[10];                                                                      \
  __constant__ uint32_t NAME##_tile[10] = {                                                                              \
      __VA_ARGS__::ROWS,        __VA_ARGS__::GROUPS,     __VA_ARGS__::WIDTH,     __VA_ARGS__::THREADS,    __VA_ARGS__::STAGE_BYTES, \
      __VA_ARGS__::SPLIT_BYTES, __VA_ARGS__::PAST_BYTES, __VA_ARGS__::OUT_BYTES, __VA_ARGS__::EIGHT_BYTES, \
      __VA_ARGS__::MATES};

#define DENSE_PRODUCT(NAME, ...)                                                                                         \
  DENSE_TILE(NAME, __VA_ARGS__)                                                                                          \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)                                                 \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                                    \
           const __grid_constant__ TensorMap w_pair, void *y, const float *bias, const uint32_t *count,                 \
           uint32_t n_total, uint32_t k_total, uint32_t epilogue, uint32_t stages) {                                    \
    GMMA_BODY(dense_product<__VA_ARGS__>(y, &x, &w, &w_pair, bias, count, n_total, k_total, epilogue, stages);)         \
  }

#endif
