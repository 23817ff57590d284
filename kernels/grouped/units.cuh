/* units.cuh: which units of a step each block of grouped/grouped.cuh has.
 *
 * Every block sorts for itself, in shared memory, so that none waits for one that sorts: pairs of a row and one of its experts,
 * in order of expert, rows ascending within one. A pair's rank is its place (router/sort_combine.cu has the same order, for
 * tiled/tiled.cuh).
 *
 * A unit is an expert tile, up to tile_rows consecutive places of an expert, by a slice of its expert's weight rows: first those
 * of gate and up, then those of down. Blocks draw them in that order from a counter, so that a block that is ahead has more of them;
 * a unit's sums do not depend on which block has it. A unit of down waits until its tile's gate and up are done, by a count of
 * those that are.
 *
 * A block's first unit may be a guess: before it can know which experts have rows, it asks for weights of one that may
 * well have some, block b's being slice b / experts of expert b % experts. Where that one has none, or another block has
 * taken the guess, it goes through what it asked for as a unit of a tile without rows.
 *
 * Blocks of the grid need not run at the same time: what holds their SMs may even wait for this kernel, as another one of
 * these may for its own blocks. A block that waits does so for units of gate and up alone. Each of these is a running block's,
 * which does it before any unit of its own that waits. Drawn ones are, since they are drawn before all of down; guesses are,
 * since a block that draws a unit of down takes the guesses of all blocks that have not begun first.
 *
 * The producer draws, and posts its block's units in a queue from which all other warps take each of them.
 */
#ifndef TAILGRAPH_GROUPED_UNITS_CUH
#define TAILGRAPH_GROUPED_UNITS_CUH

#include "common/barrier.cuh"
#include "common/experts.cuh"
#include "grouped/args.h"

constexpr uint32_t GROUPED_SORTERS = TG_GROUPED_SORTERS;
constexpr uint32_t GROUPED_SORT_WARPS = GROUPED_SORTERS / WARP;
constexpr uint32_t GROUPED_MOST_TILES = TG_GROUPED_MOST_TILES;
constexpr uint32_t GROUPED_QUEUE = 4;         /* units posted and not yet done with */
constexpr uint32_t GROUPED_MOST_BLOCKS = TG_GROUPED_MOST_BLOCKS;

enum GroupedKind : uint32_t { GROUPED_GATE_UP, GROUPED_DOWN, GROUPED_END };

struct GroupedUnit {
  GroupedKind kind;
  uint32_t at;  /* of the tile in the list; GROUPED_MOST_TILES for a wrong guess */
  ExpertTile tile;
  uint32_t slice;   /* of the weight rows */
  uint32_t chunks;  /* of K */
};

/* Slices of a tile and chunks of K, for gate and up and for down; and how a block guesses. */
struct GroupedShape {
  uint32_t gate_up_slices, down_slices, gate_up_chunks, down_chunks;
  uint32_t experts;  /* 0 where no block guesses */
  uint32_t ahead;    /* chunks that a guess asks for */

  /* Blocks that guess, from the first on. */
  __device__ inline uint32_t guessers() const { return min(gridDim.x, experts * gate_up_slices); }

  __device__ inline bool guesses() const { return blockIdx.x < guessers(); }

  /* Of the gate and up of an expert's first tile, the slices that are guesses. */
  __device__ inline uint32_t guessed_slices(uint32_t expert) const {
    if (experts == 0 || expert >= gridDim.x) return 0;
    return min(gate_up_slices, (gridDim.x - 1 - expert) / experts + 1);
  }
};

/* What was drawn, and guessing blocks that had begun by then. */
struct GroupedDraw {
  uint32_t unit, begun;
};

/* What blocks count up together; zeros, but for the first word, from the kernel that chooses (clear_counts). */
struct GroupedCounts {
  uint32_t of_sort, unused;
  unsigned long long drawn;               /* units that are no guesses; in the upper half, guessing blocks that have begun */
  uint32_t taken[GROUPED_MOST_BLOCKS / 32];  /* a bit for each block's guess */
  uint32_t done[GROUPED_MOST_TILES];         /* of each tile's gate and up, what is there */

  __device__ inline void begin() { atomicAdd(&drawn, 1ull << 32); }

  __device__ inline GroupedDraw draw() {
    const unsigned long long now = atomicAdd(&drawn, 1ull);
    return {uint32_t(now), uint32_t(now >> 32)};
  }

  /* Takes a block's guess; of what it returns, whether it is the caller's from now on. */
  __device__ inline uint32_t ask_for_guess(uint32_t block) { return atomicOr(taken + block / 32, 1u << block % 32); }
  static __device__ inline bool has_got(uint32_t answer, uint32_t block) { return (answer >> block % 32 & 1) == 0; }

  __device__ inline bool take_guess(uint32_t block) { return has_got(ask_for_guess(block), block); }
};
static_assert(sizeof(GroupedCounts) == EXPERT_COUNTS * sizeof(uint32_t), "what clear_counts() clears");

/* A row's choice in registers: experts ascending, K of them; none where there is no such row. */
struct GroupedChoice {
  uint32_t experts[MAX_TOP_K];
  bool there;

  GroupedChoice() = default;

  /* chosen[R,K] */
  __device__ inline GroupedChoice(const uint32_t *chosen, uint32_t row, uint32_t rows, uint32_t k) : there(row < rows) {
#pragma unroll
    for (uint32_t i = 0; i < MAX_TOP_K; i++) experts[i] = there && i < k ? __ldcg(chosen + row * k + i) : 0;
  }
};

/* A thread's rows, GROUPED_SORTERS apart: those of a warp are groups of WARP rows that follow each other. */
template <uint32_t EACH>
struct GroupedChoices {
  GroupedChoice of[EACH];

  /* As GroupedChoice takes them. All are asked for before one is looked at. */
  __device__ inline GroupedChoices(const uint32_t *chosen, uint32_t rows, uint32_t k) {
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) of[n] = GroupedChoice(chosen, n * GROUPED_SORTERS + threadIdx.x, rows, k);
  }
};

/* The token sort, in shared memory, by GROUPED_SORT_WARPS warps, EACH rows a thread. */
template <uint32_t EACH>
struct GroupedSort {
  static constexpr uint32_t ROWS = EACH * GROUPED_SORTERS, GROUPS = ROWS / WARP;  /* of a step, at most */
  uint32_t chose[GROUPS][MAX_EXPERTS];  /* of a group of rows, a bit for each that chose the expert */
  uint16_t next[GROUPS][MAX_EXPERTS];   /* an expert's first place of a group's rows */
  uint16_t pairs[ROWS * MAX_TOP_K];     /* at each place, row MAX_TOP_K + which of its experts */
  static_assert(ROWS * MAX_TOP_K <= 0x10000, "pairs of 16 bits");

  /* All threads of the block, before the rest. */
  __device__ inline void clear() {
    for (uint32_t i = threadIdx.x; i < GROUPS * MAX_EXPERTS; i += blockDim.x) chose[0][i] = 0;
  }

  /* First this, then all must have come through it. */
  __device__ inline void mark(const GroupedChoices<EACH> &choices, uint32_t k) {
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++)
#pragma unroll
      for (uint32_t i = 0; i < MAX_TOP_K; i++)
        if (choices.of[n].there && i < k) atomicOr(&chose[group(n)][choices.of[n].experts[i]], 1u << threadIdx.x % WARP);
  }

  /* Then this. */
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
      for (uint32_t n = 0; n < EACH; n++) next[group(n)][e] = first + end - total + before[n];
      first += __shfl_sync(0xffffffffu, end, WARP - 1);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++)
#pragma unroll
      for (uint32_t i = 0; i < MAX_TOP_K; i++) {
        if (!choices.of[n].there || i >= k) break;
        const uint32_t e = choices.of[n].experts[i], at = next[group(n)][e] + __popc(chose[group(n)][e] & ((1u << lane) - 1));
        pairs[at] = (n * GROUPED_SORTERS + threadIdx.x) * MAX_TOP_K + i;
      }
  }

  /* Rows that chose an expert. */
  __device__ inline uint32_t rows_of(uint32_t expert) const {
    uint32_t rows = 0;
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) rows += __popc(chose[g][expert]);
    return rows;
  }

  __device__ inline uint32_t row_at(uint32_t place) const { return pairs[place] / MAX_TOP_K; }
  /* row K + which of its experts */
  __device__ inline uint32_t pair_at(uint32_t place, uint32_t k) const {
    return pairs[place] / MAX_TOP_K * k + pairs[place] % MAX_TOP_K;
  }

private:
  /* Of this warp's groups the n-th: rows ascend with the group, and with the lane. */
  static __device__ inline uint32_t group(uint32_t n) { return n * GROUPED_SORT_WARPS + threadIdx.x / WARP; }
};

/* The producer's, in shared memory. */
struct GroupedPlan {
  uint32_t tile_total;
  uint32_t guessed;  /* the tile of this block's guess; none of them where its expert has none, or no block guesses */
  ExpertTile tiles[GROUPED_MOST_TILES];
  uint32_t before[GROUPED_MOST_TILES + 1];  /* units of gate and up that are no guesses, of the tiles before each and of all */

  /* One warp, once all rows are marked; where it is not `real` a rehearsal, of experts of a row each, that the next call writes
   * over. */
  template <class Sort>
  __device__ inline void make(const GroupedShape &shape, const Sort &sort, uint32_t expert_count, uint32_t tile_rows,
                              bool real) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t first = 0, tile = 0, units = 0, mine = GROUPED_MOST_TILES;
#pragma unroll 1
    for (uint32_t e = lane; e - lane < expert_count; e += WARP) {
      const uint32_t rows = real ? sort.rows_of(e) : 1, own_tiles = (rows + tile_rows - 1) / tile_rows;
      const uint32_t guesses = rows > 0 ? shape.guessed_slices(e) : 0, own_units = own_tiles * shape.gate_up_slices - guesses;
      const uint32_t both = sum_up_to_lane(rows << 16 | own_tiles), units_below = sum_up_to_lane(own_units);
      const uint32_t begin = first + (both >> 16) - rows, at = tile + (both & 0xffff) - own_tiles;
      const uint32_t units_before = units + units_below - own_units;
      if (guesses > 0 && blockIdx.x % shape.experts == e && blockIdx.x / shape.experts < guesses) mine = at;
#pragma unroll 1
      for (uint32_t i = 0; i < own_tiles; i++) {
        const uint32_t passed = i * tile_rows;
        tiles[at + i] = ExpertTile{e, begin + passed, min(rows - passed, tile_rows)};
        before[at + i] = units_before + (i > 0 ? i * shape.gate_up_slices - guesses : 0);
      }
      const uint32_t all = __shfl_sync(0xffffffffu, both, WARP - 1);
      first += all >> 16, tile += all & 0xffff;
      units += __shfl_sync(0xffffffffu, units_below, WARP - 1);
    }
    mine = __reduce_min_sync(0xffffffffu, mine);
    if (lane == 0) tile_total = tile, before[tile] = units, guessed = mine;
    __syncwarp();
  }

  /* An expert's first tile, or tile_total. */
  __device__ inline uint32_t first_tile(uint32_t expert) const {
    uint32_t at = 0;
    while (at < tile_total && tiles[at].expert != expert) at++;
    return at;
  }

  /* The unit of a block's guess, of a tile or, with tile_total, of one without rows. */
  __device__ inline GroupedUnit guess(const GroupedShape &shape, uint32_t block, uint32_t tile) const {
    const bool right = tile < tile_total;
    GroupedUnit unit;
    unit.kind = GROUPED_GATE_UP;
    unit.at = right ? tile : GROUPED_MOST_TILES;
    unit.tile = right ? tiles[tile] : ExpertTile{block % shape.experts, 0, 0};
    unit.slice = block / shape.experts;
    unit.chunks = right ? shape.gate_up_chunks : shape.ahead;
    return unit;
  }

  /* The drawn-th of all units that are no guesses; `at` is where the search begins, and ends. */
  __device__ inline GroupedUnit unit(const GroupedShape &shape, uint32_t drawn, uint32_t &at) const {
    GroupedUnit unit;
    const uint32_t gate_up = before[tile_total], down = drawn - gate_up;
    if (drawn < gate_up) {
      while (before[at + 1] <= drawn) at++;
      unit.kind = GROUPED_GATE_UP, unit.at = at;
      unit.slice = shape.gate_up_slices - (before[at + 1] - drawn);
      unit.chunks = shape.gate_up_chunks;
    } else if (down < tile_total * shape.down_slices) {
      unit.kind = GROUPED_DOWN, unit.at = down / shape.down_slices;
      unit.slice = down % shape.down_slices;
      unit.chunks = shape.down_chunks;
    } else {
      unit.kind = GROUPED_END, unit.at = 0, unit.slice = 0, unit.chunks = 0, unit.tile = ExpertTile{0, 0, 0};
      return unit;
    }
    unit.tile = tiles[unit.at];
    return unit;
  }

  /* Does no other tile read this one's weights? */
  __device__ inline bool is_only_tile(const GroupedUnit &unit) const {
    if (unit.at >= tile_total) return true;
    return (unit.at == 0 || tiles[unit.at - 1].expert != unit.tile.expert) &&
           (unit.at + 1 >= tile_total || tiles[unit.at + 1].expert != unit.tile.expert);
  }
};

/* Units from the producer to all other warps, `takers` of them. */
struct GroupedQueue {
  GroupedUnit *units;           /* [GROUPED_QUEUE] in shared memory */
  uint64_t *posted, *done;   /* [GROUPED_QUEUE] each */
  uint64_t *stored;          /* [GROUPED_QUEUE]: consumers have stored what they made of a unit */
  uint32_t at = 0, parity = 0;

  __device__ inline void init(uint32_t takers, uint32_t consumers) {
    for (uint32_t i = 0; i < GROUPED_QUEUE; i++)
      barrier_init(posted + i, 1), barrier_init(done + i, takers), barrier_init(stored + i, consumers);
  }

  __device__ inline void next() {
    if (++at == GROUPED_QUEUE) at = 0, parity ^= 1;
  }

  /* The producer's one lane. */
  __device__ inline void post(const GroupedUnit &unit) {
    barrier_wait(done + at, parity ^ 1);
    units[at] = unit;
    barrier_arrive(posted + at);
    next();
  }

  /* One of a consumer warp: it has stored what it made of the unit at hand. */
  __device__ inline void say_stored() { barrier_arrive(stored + at); }
  /* Another warp that takes them: until all have. */
  __device__ inline void wait_stored() { barrier_wait(stored + at, parity); }

  /* A warp: with(unit) for each until the last. */
  template <class Do>
  __device__ inline void take_all(Do with) {
#pragma unroll 1
    while (true) {
      barrier_wait(posted + at, parity);
      const GroupedUnit unit = units[at];
      if (unit.kind == GROUPED_END) return;
      with(unit);
      __syncwarp();
      if (threadIdx.x % WARP == 0) barrier_arrive(done + at);
      next();
    }
  }
};

#endif
