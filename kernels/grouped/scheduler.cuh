/* scheduler.cuh: which work tiles of a step each block of grouped/grouped.cuh has.
 *
 * Every block sorts for itself, in shared memory, so that none waits for one that sorts: pairs of a row and one of its experts, in order
 * of expert, rows ascending within one. A pair's rank is its place (router/sort_combine.cu has the same order, for tiled/tiled.cuh).
 *
 * A work tile is an expert tile, up to tile_rows consecutive places of an expert, by a slice of its expert's weight rows: first those of
 * gate and up, then those of down. The producer draws them in that order from a counter, and pushes them into a queue from which all other
 * warps take each of them. A work tile of down waits until its expert tile's gate and up are done, by a count of those that are.
 *
 * A block's first work tile may be a prediction: before it can know which experts have rows, it loads weights of one that may well have
 * some, block b's being slice b / experts of expert b % experts. (No router is asked. And unlike skinny's, such a prediction is a work
 * tile, which exactly one block takes.) Where that expert has no rows, or another block has taken the prediction, the block goes through
 * what it loaded as a work tile without rows.
 *
 * Blocks of the grid need not run at the same time: two such kernels of two streams may each hold SMs that the other's blocks need. No
 * deadlock: only down waits, and only for gate and up. Whoever owns a work tile of gate and up runs, and has it queued before any of down:
 * drawn ones, since gate and up are drawn first; predicted ones, since a block that draws down first takes all predictions that are not
 * taken, unless all predicting blocks have begun.
 */
#pragma once

#include "common/experts.cuh"
#include "grouped/tile.cuh"

constexpr uint32_t GROUPED_SORT_WARPS = TG_GROUPED_SORTERS / WARP;
/* 16 stages hold k-blocks of two work tiles at most where K is 1,024 or more; of one the consumers store sums, and one is pushed. */
constexpr uint32_t GROUPED_QUEUE = 4;

enum GroupedKind : uint32_t { GROUPED_GATE_UP, GROUPED_DOWN, GROUPED_END };

struct GroupedWork {
  GroupedKind kind;
  uint32_t at;  /* of the tile in the list; TG_GROUPED_MOST_TILES for a wrong prediction */
  ExpertTile tile;
  uint32_t slice;   /* of the weight rows */
  uint32_t k_blocks;
};

/* Slices and k-blocks of a tile, for gate and up and for down; and how blocks predict. */
struct GroupedShape {
  uint32_t gate_up_slices, down_slices, gate_up_k_blocks, down_k_blocks;
  uint32_t predicted_experts;  /* all; 0 where no block predicts */
  uint32_t ahead;              /* k-blocks that a prediction loads before the wait */

  __device__ inline GroupedShape(const tg_grouped_args &a)
      : gate_up_slices((2 * a.inner + TG_GROUPED_OUTPUTS - 1) / TG_GROUPED_OUTPUTS),
        down_slices((a.hidden + TG_GROUPED_OUTPUTS - 1) / TG_GROUPED_OUTPUTS), gate_up_k_blocks((a.hidden + GMMA_K - 1) / GMMA_K),
        down_k_blocks((a.inner + GMMA_K - 1) / GMMA_K), predicted_experts(a.predicts ? a.experts : 0),
        ahead(min(gate_up_k_blocks, a.stages)) {}

  /* Blocks that predict, from the first on. */
  __device__ inline uint32_t predictors() const { return min(gridDim.x, predicted_experts * gate_up_slices); }

  __device__ inline bool predicts() const { return blockIdx.x < predictors(); }

  /* Slices of the gate and up of an expert's first tile that are predicted. */
  __device__ inline uint32_t predicted_slices(uint32_t expert) const {
    if (predicted_experts == 0 || expert >= gridDim.x) return 0;
    return min(gate_up_slices, (gridDim.x - 1 - expert) / predicted_experts + 1);
  }
};

/* What was drawn, and predicting blocks that had begun by then. */
struct GroupedDraw {
  uint32_t work, begun;
};

/* What blocks count up together; zeros, but for the first word, from the kernel that routes or sorts (clear_counts). */
struct GroupedCounts {
  uint32_t of_sort, unused;               /* the token sort's count of tiles, where it runs */
  unsigned long long drawn;               /* work tiles that are no predictions; in the upper half, predicting blocks that have begun */
  uint32_t taken[TG_GROUPED_MOST_BLOCKS / 32];  /* a bit for each block's prediction */
  uint32_t done[TG_GROUPED_MOST_TILES];         /* of each tile's gate and up, what is stored */

  __device__ inline void begin() { atomicAdd(&drawn, 1ull << 32); }

  __device__ inline GroupedDraw draw() {
    const unsigned long long now = atomicAdd(&drawn, 1ull);
    return {uint32_t(now), uint32_t(now >> 32)};
  }

  /* Takes a block's prediction; has_got() says of what it returns whether that is the caller's from now on. */
  __device__ inline uint32_t request_prediction(uint32_t block) { return atomicOr(taken + block / 32, 1u << block % 32); }
  static __device__ inline bool has_got(uint32_t answer, uint32_t block) { return (answer >> block % 32 & 1) == 0; }

  __device__ inline bool take_prediction(uint32_t block) { return has_got(request_prediction(block), block); }
};
static_assert(sizeof(GroupedCounts) == EXPERT_COUNTS * sizeof(uint32_t), "what clear_counts() clears");

/* A thread's rows in registers, TG_GROUPED_SORTERS apart: those of a warp are groups of WARP rows that follow each other. */
template <uint32_t EACH>
struct GroupedChoices {
  uint32_t experts[EACH][MAX_TOP_K];  /* ascending, k of them */
  bool there[EACH];                   /* there is such a row */

  /* Loads all of chosen[R,k] before one is looked at. */
  __device__ inline GroupedChoices(const uint32_t *chosen, uint32_t rows, uint32_t k) {
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
      const uint32_t row = n * TG_GROUPED_SORTERS + threadIdx.x;
      there[n] = row < rows;
#pragma unroll
      for (uint32_t i = 0; i < MAX_TOP_K; i++) experts[n][i] = there[n] && i < k ? __ldcg(chosen + row * k + i) : 0;
    }
  }
};

/* The token sort, in shared memory, by GROUPED_SORT_WARPS warps, EACH rows a thread. */
template <uint32_t EACH>
struct GroupedSort {
  static constexpr uint32_t ROWS = EACH * TG_GROUPED_SORTERS, GROUPS = ROWS / WARP;  /* of a step, at most */
  uint32_t chose[GROUPS][MAX_EXPERTS];        /* of a group of rows, a bit for each that chose the expert */
  uint16_t first_place[GROUPS][MAX_EXPERTS];  /* an expert's first place of a group's rows */
  uint16_t row_and_which[ROWS * MAX_TOP_K];   /* at each place, row MAX_TOP_K + which of its experts */
  static_assert(ROWS * MAX_TOP_K <= 0x10000, "row_and_which of 16 bits");

  /* All threads of the block, before the rest. */
  __device__ inline void clear() {
    for (uint32_t i = threadIdx.x; i < GROUPS * MAX_EXPERTS; i += blockDim.x) chose[0][i] = 0;
  }

  /* Sets, for each row of this thread, its bit in chose. */
  __device__ inline void mark(const GroupedChoices<EACH> &choices, uint32_t k) {
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++)
#pragma unroll
      for (uint32_t i = 0; i < MAX_TOP_K; i++)
        if (choices.there[n] && i < k) atomicOr(&chose[group(n)][choices.experts[n][i]], 1u << threadIdx.x % WARP);
  }

  /* Once all rows are marked: counts the places before each group (first_place), then writes row_and_which. */
  __device__ inline void list(const GroupedChoices<EACH> &choices, uint32_t expert_count, uint32_t k) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t first = 0;
#pragma unroll 1
    for (uint32_t e = lane; e - lane < expert_count; e += WARP) {
      uint32_t total = 0, before[EACH] = {};
#pragma unroll
      for (uint32_t g = 0; g < GROUPS; g++) {
        if (g == group(g / GROUPED_SORT_WARPS)) before[g / GROUPED_SORT_WARPS] = total;
        total += __popc(chose[g][e]);
      }
      const uint32_t end = sum_up_to_lane(total);
#pragma unroll
      for (uint32_t n = 0; n < EACH; n++) first_place[group(n)][e] = first + end - total + before[n];
      first += __shfl_sync(0xffffffffu, end, WARP - 1);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++)
#pragma unroll
      for (uint32_t i = 0; i < MAX_TOP_K; i++) {
        if (!choices.there[n] || i >= k) break;
        const uint32_t e = choices.experts[n][i], at = first_place[group(n)][e] + __popc(chose[group(n)][e] & ((1u << lane) - 1));
        row_and_which[at] = (n * TG_GROUPED_SORTERS + threadIdx.x) * MAX_TOP_K + i;
      }
  }

  /* Rows that chose an expert. */
  __device__ inline uint32_t rows_of(uint32_t expert) const {
    uint32_t rows = 0;
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) rows += __popc(chose[g][expert]);
    return rows;
  }

  __device__ inline uint32_t row_at(uint32_t place) const { return row_and_which[place] / MAX_TOP_K; }
  /* row k + which of its experts */
  __device__ inline uint32_t pair_at(uint32_t place, uint32_t k) const {
    return row_and_which[place] / MAX_TOP_K * k + row_and_which[place] % MAX_TOP_K;
  }

private:
  /* The n-th of this warp's groups: rows ascend with the group, and with the lane. */
  static __device__ inline uint32_t group(uint32_t n) { return n * GROUPED_SORT_WARPS + threadIdx.x / WARP; }
};

/* The producer's, in shared memory. */
struct GroupedPlan {
  uint32_t tile_total;
  uint32_t predicted;  /* the tile of this block's prediction; none of them where its expert has none, or no block predicts */
  ExpertTile tiles[TG_GROUPED_MOST_TILES];
  uint32_t before[TG_GROUPED_MOST_TILES + 1];  /* work tiles of gate and up that are no predictions, of the tiles before each and of all */

  /* One warp, once all rows are marked; if not `real` a rehearsal, of experts of a row each, that the next call writes over. */
  template <class Sort>
  __device__ inline void make(const GroupedShape &shape, const Sort &sort, uint32_t expert_count, uint32_t tile_rows,
                              bool real) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t first = 0, tile = 0, works = 0, own_tile = TG_GROUPED_MOST_TILES;
#pragma unroll 1
    for (uint32_t e = lane; e - lane < expert_count; e += WARP) {
      const uint32_t rows = real ? sort.rows_of(e) : 1, own_tiles = (rows + tile_rows - 1) / tile_rows;
      const uint32_t predictions = rows > 0 ? shape.predicted_slices(e) : 0, own_works = own_tiles * shape.gate_up_slices - predictions;
      const uint32_t both = sum_up_to_lane(rows << 16 | own_tiles), works_below = sum_up_to_lane(own_works);
      const uint32_t begin = first + (both >> 16) - rows, at = tile + (both & 0xffff) - own_tiles;
      const uint32_t works_before = works + works_below - own_works;
      if (predictions > 0 && blockIdx.x % shape.predicted_experts == e && blockIdx.x / shape.predicted_experts < predictions) own_tile = at;
#pragma unroll 1
      for (uint32_t i = 0; i < own_tiles; i++) {
        const uint32_t passed = i * tile_rows;
        tiles[at + i] = ExpertTile{e, begin + passed, min(rows - passed, tile_rows)};
        before[at + i] = works_before + (i > 0 ? i * shape.gate_up_slices - predictions : 0);
      }
      const uint32_t all = __shfl_sync(0xffffffffu, both, WARP - 1);
      first += all >> 16, tile += all & 0xffff;
      works += __shfl_sync(0xffffffffu, works_below, WARP - 1);
    }
    own_tile = __reduce_min_sync(0xffffffffu, own_tile);
    if (lane == 0) tile_total = tile, before[tile] = works, predicted = own_tile;
    __syncwarp();
  }

  /* An expert's first tile, or tile_total. */
  __device__ inline uint32_t first_tile(uint32_t expert) const {
    uint32_t at = 0;
    while (at < tile_total && tiles[at].expert != expert) at++;
    return at;
  }

  /* The work tile of a block's prediction, of a tile or, with tile_total, of one without rows. */
  __device__ inline GroupedWork prediction(const GroupedShape &shape, uint32_t block, uint32_t tile) const {
    const bool right = tile < tile_total;
    GroupedWork work;
    work.kind = GROUPED_GATE_UP;
    work.at = right ? tile : TG_GROUPED_MOST_TILES;
    work.tile = right ? tiles[tile] : ExpertTile{block % shape.predicted_experts, 0, 0};
    work.slice = block / shape.predicted_experts;
    work.k_blocks = right ? shape.gate_up_k_blocks : shape.ahead;
    return work;
  }

  /* The drawn-th of all work tiles that are no predictions; `at` is where the search begins, and ends. Predicted slices are a tile's first
   * ones, so what is drawn counts back from its last. */
  __device__ inline GroupedWork work(const GroupedShape &shape, uint32_t drawn, uint32_t &at) const {
    GroupedWork work;
    const uint32_t gate_up = before[tile_total], down = drawn - gate_up;
    if (drawn < gate_up) {
      while (before[at + 1] <= drawn) at++;
      work.kind = GROUPED_GATE_UP, work.at = at;
      work.slice = shape.gate_up_slices - (before[at + 1] - drawn);
      work.k_blocks = shape.gate_up_k_blocks;
    } else if (down < tile_total * shape.down_slices) {
      work.kind = GROUPED_DOWN, work.at = down / shape.down_slices;
      work.slice = down % shape.down_slices;
      work.k_blocks = shape.down_k_blocks;
    } else {
      work.kind = GROUPED_END, work.at = 0, work.slice = 0, work.k_blocks = 0, work.tile = ExpertTile{0, 0, 0};
      return work;
    }
    work.tile = tiles[work.at];
    return work;
  }

  /* Whether no other tile reads this one's weights. */
  __device__ inline bool is_alone(const GroupedWork &work) const {
    return work.at >= tile_total || is_only_tile(tiles, tile_total, work.at, work.tile.expert);
  }
};

/* Work tiles from the producer to all other warps, which take each of them: a pipeline whose stages are work tiles. */
struct GroupedQueue : Pipeline<GROUPED_QUEUE> {
  GroupedWork *works;  /* [GROUPED_QUEUE] in shared memory */
  uint64_t *stored;    /* [GROUPED_QUEUE]: consumers have stored what they made of a work tile */

  __device__ inline void init_queue(uint32_t takers, uint32_t consumers) {
    for (uint32_t i = 0; i < GROUPED_QUEUE; i++)
      barrier_init(full + i, 1), barrier_init(empty + i, takers), barrier_init(stored + i, consumers);
  }

  /* The producer's one lane. */
  __device__ inline void push(const GroupedWork &work) {
    acquire();
    works[at] = work;
    barrier_arrive(full + at);
    next();
  }

  /* One lane of a consumer warp: it has stored what it made of the work tile at hand. */
  __device__ inline void signal_stored() { barrier_arrive(stored + at); }
  /* Another warp that takes them: until all have. */
  __device__ inline void wait_stored() { barrier_wait(stored + at, parity); }

  /* A warp: with(work) for each until the last. */
  template <class Do>
  __device__ inline void take_all(Do with) {
#pragma unroll 1
    while (true) {
      wait();
      const GroupedWork work = works[at];
      if (work.kind == GROUPED_END) return;
      with(work);
      __syncwarp();
      if (threadIdx.x % WARP == 0) release(at);
      next();
    }
  }
};
