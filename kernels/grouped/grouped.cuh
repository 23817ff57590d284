/* grouped.cuh: the experts' feed-forwards of steps of some to many rows, at the speed of memory.
 *
 * Every expert's weights are read once for all its rows. Such a step spends its time on these reads, so what counts is to
 * keep the memory busy. One block an SM walks over units (grouped/units.cuh): an expert tile by GROUPED_OUTPUTS weight
 * rows, all of K, first of gate and up, then of down. A unit's operands come in stages of GROUPED_K of K through a ring in
 * shared memory. The ring never drains: neither between units, nor between gate and up and down:
 *
 *   consumers, 8 warps  first they sort, 1 to 4 rows a thread (grouped/units.cuh); then two warpgroups, each half of the weight rows:
 *                       wgmma with weight rows as M, batch rows as N
 *   loaders, 3 or 5     a stage each in turn: the tile's rows, gathered, from L2 through registers, swizzled as the
 *                       matrix units want them
 *   counter, 1 warp     only where there are 5 loaders: counts the units of gate and up that the consumers have stored.
 *                       Beside 3 loaders the consumers count them themselves
 *   producer, 1 warp    the copy engine brings the stage's weights, 16 KiB, swizzled as the rows are
 *
 * N is the tile's rows, rounded up to a multiple of 8. At many rows the GPU is at its power limit, so that products of rows
 * which are not there would cost time. Tiles of more than 64 rows have kernels of their own, for their sums take many
 * registers. An expert of several tiles has its weights read from memory for the first, and from the second-level cache for the others,
 * whose units follow. A sum runs over K in order, in one accumulator, whatever N is and whichever block has the unit. So a row's bits
 * depend neither on the rows beside it nor on where it lies.
 *
 * Weight rows come in groups of 16, one for each consumer warp, of gate and up 8 each: both sums of an output are in one
 * thread.
 *
 * sm_90a only. H and M are multiples of 16: chunks and slices need not be whole, what lies outside the weights comes as
 * zeros, and what fills up their rows is zeros.
 */
#ifndef TAILGRAPH_GROUPED_CUH
#define TAILGRAPH_GROUPED_CUH

#include "common/experts.cuh"
#include "common/global.cuh"
#include "common/pdl.cuh"
#include "grouped/args.h"
#include "grouped/ring.cuh"
#include "grouped/store.cuh"
#include "grouped/sums.cuh"
#include "grouped/units.cuh"

constexpr uint32_t GROUPED_DRAW_AHEAD = 4;  /* chunks before a unit's last, when the next one is drawn */

/* ---- roles ----------------------------------------------------------------------------------- */

/* What the kernel reads and writes. */
template <class Math>
struct GroupedArrays {
  using X = typename Math::X;
  const X *x;              /* [R, H] */
  X *y;                    /* [R K, M], by place */
  typename Math::Sum *partial; /* [R K, H], by pair */
  const uint32_t *chosen;  /* [R, K] */
  const tg_step *step;
  GroupedCounts *counts;
  uint32_t hidden, inner, k;
  bool up_first;
};

/* The producer's one lane. `mine`: the unit that this block guessed is this block's; its first weights are in the ring or on
 * their way. A block that does not guess has drawn its first unit: `draw`. */
__device__ inline void grouped_produce(GroupedRing &ring, GroupedQueue queue, const TensorMap &gate_up, const TensorMap &down,
                                    const GroupedShape &shape, const GroupedPlan &plan, GroupedCounts *counts, bool mine,
                                    GroupedDraw draw) {
  constexpr uint32_t NEVER = 0xffffffffu;
  uint32_t at = 0;
  auto ask_for = [&](const GroupedUnit &unit, uint32_t from, uint32_t draw_at) {
    const uint64_t policy = cache_policy(plan.is_only_tile(unit));
#pragma unroll 1
    for (uint32_t c = from; c < unit.chunks; c++) {
      if (c == draw_at) draw = counts->draw();
      grouped_ask(ring, unit.kind == GROUPED_GATE_UP ? gate_up : down, unit.tile.expert, unit.slice, c, policy);
    }
  };
  auto near_end = [](const GroupedUnit &unit) { return unit.chunks - min(unit.chunks, GROUPED_DRAW_AHEAD); };
  if (shape.guesses()) {
    const GroupedUnit unit = plan.guess(shape, blockIdx.x, mine ? plan.guessed : plan.tile_total);
    const uint32_t draw_at = near_end(unit);
    queue.post(unit);
    if (draw_at <= shape.ahead) draw = counts->draw();
    ask_for(unit, shape.ahead, draw_at > shape.ahead ? draw_at : NEVER);
  }
  uint32_t begun = 0;  /* guessing blocks, at least */
#pragma unroll 1
  while (true) {
    const GroupedUnit unit = plan.unit(shape, draw.unit, at);
    begun = max(begun, draw.begun);
    if (unit.kind == GROUPED_DOWN && begun < shape.guessers()) {
      begun = shape.guessers();
#pragma unroll 1
      for (uint32_t block = 0; block < shape.guessers(); block++) {
        const uint32_t tile = plan.first_tile(block % shape.experts);
        if (tile == plan.tile_total || !counts->take_guess(block)) continue;
        const GroupedUnit guess = plan.guess(shape, block, tile);
        queue.post(guess);
        ask_for(guess, 0, NEVER);
      }
    }
    queue.post(unit);
    if (unit.kind == GROUPED_END) return;
    ask_for(unit, 0, near_end(unit));
  }
}

/* One lane: says that what it knows to be stored of a unit of gate and up is there. The release waits for the copies in
 * flight, 2 to 6 us, in which a consumer multiplies nothing. */
__device__ inline void grouped_say_done(const GroupedUnit &unit, GroupedCounts *counts) {
  if (unit.kind == GROUPED_GATE_UP && unit.at < GROUPED_MOST_TILES) count_release(counts->done + unit.at);
}

/* A loader warp: every LOADERS-th stage's rows. A lane has 8 columns of every fourth row. `counted`: how many times a unit of
 * gate and up is counted. */
template <class Math, uint32_t LOADERS, class Sort>
__device__ inline void grouped_load(GroupedRing ring, GroupedQueue queue, const GroupedShape &shape, const Sort &sort,
                                 const GroupedArrays<Math> &arrays, uint32_t counted) {
  const uint32_t lane = threadIdx.x % WARP, loader = threadIdx.x / WARP - GROUPED_CONSUMERS;
  const uint32_t row = lane / 8, piece = lane % 8;
  const uint32_t even = gmma_piece_at(row, piece), odd = gmma_piece_at(row + 4, piece);  /* of an atom's rows, this lane's two */
  ring.skip(loader);
  uint32_t next = loader;  /* the stage of the unit that is this warp's */
  queue.take_all([&](const GroupedUnit &unit) {
    const bool gate_up = unit.kind == GROUPED_GATE_UP;
    const typename Math::X *x = gate_up ? arrays.x : arrays.y;
    const uint32_t k_total = gate_up ? arrays.hidden : arrays.inner;
    if (!gate_up) {
      if (lane == 0) await_count(arrays.counts->done + unit.at, shape.gate_up_slices * counted);
      __syncwarp();
    }
    with_room_for<Math::MOST_ROWS>(unit.tile.rows, [&](auto room) {
      /* Many rows not all at once, as there are registers for no more. */
      constexpr int N = room.value, ROWS = N / 4, GOES = N > 120 ? 3 : N > 64 ? 2 : 1, AT_ONCE = (ROWS + GOES - 1) / GOES;
      /* The last atom may have rows that the tile has not: they are zeros, and nothing reads their sums. */
      auto has = [&](int i) { return i < ROWS - 2 || row + 4 * i < unit.tile.rows; };
      uint32_t from[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const uint32_t place = unit.tile.first + row + 4 * i;
        from[i] = has(i) ? (gate_up ? sort.row_at(place) : place) * k_total : 0;
      }
#pragma unroll 1
      for (; next < unit.chunks; next += LOADERS, ring.skip(LOADERS)) {
        /* Past the end of K, where the weights are zeros, the row's last ones. */
        const typename Math::X *at = kept(x + min(next * GROUPED_K + piece * 8, k_total - 8));
#pragma unroll
        for (int first = 0; first < ROWS; first += AT_ONCE) {
          typename Math::Piece pieces[AT_ONCE];
#pragma unroll
          for (int i = first; i < min(first + AT_ONCE, ROWS); i++)
            pieces[i - first] = has(i) ? Math::load(at + from[i]) : typename Math::Piece();
          if (first == 0) ring.wait_empty();
#pragma unroll
          for (int i = first; i < min(first + AT_ONCE, ROWS); i++)
            Math::template store<N>(ring.rows() + (i % 2 ? odd : even) + i / 2 * GMMA_ATOM_BYTES, pieces[i - first]);
          if (first + AT_ONCE < ROWS) asm volatile("" ::: "memory");  /* the others are asked for behind these */
        }
        operands_written();
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.full + ring.at);
      }
    });
    next -= unit.chunks;
  });
}

/* A consumer warp: y = silu(gate) * up in X's type, or partial = down. Of each pair of weight rows of gate and up, the first is up's
 * where `up_first`. */
template <class Math, bool COUNTER, class Sort>
__device__ inline void grouped_consume(GroupedRing ring, GroupedQueue queue, const Sort &sort, const GroupedArrays<Math> &arrays) {
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t half = of_warp(warp / 4), first_row = lane % 4 * 2;
  queue.take_all([&](const GroupedUnit &unit) {
    constexpr int MOST = Math::MOST_ROWS;
    float sums[MOST / 2];
    grouped_sums<Math, MOST>(sums, ring, half, unit.chunks, unit.tile.rows);
    /* store(at(r), first, second) for each row r of this thread, of its two weight rows; one address at a time, as there are
     * registers for no more */
    auto by_row = [&](auto at, auto store) {
#pragma unroll
      for (int i = 0; i < MOST / 4; i++) {
        const uint32_t r = first_row + i / 2 * 8 + i % 2;
        if (r >= unit.tile.rows) break;
        auto *to = at(r);
        asm volatile("" : "+l"(to));
        store(to, sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
      }
    };
    if (unit.kind == GROUPED_GATE_UP) {
      using X = typename Math::X;
      /* This lane's output, or of tall tiles the first of the warp's. */
      const uint32_t n = unit.slice * (GROUPED_OUTPUTS / 2) + warp * (GROUPED_GROUP_ROWS / 2) + (GROUPED_TALL<Math> ? 0 : lane / 4);
      auto at = [&](uint32_t r) { return arrays.y + (size_t)(unit.tile.first + r) * arrays.inner + n; };
      auto gated = [&](float first, float second) {
        return arrays.up_first ? gmma_silu(second) * first : gmma_silu(first) * second;
      };
      if constexpr (GROUPED_TALL<Math>) {
        if (n < arrays.inner) grouped_store_gated<X>(sums, unit.tile.rows, gated, at);
      } else {
        by_row(at, [&](X *to, float first, float second) {
          const float v = gated(first, second);
          if (n < arrays.inner) *to = X(v);
        });
      }
    } else if constexpr (Math::ROUNDS) {
      const uint32_t n = unit.slice * GROUPED_OUTPUTS + warp * GROUPED_GROUP_ROWS;
      if (n < arrays.hidden)
        grouped_store_rounded<typename Math::Sum>(sums, unit.tile.rows, [&](uint32_t r) {
          return arrays.partial + (size_t)sort.pair_at(unit.tile.first + r, arrays.k) * arrays.hidden + n;
        });
    } else {
      const uint32_t n = unit.slice * GROUPED_OUTPUTS + warp * GROUPED_GROUP_ROWS + lane / 4;
      by_row([&](uint32_t r) { return arrays.partial + (size_t)sort.pair_at(unit.tile.first + r, arrays.k) * arrays.hidden + n; },
             [&](auto *at, float first, float second) {
               if (n < arrays.hidden) at[0] = first;
               if (n + 8 < arrays.hidden) at[8] = second;
             });
    }
    __syncwarp();
    if (lane != 0) return;
    if constexpr (COUNTER) {
      queue.say_stored();
    } else {
      grouped_say_done(unit, arrays.counts);
    }
  });
}

/* The counter warp. */
__device__ inline void grouped_count(GroupedQueue queue, GroupedCounts *counts) {
  queue.take_all([&](const GroupedUnit &unit) {
    queue.wait_stored();
    if (threadIdx.x % WARP == 0) grouped_say_done(unit, counts);
  });
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Static shared memory, at most: barriers, the queue and the plan of a step's units, and what its rows are sorted in. */
template <uint32_t EACH>
constexpr uint32_t GROUPED_STATIC_BYTES = (6 + 10 * EACH) * 1024;

/* At least LOADERS stages. EACH: rows that a thread of the consumers sorts. */
template <class Math, uint32_t LOADERS, bool COUNTER, uint32_t EACH>
__device__ inline void grouped(const TensorMap &gate_up, const TensorMap &down, const tg_grouped_args &a) {
  using X = typename Math::X;
  const GroupedArrays<Math> arrays = {static_cast<const X *>(a.x), static_cast<X *>(a.y),
                                      static_cast<typename Math::Sum *>(a.partial), a.chosen, a.step, a.counts,
                                      a.hidden, a.inner, a.k, a.up_first != 0};
  const uint32_t experts = a.experts, tile_rows = a.tile_rows, stages = a.stages;
  extern __shared__ char grouped_shared[];
  __shared__ uint64_t barriers[2 * GROUPED_MOST_STAGES + 3 * GROUPED_QUEUE + 2];
  __shared__ GroupedUnit units[GROUPED_QUEUE];
  __shared__ GroupedSort<EACH> sort;
  __shared__ GroupedPlan plan;
  static_assert(sizeof barriers + sizeof units + sizeof sort + sizeof plan <= GROUPED_STATIC_BYTES<EACH>, "the launcher leaves room for it");
  constexpr uint32_t AFTER_LOADERS = GROUPED_CONSUMERS + LOADERS, PRODUCER = AFTER_LOADERS + COUNTER;
  const uint32_t warp = of_warp(threadIdx.x / WARP), lane = threadIdx.x % WARP;
  GroupedRing ring;
  ring.stages = grouped_shared + (-shared_address(grouped_shared) & (GMMA_ATOM_BYTES - 1));
  ring.full = barriers, ring.empty = ring.full + GROUPED_MOST_STAGES;
  ring.stage_bytes = grouped_stage_bytes<Math>(tile_rows), ring.count = stages;
  ring.at = ring.parity = 0;
  GroupedQueue queue;
  queue.units = units, queue.posted = ring.empty + GROUPED_MOST_STAGES, queue.done = queue.posted + GROUPED_QUEUE;
  queue.stored = queue.done + GROUPED_QUEUE;
  uint64_t *marked = queue.stored + GROUPED_QUEUE, *listed = marked + 1;  /* the sort's two parts are done */
  GroupedShape shape;
  shape.gate_up_slices = (2 * arrays.inner + GROUPED_OUTPUTS - 1) / GROUPED_OUTPUTS;
  shape.down_slices = (arrays.hidden + GROUPED_OUTPUTS - 1) / GROUPED_OUTPUTS;
  shape.gate_up_chunks = (arrays.hidden + GROUPED_K - 1) / GROUPED_K;
  shape.down_chunks = (arrays.inner + GROUPED_K - 1) / GROUPED_K;
  shape.experts = a.guesses ? experts : 0;
  shape.ahead = min(shape.gate_up_chunks, stages);
  if (threadIdx.x == 0) {
    /* full: the producer's arrival and a loader's; empty: one of each consumer warp */
    for (uint32_t s = 0; s < stages; s++) barrier_init(ring.full + s, 2), barrier_init(ring.empty + s, GROUPED_CONSUMERS);
    queue.init(PRODUCER, GROUPED_CONSUMERS);
    barrier_init(marked, GROUPED_CONSUMERS), barrier_init(listed, 1);
    barriers_ready();
  }
  sort.clear();
  __syncthreads();
  if (warp == PRODUCER) {
    if (lane == 0 && shape.guesses()) {
      const uint32_t expert = blockIdx.x % experts, slice = blockIdx.x / experts;
      for (uint32_t c = 0; c < shape.ahead; c++) grouped_ask(ring, gate_up, expert, slice, c, cache_policy(true));
      const uint32_t most = min(shape.gate_up_chunks, shape.ahead + a.soon);
      for (uint32_t c = shape.ahead; c < most; c++) tensor_prefetch(&gate_up, GroupedBox(expert, slice, c).at);
    }
    __syncwarp();
    uint32_t answer = 0;  /* to a guess, of the one lane that produces */
    GroupedDraw draw = {};
    /* First a rehearsal: code that has run once comes quicker (router/norm_router.cu). */
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) {
      const bool real = pass > 0;
      if (real) {
        wait_and_let_next_start();
        if (lane == 0 && shape.guesses()) {
          arrays.counts->begin();
          answer = arrays.counts->ask_for_guess(blockIdx.x);
        } else if (lane == 0) {
          draw = arrays.counts->draw();
        }
        barrier_wait(marked, 0);
      }
      plan.make(shape, sort, experts, tile_rows, real);
    }
    const bool mine = shape.guesses() && GroupedCounts::has_got(answer, blockIdx.x);
    if (lane == 0) grouped_produce(ring, queue, gate_up, down, shape, plan, arrays.counts, mine, draw);
    return;
  }
  if (warp < GROUPED_CONSUMERS) {
    static_assert(GROUPED_CONSUMERS == GROUPED_SORT_WARPS, "the consumers sort");
    const uint32_t rows = __ldcg(&arrays.step->rows);
    /* The first pass is a rehearsal, as the producer's is. */
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) {
      const bool real = pass > 0;
      if (real) wait_and_let_next_start();
      const GroupedChoices<EACH> choices(arrays.chosen, real ? rows : 0, arrays.k);
      sort.mark(choices, arrays.k);
      __syncwarp();
      if (real) {
        if (lane == 0) barrier_arrive(marked);
        barrier_wait(marked, 0);
      }
      sort.list(choices, experts, arrays.k);
      /* So that no warp marks what another still rehearses with, and at the end all is listed. It also tells the compiler that
       * a warp's threads are together: values that they have in common then take uniform registers. */
      threads_meet<GROUPED_CONSUMERS * WARP, 1>();
    }
    if (threadIdx.x == 0) barrier_arrive(listed);
    grouped_consume<Math, COUNTER>(ring, queue, sort, arrays);
    return;
  }
  wait_and_let_next_start();  /* in this order for router/sort_combine.cu's combination */
  if (COUNTER && warp == AFTER_LOADERS) {
    grouped_count(queue, arrays.counts);
  } else {
    barrier_wait(listed, 0);
    grouped_load<Math, LOADERS>(ring, queue, shape, sort, arrays, COUNTER ? 1 : GROUPED_CONSUMERS);
  }
}

#endif
