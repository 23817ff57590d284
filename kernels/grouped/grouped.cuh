/* grouped.cuh: the experts' feed-forwards of steps of some to many rows, at the speed of memory.
 *
 * Every expert's weights are read once for all its rows, and these reads are what such a step spends its time on. One block an SM walks
 * over work tiles (scheduler.cuh): an expert tile by TG_GROUPED_OUTPUTS weight rows, all of K, first of gate and up, then of down. Operands
 * come in k-blocks through a pipeline in shared memory, which never drains: neither between work tiles, nor between gate and up and down.
 *
 *   warps           | do, after the grid dependency wait (all of them wait; a prediction's first weights are copied before)
 *   consumers, 8    | sort, 1 to 4 rows a thread (scheduler.cuh); then two warpgroups, half of the weight rows each: wgmma with weight rows as
 *                   | M, batch rows as N; epilogue
 *   loaders, 3 or 5 | a stage each in turn: the tile's rows, gathered from L2 through registers, swizzled as the tensor cores want them
 *   counter, 1      | only beside 5 loaders, in the consumers' place: counts stored work tiles of gate and up
 *   producer, 1     | draws work tiles; copies a stage's weights, 16 KiB, or 8 of those in 8 bits
 *
 *   barrier         | arrivals a phase, and whose                                           | who waits
 *   pipe.full       | 2: the producer, expecting the weights' bytes; the stage's loader     | consumers
 *   pipe.empty      | 8: consumer warps                                                     | the producer, the stage's loader
 *   queue.full      | 1: the producer                                                       | all other warps
 *   queue.empty     | all warps but the producer                                            | the producer
 *   queue.stored    | 8: consumer warps, where there is a counter                           | the counter
 *   marked, once    | 8: consumer warps have marked their rows                              | consumers, the producer
 *   listed, once    | 1: a consumer, once all have listed their rows                        | loaders
 *   counts->done    | of a tile, each slice of gate and up: the counter, or 8 consumer warps | loaders, before they load rows for down
 *
 * N is the tile's rows, rounded up to a multiple of 8: at many rows the GPU is at its power limit, so products of rows that are not there
 * would cost time. An expert of several tiles has its weights read from memory for the first, and from L2 for the others, whose work tiles
 * follow. A sum runs over K in order, in one accumulator (of bf16x3, k-block sums added in order), whatever N is and whichever block has
 * it: bits do not depend on other rows.
 *
 * Weight rows come in groups of 16, one for each consumer warp, of gate and up 8 each: both sums of an output are in one thread. Those in 8
 * bits become bf16 in the warp's registers (wgmma/fragments.cuh), and its sums are multiplied by their scales before the epilogue.
 *
 * sm_90a only. H and I are multiples of 16: what lies outside the weights comes as zeros, and what fills up their rows is zeros.
 */
#pragma once

#include "common/global.cuh"
#include "common/pdl.cuh"
#include "grouped/epilogue.cuh"
#include "grouped/mainloop.cuh"
#include "grouped/scheduler.cuh"

/* K-blocks before a work tile's end, when the next one is drawn: at an SM's share of 4.8 TB/s 1.8 us for the atomic's answer. Not tuned. */
template <class Tile>
constexpr uint32_t GROUPED_DRAW_AHEAD = Tile::IN_8_BITS ? 8 : 4;
constexpr uint32_t GROUPED_SORT_BARRIER = 1;  /* where consumers meet (threads_meet) */

/* The producer's one lane. `mine`: the work tile that this block predicted is its own, with its first weights under way. A block that does
 * not predict has drawn its first work tile: `draw`. */
template <class Tile>
__device__ inline void grouped_produce(GroupedPipeline<Tile> &pipe, GroupedQueue queue, const TensorMap &gate_up, const TensorMap &down,
                                    const GroupedShape &shape, const GroupedPlan &plan, GroupedCounts *counts, bool mine,
                                    GroupedDraw draw) {
  constexpr uint32_t NEVER = 0xffffffffu;
  uint32_t at = 0;
  auto copy = [&](const GroupedWork &work, uint32_t from, uint32_t draw_at) {
    const uint64_t policy = cache_policy(plan.is_alone(work));
    if constexpr (Tile::IN_8_BITS) {
      /* A stage of 8 bits comes every 420 cycles, of which its copy took 340: so little is done anew for each. */
      const TensorMap *map = kept(work.kind == GROUPED_GATE_UP ? &gate_up : &down);
#pragma unroll 1
      for (uint32_t k = from; k < work.k_blocks;) {
        if (k == draw_at) draw = counts->draw();
        const uint32_t end = k < draw_at ? min(draw_at, work.k_blocks) : work.k_blocks;
#pragma unroll 1
        for (; k < end; k++) grouped_copy(pipe, *map, work.tile.expert, work.slice, k, policy);
      }
    } else {
#pragma unroll 1
      for (uint32_t k = from; k < work.k_blocks; k++) {
        if (k == draw_at) draw = counts->draw();
        grouped_copy(pipe, work.kind == GROUPED_GATE_UP ? gate_up : down, work.tile.expert, work.slice, k, policy);
      }
    }
  };
  auto near_end = [](const GroupedWork &work) { return work.k_blocks - min(work.k_blocks, GROUPED_DRAW_AHEAD<Tile>); };
  if (shape.predicts()) {
    const GroupedWork work = plan.prediction(shape, blockIdx.x, mine ? plan.predicted : plan.tile_total);
    const uint32_t draw_at = near_end(work);
    queue.push(work);
    if (draw_at <= shape.ahead) draw = counts->draw();
    copy(work, shape.ahead, draw_at > shape.ahead ? draw_at : NEVER);
  }
  uint32_t begun = 0;  /* predicting blocks, at least */
#pragma unroll 1
  while (true) {
    const GroupedWork work = plan.work(shape, draw.work, at);
    begun = max(begun, draw.begun);
    if (work.kind == GROUPED_DOWN && begun < shape.predictors()) {
      begun = shape.predictors();  /* looked at once: no prediction is left after this loop */
#pragma unroll 1
      for (uint32_t block = 0; block < shape.predictors(); block++) {
        const uint32_t tile = plan.first_tile(block % shape.predicted_experts);
        if (tile == plan.tile_total || !counts->take_prediction(block)) continue;
        const GroupedWork predicted = plan.prediction(shape, block, tile);
        queue.push(predicted);
        copy(predicted, 0, NEVER);
      }
    }
    queue.push(work);
    if (work.kind == GROUPED_END) return;
    copy(work, 0, near_end(work));
  }
}

/* One lane: what it knows to be stored of a work tile of gate and up is done. A release at GPU scope waits for the block's tensor copies in
 * flight (2 to 6 us); so beside 5 loaders a warp of its own does it. */
__device__ inline void grouped_signal_done(const GroupedWork &work, GroupedCounts *counts) {
  if (work.kind == GROUPED_GATE_UP && work.at < TG_GROUPED_MOST_TILES) count_release(counts->done + work.at);
}

/* A loader warp: every LOADERS-th stage's rows. A lane has 8 columns of every fourth row. `counted`: how much one finished work
 * tile of gate and up adds to done[]. */
template <class Tile, uint32_t LOADERS, class Sort>
__device__ inline void grouped_load(GroupedPipeline<Tile> pipe, GroupedQueue queue, const GroupedShape &shape, const Sort &sort,
                                 const tg_grouped_args &a, uint32_t counted) {
  const uint32_t lane = threadIdx.x % WARP, loader = threadIdx.x / WARP - GROUPED_CONSUMERS;
  using Piece = typename Tile::Operand::Piece;
  const uint32_t row = lane / 8, piece = lane % 8;
  const uint32_t even = gmma_piece_at(row, piece), odd = gmma_piece_at(row + 4, piece);  /* of an atom's rows, this lane's two */
  pipe.advance(loader);
  uint32_t next = loader;  /* the k-block of the work tile that is this warp's */
  queue.take_all([&](const GroupedWork &work) {
    const bool gate_up = work.kind == GROUPED_GATE_UP;
    const typename Tile::X *x = static_cast<const typename Tile::X *>(gate_up ? a.x : a.y);
    const uint32_t k_total = gate_up ? a.hidden : a.inner;
    if (!gate_up) {
      if (lane == 0) await_count(a.counts->done + work.at, shape.gate_up_slices * counted);
      __syncwarp();
    }
    with_room_for<Tile::MOST_ROWS>(work.tile.rows, [&](auto room) {
      /* Tall tiles' rows in two or three goes, as there are registers for no more (profiles/log/prompts.md). */
      constexpr int N = room.value, ROWS = N / 4, GOES = N > 120 ? 3 : N > 64 ? 2 : 1, AT_ONCE = (ROWS + GOES - 1) / GOES;
      /* The last atom may have rows that the tile has not: they are zeros, and nothing reads their sums. */
      auto has = [&](int i) { return i < ROWS - 2 || row + 4 * i < work.tile.rows; };
      uint32_t from[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const uint32_t place = work.tile.first + row + 4 * i;
        from[i] = has(i) ? (gate_up ? sort.row_at(place) : place) * k_total : 0;
      }
#pragma unroll 1
      for (; next < work.k_blocks; next += LOADERS, pipe.advance(LOADERS)) {
        /* Past the end of K, where the weights are zeros, the row's last ones. */
        const typename Tile::X *at = kept(x + min(next * GMMA_K + piece * 8, k_total - 8));
#pragma unroll
        for (int first = 0; first < ROWS; first += AT_ONCE) {
          Piece pieces[AT_ONCE];
#pragma unroll
          for (int i = first; i < min(first + AT_ONCE, ROWS); i++)
            pieces[i - first] = has(i) ? Tile::Operand::load_past_l1(at + from[i]) : Piece();
          if (first == 0) pipe.acquire();
#pragma unroll
          for (int i = first; i < min(first + AT_ONCE, ROWS); i++)
            Tile::Operand::store(pipe.rows() + (i % 2 ? odd : even) + i / 2 * GMMA_ATOM_BYTES, N * GMMA_ROW_BYTES, pieces[i - first]);
          if (first + AT_ONCE < ROWS) asm volatile("" ::: "memory");  /* the others are loaded after these */
        }
        operands_written();
        __syncwarp();
        if (lane == 0) barrier_arrive(pipe.arrivals());
      }
    });
    next -= work.k_blocks;
  });
}

/* Scales of a consumer thread's two weight rows in 8 bits. */
__device__ inline void grouped_scales(float (&scale)[2], const GroupedWork &work, const tg_grouped_args &a) {
  const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4;
  const bool gate_up = work.kind == GROUPED_GATE_UP;
  const uint32_t total = gate_up ? a.inner : a.hidden, apart = gate_up ? 0 : 8;
  const uint32_t n = gate_up ? work.slice * (TG_GROUPED_OUTPUTS / 2) + warp * (TG_GROUPED_GROUP_ROWS / 2) + g
                             : work.slice * TG_GROUPED_OUTPUTS + warp * TG_GROUPED_GROUP_ROWS + g;
  const float *of[2] = {gate_up ? a.up_first ? a.up_scale : a.gate_scale : a.down_scale,
                        gate_up ? a.up_first ? a.gate_scale : a.up_scale : a.down_scale};
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) scale[i] = n + i * apart < total ? of[i][work.tile.expert * total + n + i * apart] : 0.0f;
}

/* A consumer warp: y = silu(gate) * up in X's type, or partial = down. */
template <class Tile, bool COUNTER, class Sort>
__device__ inline void grouped_consume(GroupedPipeline<Tile> pipe, GroupedQueue queue, const Sort &sort, const tg_grouped_args &a) {
  using X = typename Tile::X;
  const uint32_t lane = threadIdx.x % WARP, warp = Tile::IN_8_BITS ? of_warp(threadIdx.x / WARP) : threadIdx.x / WARP;
  const uint32_t half = of_warp(warp / 4), first_row = lane % 4 * 2;
  queue.take_all([&](const GroupedWork &work) {
    constexpr int MOST = Tile::MOST_ROWS;
    float sums[MOST / 2];
    if constexpr (Tile::IN_8_BITS) {
      float scale[2];  /* of this thread's two weight rows; loaded while products run */
      grouped_scales(scale, work, a);
      grouped_multiply<Tile>(sums, pipe, half, of_warp(work.k_blocks), of_warp(work.tile.rows));
#pragma unroll
      for (int i = 0; i < MOST / 2; i++) sums[i] *= scale[i % 4 / 2];
    } else {
      grouped_multiply<Tile>(sums, pipe, half, work.k_blocks, work.tile.rows);
    }
    /* store(at(r), first, second) for each row r of this thread, of its two weight rows; one address at a time, for want of registers */
    auto by_row = [&](auto at, auto store) {
#pragma unroll
      for (int i = 0; i < MOST / 4; i++) {
        const uint32_t r = first_row + i / 2 * 8 + i % 2;
        if (r >= work.tile.rows) break;
        auto *to = at(r);
        asm volatile("" : "+l"(to));
        store(to, sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
      }
    };
    if (work.kind == GROUPED_GATE_UP) {
      /* This lane's output, or of tall tiles the first of the warp's. */
      const uint32_t n = work.slice * (TG_GROUPED_OUTPUTS / 2) + warp * (TG_GROUPED_GROUP_ROWS / 2) + (Tile::IS_TALL ? 0 : lane / 4);
      auto at = [&](uint32_t r) { return static_cast<X *>(a.y) + (size_t)(work.tile.first + r) * a.inner + n; };
      auto gated = [&](float first, float second) {
        return a.up_first ? gmma_silu(second) * first : gmma_silu(first) * second;
      };
      if constexpr (Tile::IS_TALL) {
        if (n < a.inner) grouped_store_gated<X>(sums, work.tile.rows, gated, at);
      } else {
        by_row(at, [&](X *to, float first, float second) {
          const float v = gated(first, second);
          if (n < a.inner) *to = X(v);
        });
      }
    } else {
      const uint32_t n = work.slice * TG_GROUPED_OUTPUTS + warp * TG_GROUPED_GROUP_ROWS + (Tile::ROUNDS ? 0 : lane / 4);
      auto at = [&](uint32_t r) {
        return static_cast<typename Tile::Sum *>(a.partial) + (size_t)sort.pair_at(work.tile.first + r, a.k) * a.hidden + n;
      };
      if constexpr (Tile::ROUNDS) {
        if (n < a.hidden) grouped_store_rounded<typename Tile::Sum>(sums, work.tile.rows, at);
      } else {
        by_row(at, [&](auto *to, float first, float second) {
          if (n < a.hidden) to[0] = first;
          if (n + 8 < a.hidden) to[8] = second;
        });
      }
    }
    __syncwarp();
    if (lane != 0) return;
    if constexpr (COUNTER) {
      queue.signal_stored();
    } else {
      grouped_signal_done(work, a.counts);
    }
  });
}

/* Static shared memory, at most: 10 KiB of GroupedSort for each row a thread; barriers, the queue and the plan have less than 6. */
template <uint32_t EACH>
constexpr uint32_t GROUPED_STATIC_BYTES = (6 + 10 * EACH) * 1024;

/* At least LOADERS stages. EACH: rows that a thread of the consumers sorts. */
template <class Tile, uint32_t LOADERS, bool COUNTER, uint32_t EACH>
__device__ inline void grouped(const TensorMap &gate_up, const TensorMap &down, const tg_grouped_args &a) {
  const uint32_t experts = a.experts, tile_rows = a.tile_rows, stages = a.stages;
  extern __shared__ char grouped_shared[];
  __shared__ uint64_t barriers[2 * TG_GROUPED_MOST_STAGES + 3 * GROUPED_QUEUE + 2];
  __shared__ GroupedWork works[GROUPED_QUEUE];
  __shared__ GroupedSort<EACH> sort;
  __shared__ GroupedPlan plan;
  static_assert(sizeof barriers + sizeof works + sizeof sort + sizeof plan <= GROUPED_STATIC_BYTES<EACH>, "the launcher leaves room for it");
  static_assert(LOADERS >= 3, "consumers of weights in 8 bits wait for a stage with two in hand");
  constexpr uint32_t AFTER_LOADERS = GROUPED_CONSUMERS + LOADERS, PRODUCER = AFTER_LOADERS + COUNTER;
  constexpr uint32_t TAKERS = PRODUCER;  /* of the queue: all warps before the producer */
  const uint32_t warp = of_warp(threadIdx.x / WARP), lane = threadIdx.x % WARP;
  GroupedPipeline<Tile> pipe;
  pipe.stages = grouped_shared + (-shared_address(grouped_shared) & (GMMA_ATOM_BYTES - 1));
  pipe.full = barriers, pipe.empty = pipe.full + TG_GROUPED_MOST_STAGES;
  pipe.stage_bytes = grouped_stage_bytes<Tile>(tile_rows), pipe.count = stages;
  GroupedQueue queue;
  queue.works = works, queue.full = pipe.empty + TG_GROUPED_MOST_STAGES, queue.empty = queue.full + GROUPED_QUEUE;
  queue.stored = queue.empty + GROUPED_QUEUE;
  uint64_t *marked = queue.stored + GROUPED_QUEUE, *listed = marked + 1;  /* the sort's two parts are done */
  const GroupedShape shape(a);
  if (threadIdx.x == 0) {
    pipe.init(2, GROUPED_CONSUMERS);  /* full: the producer's arrival and a loader's */
    queue.init_queue(TAKERS, GROUPED_CONSUMERS);
    barrier_init(marked, GROUPED_CONSUMERS), barrier_init(listed, 1);
    barriers_ready();
  }
  sort.clear();
  __syncthreads();
  if (warp == PRODUCER) {
    if (lane == 0 && shape.predicts()) {
      const uint32_t expert = blockIdx.x % experts, slice = blockIdx.x / experts;
      /* The policy is that of weights which no other tile reads: whether the expert has several is not known yet. */
      for (uint32_t k = 0; k < shape.ahead; k++) grouped_copy(pipe, gate_up, expert, slice, k, cache_policy(true));
      const uint32_t most = min(shape.gate_up_k_blocks, shape.ahead + a.beyond);
      for (uint32_t k = shape.ahead; k < most; k++) tensor_prefetch(&gate_up, GroupedBox<Tile>(expert, slice, k).at);
    }
    __syncwarp();
    uint32_t answer = 0;  /* to a prediction, of the one lane that produces */
    GroupedDraw draw = {};
    /* First a rehearsal: code that has run once comes quicker (router/norm_router.cu). */
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) {
      const bool real = pass > 0;
      if (real) {
        wait_and_let_next_start();
        if (lane == 0 && shape.predicts()) {
          a.counts->begin();
          answer = a.counts->request_prediction(blockIdx.x);
        } else if (lane == 0) {
          draw = a.counts->draw();
        }
        barrier_wait(marked, 0);
      }
      plan.make(shape, sort, experts, tile_rows, real);
    }
    const bool mine = shape.predicts() && GroupedCounts::has_got(answer, blockIdx.x);
    if constexpr (Tile::IN_8_BITS) pipe.stages = kept(pipe.stages);
    if (lane == 0) grouped_produce(pipe, queue, gate_up, down, shape, plan, a.counts, mine, draw);
    return;
  }
  if (warp < GROUPED_CONSUMERS) {
    static_assert(GROUPED_CONSUMERS == GROUPED_SORT_WARPS, "the consumers sort");
    const uint32_t rows = __ldcg(&a.step->rows);
    /* The first pass is a rehearsal, as the producer's is. */
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) {
      const bool real = pass > 0;
      if (real) wait_and_let_next_start();
      const GroupedChoices<EACH> choices(a.chosen, real ? rows : 0, a.k);
      sort.mark(choices, a.k);
      __syncwarp();
      if (real) {
        if (lane == 0) barrier_arrive(marked);
        barrier_wait(marked, 0);
      }
      sort.list(choices, experts, a.k);
      /* First so that no warp marks what another's rehearsal still reads, then so that all is listed. */
      threads_meet<GROUPED_CONSUMERS * WARP, GROUPED_SORT_BARRIER>();
    }
    if (threadIdx.x == 0) barrier_arrive(listed);
    grouped_consume<Tile, COUNTER>(pipe, queue, sort, a);
    return;
  }
  /* In this order, since tg_combine_* reads the routing and h before its own wait: the kernels that wrote these must have ended. */
  wait_and_let_next_start();
  if (COUNTER && warp == AFTER_LOADERS) {
    queue.take_all([&](const GroupedWork &work) {
      queue.wait_stored();
      if (threadIdx.x % WARP == 0) grouped_signal_done(work, a.counts);
    });
  } else {
    barrier_wait(listed, 0);
    grouped_load<Tile, LOADERS>(pipe, queue, shape, sort, a, COUNTER ? 1 : GROUPED_CONSUMERS);
  }
}
