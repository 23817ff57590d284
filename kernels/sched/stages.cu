// build: rdc
/* stages.cu: a pipeline of stages, each on a GPU of its own: how a step goes from one to the next (sched/handover.h) without the host.
 *
 * A step of a stage is one graph:
 *
 *   tg_begin_lead waits until the step is composed (stage 0), or
 *   tg_take       copies what the step is out of the place that it comes in, waits for its residual stream, and copies that
 *   (layers)      the kernels of the stage's layers
 *   tg_hand_on    stores the residual stream into the next GPU, and posts the step (not on the last stage)
 *   tg_lead       stage 0's dispatcher, or
 *   tg_follow     a later stage's; the last one stores what was sampled into stage 0's memory, and posts that
 *
 * A dispatcher launches the next step's graph beside its own, in a chain that the idle graph begins and renews (dispatch.cuh). As soon as
 * stage 0 has composed a step it stores what the step is into the next GPU's memory and announces it: the next stage launches its graph
 * ahead, whose kernels load their weights. So nothing lies between two stages but the rows themselves. While there are no more sequences
 * than stages, stage 0's next step is the row that comes back, one position on: its graph is launched at the token.
 *
 * Flags and places lie in the memory of whoever waits for them, so a wait polls near memory and only stores cross the link.
 *
 * Bound: a row is 4H bytes over the link: 8,192 rows of a hidden size of 2048 take 0.17 ms at 400 GB/s, beside some 20 ms of a stage's
 * kernels. Of one row it is latency: a store is seen by the other GPU after 2.3 us.
 * Measured on H100s: a decode step of one row takes 12.3 us more over two GPUs than on one, 27.2 over four (profiles/log/gpus.md).
 */
#define TG_CLAIMS_NOTHING 1
#include "sched/lead.cuh"

/* Block 0 takes the tables, and hands them on; the others copy the residual stream as soon as it is there. Where the links end before,
 * the step's kernels run over what lies there. Launch: grid = at least 2 blocks, block = LANES. */
extern "C" __global__ void __launch_bounds__(LANES)
    tg_take(float *h, tg_state *state, tg_stage *stage, uint32_t hidden, uint32_t last, tg_stage_times *times) {
  await_earlier_kernels();
  const uint64_t *place = stage->came_in; /* announced */
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) tg_device.block = state;
    __syncthreads();
    tg_get_step(state, place, threadIdx.x, LANES);
    copy(&stage->step, reinterpret_cast<const char *>(place) + TG_PLACE_ALIGN, sizeof(tg_step), threadIdx.x, LANES);
    if (threadIdx.x == 0) stage->goes_to = tg_link_place(&stage->links.out);
    __threadfence();
    __syncthreads();
    const bool goes_on = last || announce(state, stage->links, stage->step);
    let_next_kernel_start(); /* which reads the step before its own wait */
    if (threadIdx.x != 0) return;
    /* Taken here, and not by the dispatcher: once this stage has handed the step on, another may soon lie in its place. */
    uint32_t answer = goes_on ? TG_LINK_WAIT : TG_LINK_OVER;
    while (answer == TG_LINK_WAIT) {
      watch(stage->links.in, LAST_PAUSE_NS);
      answer = tg_links_take(&stage->links, now_ns());
    }
    if (answer == TG_LINK_OVER) stage->over = 1;
    if (times) times->came_ns = now_ns();
    return;
  }
  let_next_kernel_start();
  __shared__ bool there;
  const tg_step *step = reinterpret_cast<const tg_step *>(reinterpret_cast<const char *>(place) + TG_PLACE_ALIGN);
  const uint32_t rows = __ldcg(&step->rows);
  if (threadIdx.x == 0) {
    const uint64_t *count = &stage->links.in.theirs->count, number = stage->takes;
    do {
      there = TG_MUT(178, tg_acquire(count) > number, true);
    } while (!there && *static_cast<volatile uint32_t *>(&stage->over) == 0);
  }
  __syncthreads();
  if (there) copy_rows(h, activations_in(place, state), rows, hidden, blockIdx.x - 1, gridDim.x - 1);
}

/* Whichever block is through last posts the step. Launch: grid = any number of blocks, block = LANES. */
extern "C" __global__ void __launch_bounds__(LANES)
    tg_hand_on(const tg_state *state, tg_stage *stage, const float *h, uint32_t hidden, tg_stage_times *times) {
  __shared__ tg_link_end out;
  let_next_kernel_start();
  /* There before the step's first kernel began; what this side has posted is nobody else's to change. */
  uint64_t *place = where_it_goes(stage);
  const uint32_t rows = __ldcg(&stage->step.rows);
  if (threadIdx.x < sizeof(out) / sizeof(uint64_t))
    reinterpret_cast<uint64_t *>(&out)[threadIdx.x] = __ldcg(reinterpret_cast<const uint64_t *>(&stage->links.out) + threadIdx.x);
  wait_for_earlier_kernels();
  const bool over = __ldcg(&stage->over) != 0;
  copy_rows(activations_in(place, state), h, rows, hidden, blockIdx.x, gridDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    __threadfence_system();
    if (TG_MUT(177, atomicAdd(&stage->arrived, 1u) + 1 < gridDim.x, blockIdx.x != 0)) return;
    __threadfence_system();
    stage->arrived = 0;
  }
  if (over) return;
  const uint64_t left_ns = times ? now_ns() : 0;
  tg_link_post(&out);
  if (times) times->left_ns = left_ns;
  stage->links.out.count = out.count;
  stage->links.out.at = out.at;
  stage->links.out.holds = 0;
}

/* First node of stage 0's steps: waits until the step is composed, since what follows reads it before the grid dependency wait.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_lead(tg_stage *stage) {
  await_earlier_kernels();
  const uint64_t begun = load_acquire(&stage->begun);
  while (TG_MUT(175, load_acquire(&stage->opened) <= begun, false)) {
  }
  stage->begun = begun + 1;
  let_next_kernel_start();
}

/* Stage 0's dispatcher. `where`: TG_DISPATCH_*. `layout`: a copy of the rings' head in device memory. One warp more than the lanes
 * launches graphs. Launch: grid = 1, block = TG_DISPATCH_THREADS. */
extern "C" __global__ void __launch_bounds__(TG_DISPATCH_THREADS)
    tg_lead(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_stage *stage, uint32_t where,
            const tg_stage_times *times) {
  __shared__ __align__(16) Near near;
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  const bool idle = where == TG_DISPATCH_IDLE;
  let_next_kernel_start();
  if (threadIdx.x == 0) await_settled(&stage->settled, &stage->launched);
  __syncthreads();
  /* No kernel of a step writes these. */
  copy(state, block, HEAD_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  look(rings, block);
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.rows_held = 0;
    tg_device.releases = 0;
    tg_device_turn.asks_more = 0;
    near.released = stage->links.in.count;
    near.pause_ns = FIRST_PAUSE_NS;
    near.order = NO_ORDER;
    near.foreseen = false;
    near.idle = idle;
    near.launched = true;
  }
  await_earlier_kernels();
  const Passed passed = noted(idle ? nullptr : times, stage->step.number, false);
  copy(&near.links, &stage->links, sizeof(tg_links), threadIdx.x, TG_DISPATCH_THREADS);
  const uint64_t left = idle ? stage->left : 0; /* before any thread launches it, which clears it */
  __syncthreads();
  /* The chain ended with all that was to do: the idle graph had been launched before. */
  if (idle && (state->outcome.action == TG_ACTION_DONE || state->error != TG_ERROR_NONE)) return;
  if (TG_MUT(179, left, idle ? stage->left : 0) != 0) {
    if (threadIdx.x == 0) near.launched = launch_step(stage, graphs, left, idle);
  } else if (idle || stage->in_chain < TG_CHAIN_STEPS) {
    if (threadIdx.x < LANES) {
      const bool opened = take_turns(state, rings, graphs, stage, near);
      lanes_barrier();
      if (threadIdx.x == 0 && near.order == NO_ORDER) give_order(near, LAUNCH_NOTHING);
      copy(block, state, HEAD_BYTES, threadIdx.x, LANES);
      /* A step that was opened has its links already, and may have been posted by now: there is room for as many as are in flight. */
      if (!opened) copy(&stage->links, &near.links, sizeof(tg_links), threadIdx.x, LANES);
    } else if (threadIdx.x == LANES) {
      follow_order(stage, graphs, near);
    }
  }
  /* Behind a full chain the idle graph takes the turn. */
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!near.launched) {
    block->error = TG_ERROR_LAUNCH;
    tg_links_end(&stage->links, TG_LINK_FAILED);
    tg_release(&rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
  }
  store_release(&stage->settled, stage->launched);
  report(passed);
}

/* Thread 0 of a later stage's dispatcher launches the next step's graph as soon as one is announced. False where the GPU refused what
 * nothing else would launch. */
__device__ inline bool follow(tg_links &links, const tg_graphs *graphs, tg_stage *stage, bool idle) {
  for (uint32_t poll = 0; poll < LINK_POLLS; poll++) {
    const uint64_t start = now_ns();
    do {
      uint32_t kind, bucket;
      if (!tg_link_announced(&links.in, &kind, &bucket)) continue;
      stage->links = links;
      stage->takes = links.in.count;
      stage->came_in = tg_link_place(&links.in);
      return launch_step(stage, graphs, graph_of(graphs, stage, kind, bucket), idle);
    } while (now_ns() - start < LAST_PAUSE_NS);
    /* Without a step all that this finds out is the end. */
    if (tg_links_take(&links, now_ns()) == TG_LINK_OVER) {
      stage->links = links;
      stage->over = 1;
      return true;
    }
    links.in.holds = 0;
  }
  stage->links = links;
  return !idle || launch(graphs->idle, cudaStreamGraphTailLaunch);
}

/* A later stage's dispatcher. `where`: TG_DISPATCH_*. `last`: what its steps sample goes back to stage 0.
 * Launch: grid = 1, block = LANES. */
extern "C" __global__ void __launch_bounds__(LANES)
    tg_follow(tg_state *state, const tg_graphs *graphs, tg_stage *stage, uint32_t where, uint32_t last,
              const tg_stage_times *times) {
  __shared__ __align__(16) tg_links links;
  const bool idle = where == TG_DISPATCH_IDLE;
  __shared__ __align__(16) tg_step step;
  let_next_kernel_start();
  if (threadIdx.x == 0) tg_device.block = state;
  /* There before the step's first kernel began. */
  if (threadIdx.x < sizeof(step) / sizeof(uint64_t))
    reinterpret_cast<uint64_t *>(&step)[threadIdx.x] = __ldcg(reinterpret_cast<const uint64_t *>(&stage->step) + threadIdx.x);
  uint64_t *place = where_it_goes(stage);
  __syncthreads();
  await_earlier_kernels();
  copy(&links, &stage->links, sizeof(tg_links), threadIdx.x, LANES);
  if (!idle && last) tg_pass_results(state, &step, place, 1, threadIdx.x, LANES);
  const bool over = __syncthreads_or(stage->over != 0);
  if (threadIdx.x != 0 || over) return;
  const Passed passed = noted(idle ? nullptr : times, step.number, last);
  if (!idle) {
    if (last) tg_links_post(&links);
    tg_links_release(&links);
  }
  bool launched = true;
  if (idle && stage->left != 0) {
    launched = launch_step(stage, graphs, stage->left, idle);
  } else if (idle || stage->in_chain < TG_CHAIN_STEPS) {
    launched = follow(links, graphs, stage, idle);
  } else {
    stage->links = links; /* behind a full chain the idle graph goes on */
  }
  if (!launched) tg_links_end(&stage->links, TG_LINK_FAILED);
  report(passed);
}
