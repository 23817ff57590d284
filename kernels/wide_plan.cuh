/* wide_plan.cuh: which units of a step each block of wide.cuh has.
 *
 * A unit is an expert tile of the token sort by a slice of its expert's weight rows. Blocks take units in rounds, a unit
 * each, in order of tile and slice. The first round may be a guess: before a block can know which experts have rows, it
 * asks for weights of one that may well have some, block b's being slice b / experts of expert b % experts. Where that one
 * has none, the block goes through what it asked for as a unit of a tile without rows, and is among the first to be given
 * another.
 */
#ifndef TAILGRAPH_WIDE_PLAN_CUH
#define TAILGRAPH_WIDE_PLAN_CUH

#include "experts.cuh"

constexpr uint32_t WIDE_MOST_TILES = 256;  /* expert tiles of a step */

struct WideUnit {
  ExpertTile tile;
  uint32_t slice;
  uint32_t chunks;  /* of K */
  uint32_t asked;   /* of those, for which the weights were asked for before the plan was made */
};

/* In shared memory. */
struct WidePlan {
  uint32_t tile_total;
  uint32_t guessed;              /* the tile of this block's guess; tile_total where it was wrong or there is none */
  uint32_t unserved, turn;       /* blocks that have no unit from the first round, and how many of them come before this one */
  ExpertTile tiles[WIDE_MOST_TILES];
  uint32_t before[WIDE_MOST_TILES + 1];  /* units that are no guesses, of the tiles before each and of all */
  uint32_t has_rows[MAX_EXPERTS / WARP];  /* a bit an expert */
};

/* A kernel's shape. */
struct WideUnits {
  uint32_t slices;   /* of a tile */
  uint32_t chunks;   /* of a unit */
  uint32_t experts;  /* 0 where nobody guesses */
  uint32_t ahead;    /* chunks that a guess asks for */

  __device__ inline bool guesses(uint32_t block) const { return experts > 0 && block / experts < slices; }

  /* Of a tile's slices, those that are guesses, the first ones. */
  __device__ inline uint32_t guessed_slices(const WidePlan &plan, uint32_t at) const {
    const uint32_t expert = plan.tiles[at].expert;
    if (experts == 0 || expert >= gridDim.x || (at > 0 && plan.tiles[at - 1].expert == expert)) return 0;
    return min(slices, (gridDim.x - 1 - expert) / experts + 1);
  }

  /* One warp, once the token sort's tiles are there; others read the plan after a barrier. */
  __device__ inline void make(WidePlan &plan, const ExpertTile *tiles, const uint32_t *tile_count,
                              uint32_t most_tiles) const {
    const uint32_t lane = threadIdx.x % WARP;
    /* all that there may be, at once: what comes after the last is not looked at */
#pragma unroll 2
    for (uint32_t i = lane; i < most_tiles; i += WARP)
      *reinterpret_cast<uint4 *>(plan.tiles + i) = __ldcg(reinterpret_cast<const uint4 *>(tiles + i));
    const uint32_t tile_total = min(__ldcg(tile_count), most_tiles);
    if (lane < MAX_EXPERTS / WARP) plan.has_rows[lane] = 0;
    if (lane == 0) plan.tile_total = plan.guessed = tile_total;
    __syncwarp();
    uint32_t units = 0;
    for (uint32_t base = 0; base < tile_total; base += WARP) {
      const uint32_t at = base + lane;
      const uint32_t guessed = at < tile_total ? guessed_slices(plan, at) : 0;
      uint32_t sum = at < tile_total ? slices - guessed : 0;
      const uint32_t own = sum;
#pragma unroll
      for (int offset = 1; offset < WARP; offset *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
      }
      if (at < tile_total) {
        const uint32_t expert = plan.tiles[at].expert;
        plan.before[at] = units + sum - own;
        atomicOr(&plan.has_rows[expert / WARP], 1u << expert % WARP);
        if (guessed > 0 && blockIdx.x % experts == expert && blockIdx.x / experts < guessed) plan.guessed = at;
      }
      units += __shfl_sync(0xffffffffu, sum, WARP - 1);
    }
    __syncwarp();
    uint32_t unserved = 0, turn = 0;
    for (uint32_t base = 0; base < gridDim.x; base += WARP) {
      const uint32_t block = base + lane;
      bool without = block < gridDim.x;
      if (without && guesses(block)) {
        const uint32_t expert = block % experts;
        without = !(plan.has_rows[expert / WARP] >> expert % WARP & 1);
      }
      unserved += __popc(__ballot_sync(0xffffffffu, without));
      turn += __popc(__ballot_sync(0xffffffffu, without && block < blockIdx.x));
    }
    if (lane == 0) plan.before[tile_total] = units, plan.unserved = unserved, plan.turn = turn;
    __syncwarp();
  }

  /* Does no other tile read this one's weights? */
  static __device__ inline bool is_only_tile(const WidePlan &plan, uint32_t at) {
    const uint32_t expert = plan.tiles[at].expert;
    return (at == 0 || plan.tiles[at - 1].expert != expert) &&
           (at + 1 >= plan.tile_total || plan.tiles[at + 1].expert != expert);
  }

  /* with(unit, whether its weights are read only once) for each of this block's units, in the same order for all roles. */
  template <class Do>
  __device__ inline void each(const WidePlan &plan, Do with) const {
    const bool right = plan.guessed < plan.tile_total;
    if (guesses(blockIdx.x)) {
      WideUnit unit;
      unit.tile = right ? plan.tiles[plan.guessed] : ExpertTile{0, 0, 0, 0};
      unit.slice = blockIdx.x / experts;
      unit.chunks = right ? chunks : ahead;
      unit.asked = ahead;
      with(unit, right && is_only_tile(plan, plan.guessed));
    }
    uint32_t at = 0;
    uint32_t index = right ? plan.unserved + blockIdx.x : plan.turn;
    bool first = !right;
#pragma unroll 1
    for (; index < plan.before[plan.tile_total]; index = first ? plan.unserved + blockIdx.x : index + gridDim.x, first = false) {
      while (plan.before[at + 1] <= index) at++;
      WideUnit unit;
      unit.tile = plan.tiles[at];
      unit.slice = slices - (plan.before[at + 1] - index);
      unit.chunks = chunks;
      unit.asked = 0;
      with(unit, is_only_tile(plan, at));
    }
  }
};

#endif
