/* stages.cu: a pipeline of stages, each on a GPU of its own: how a step goes from one to the next (sched/handover.h) with
 * nobody of the host on its way.
 *
 * A step of a stage is one graph:
 *
 *   tg_begin_lead waits until the step is composed (stage 0, whose graph may be launched before), or
 *   tg_take       copies what the step is out of the place that it comes in, waits for its residual stream, and copies that
 *   ...           the kernels of the stage's layers
 *   tg_hand_on    stores the residual stream into the next GPU, and posts the step (not on the last stage)
 *   tg_lead       stage 0's dispatcher, or
 *   tg_follow     a later stage's; the last one stores what was sampled into stage 0's memory, and posts that
 *
 * A dispatcher launches the next step's graph beside its own, in a chain that the idle graph begins and renews, as the
 * dispatcher of one GPU does (dispatcher.cu). Stage 0 takes turns of the core: while its first step goes through the other
 * stages it composes the next one. As soon as it has, it stores what the step is into the next GPU's memory and announces it: the
 * next stage launches the graph ahead, which takes that, and its first layer's kernels come onto the GPU with their weights asked
 * for. So nothing lies between two stages but the rows themselves.
 *
 * While there are no more sequences than stages, stage 0 has nothing to run until a token comes back. Then its next step is the
 * row that came back, one position on, unless the token ends that. So its graph is launched at the token, and comes onto the GPU
 * while the turn goes on.
 *
 * Flags and places lie in the memory of whoever waits for them, so a wait polls near memory and only stores cross the link.
 *
 * Bound: a row is 4H bytes over the link: 8 KB for a hidden size of 2048, 20 ns at 400 GB/s; a whole step of 8,192 rows
 * 0.17 ms beside some 20 ms of a stage's kernels.
 */
#include "common/base.cuh"
#include "common/launch.cuh"
#include "sched/passing.cuh"

LAUNCH_CONSTANTS(tg_stages_tile, 1, COPY_THREADS)
/* Looks of a stage that waits for its neighbour before its idle graph follows: some milliseconds. */
constexpr uint32_t LINK_POLLS = 4096;
/* Looks of stage 0 that find nothing, until it takes a turn all the same, for what time alone brings. */
constexpr uint32_t LOOKS_A_TURN = 16;
/* What a graph takes to leave the GPU once its dispatcher has: far less than this while no other process has the GPU. */
constexpr uint64_t LEAVING_NS = 100000;

/* Thread 0: waits until something has been posted that was not known yet, for so long at most. Whether it has. */
__device__ inline bool watch(const tg_link_end &in, uint32_t most_ns) {
  const uint64_t start = now_ns();
  bool known;
  do {
    known = tg_load(&in.theirs->count) == in.known;
  } while (known && now_ns() - start < most_ns);
  return !known;
}

/* All lanes: waits for room in the link that goes on, puts what the step is there, and announces it. Whether the links go
 * on. */
__device__ inline bool announce(tg_state *state, tg_links &links, const tg_step &step) {
  __shared__ uint32_t asked;
  if (threadIdx.x == 0) {
    do {
      asked = tg_links_room(&links, now_ns());
    } while (asked == TG_LINK_WAIT);
  }
  lanes_barrier();
  if (asked != TG_LINK_READY) return false;
  tg_put_step(state, step.number, tg_link_place(&links.out), threadIdx.x, LANES);
  lanes_barrier();
  if (threadIdx.x == 0) tg_links_announce(&links, step.kind, step.bucket);
  return true;
}

/* Block 0 takes the tables, and hands them on; the others copy the residual stream as soon as it is there. Where the links end
 * before, the step's kernels run over what lies there, and nobody hears of it.
 * Launch: grid = at least 2 blocks, block = COPY_THREADS. */
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
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
    /* Asked for in full only while it does not come: that also finds the end. */
    uint32_t asked = goes_on ? TG_LINK_WAIT : TG_LINK_OVER;
    while (asked == TG_LINK_WAIT && !watch(stage->links.in, LAST_PAUSE_NS)) asked = tg_links_take(&stage->links, now_ns());
    if (asked == TG_LINK_OVER) stage->over = 1;
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
      there = tg_acquire(count) > number;
    } while (!there && *static_cast<volatile uint32_t *>(&stage->over) == 0);
  }
  __syncthreads();
  if (there) copy_rows(h, activations_in(place, state), rows, hidden, blockIdx.x - 1, gridDim.x - 1);
}

/* Whichever block is through last posts the step.
 * Launch: grid = any number of blocks, block = COPY_THREADS. */
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
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
    if (atomicAdd(&stage->arrived, 1u) + 1 < gridDim.x) return;
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

/* One thread: launches a step's graph: inside the idle graph's run, or beside the step's that this dispatcher ends. Where the GPU
 * refuses, another process may have it: the chain ends here, and the idle graph, which is launched behind it, launches this
 * step. False where the idle graph itself is refused. */
__device__ inline bool launch_step(tg_stage *stage, const tg_graphs *graphs, uint64_t graph, bool idle) {
  stage->left = 0;
  stage->launched++;
  stage->in_chain = idle ? 1 : stage->in_chain + 1;
  __threadfence();
  if (idle) return launch(graph, cudaStreamGraphFireAndForget) && launch(graphs->idle, cudaStreamGraphTailLaunch);
  const uint64_t start = now_ns();
  while (!launch(graph, cudaStreamGraphFireAndForgetAsSibling)) {
    if (now_ns() - start <= LEAVING_NS) continue;
    stage->left = graph;
    stage->launched--;
    break;
  }
  return true;
}

__device__ inline uint64_t graph_of(const tg_graphs *graphs, const tg_stage *stage, uint32_t kind, uint32_t bucket) {
  return graphs->step[stage->launched % TG_COPIES][0][kind][bucket];
}

/* First node of stage 0's steps: waits until the step is composed, if its graph was launched before. What follows may start
 * early only then, since before their own waits kernels read what the step is.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_lead(tg_stage *stage) {
  await_earlier_kernels();
  const uint64_t begun = load_acquire(&stage->begun);
  while (load_acquire(&stage->opened) <= begun) {
  }
  stage->begun = begun + 1;
  let_next_kernel_start();
}

/* What stage 0's launching warp is asked to do. */
enum Order : uint32_t { NOTHING_YET, LAUNCH_STEP, LAUNCH_IDLE, LEAVE };

/* What stage 0's dispatcher works on in shared memory. */
struct Near {
  tg_links links;
  uint64_t start_ns;    /* of the turn */
  uint64_t given_back;  /* thread 0's: places of the link that comes in, as was told */
  uint64_t graph;       /* to be launched */
  tg_returned_row row;  /* of the step that comes back next, where `foreseen` */
  uint32_t order;       /* thread 0 writes it once, its other words before */
  uint32_t asked;       /* TG_LINK_*, as thread 0 was answered */
  uint32_t pause_ns;    /* thread 0's */
  uint32_t bucket;      /* of the step that comes back next */
  bool foreseen;        /* the step behind that is the same one position on, unless its token says otherwise */
  bool idle;            /* this is the idle graph's dispatcher */
  bool launched;        /* false: the GPU refused what nothing else would launch */
};
static_assert(sizeof(tg_links) % sizeof(uint4) == 0 && offsetof(tg_stage, links) % sizeof(uint4) == 0 &&
                  sizeof(tg_step) % sizeof(uint4) == 0,
              "copied in 16s");

/* Thread 0, once: the launching warp goes on with this. */
__device__ inline void give(Near &near, Order order) {
  __threadfence_block();
  *static_cast<volatile uint32_t *>(&near.order) = order;
}

/* The launching warp's first thread: does what it is asked for. */
__device__ inline void obey(tg_stage *stage, const tg_graphs *graphs, Near &near) {
  uint32_t order;
  do {
    order = *static_cast<volatile uint32_t *>(&near.order);
  } while (order == NOTHING_YET);
  __threadfence_block();
  if (order == LAUNCH_STEP) near.launched = launch_step(stage, graphs, near.graph, near.idle);
  if (order == LAUNCH_IDLE) near.launched = launch(graphs->idle, cudaStreamGraphTailLaunch);
}

/* Thread 0, while steps are on their way: is the one behind the next that comes back known but for a token? Every sequence
 * that runs is a step of its own on its way, all go on, and nobody asks for anything. */
__device__ inline bool foresees(tg_state *state, Near &near) {
  const uint64_t first = state->steps_collected, in_flight = tg_in_flight(state);
  if (in_flight == 0 || in_flight != state->running || near.links.in.count != first || !only_a_step_is_new(state, 1)) return false;
  for (uint64_t number = first; number < first + in_flight; number++) {
    const tg_step *step = tg_step_at(state, number);
    if (step->rows != 1 || step->decode_rows != 1) return false;
    const tg_returned_row row = tg_read_returned_row(state, step, 0);
    if (!row_is_calm(state, row)) return false;
    if (number == first) {
      near.row = row;
      near.bucket = step->bucket;
    }
  }
  return true;
}

/* Thread 0, when a foreseen step has come back: launches the next one's graph if it goes on. */
__device__ inline void launch_foreseen(tg_state *state, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  const tg_link_end &in = near.links.in;
  tg_acquire(&in.theirs->count);
  const uint64_t *place = tg_link_place(&in);
  const int32_t token = reinterpret_cast<const tg_sampled *>(reinterpret_cast<const char *>(place) + TG_PLACE_ALIGN)->token;
  const uint64_t now = now_ns();
  if (tg_read(place) != in.count || !row_goes_on(state, near.row, token, now)) return;
  near.start_ns = now; /* the turn's too, so that no deadline lies between */
  near.graph = graph_of(graphs, stage, TG_KIND_DECODE, near.bucket);
  give(near, LAUNCH_STEP);
}

/* All lanes: has a step come back? Thread 0 asks. */
__device__ inline uint32_t take(Near &near) {
  if (threadIdx.x == 0) near.asked = tg_links_take(&near.links, now_ns());
  lanes_barrier();
  const uint32_t asked = near.asked;
  lanes_barrier();
  return asked;
}

/* All lanes: what the steps that have come back have sampled goes to their places, which are the last stage's again only once
 * the turn is through (take_turns): a release waits for the link. Whether the links go on. */
__device__ inline bool collect(tg_state *state, Near &near) {
  uint32_t asked;
  do {
    asked = take(near);
    if (asked != TG_LINK_READY) break;
    tg_get_results(state, tg_link_place(&near.links.in), threadIdx.x, LANES);
    lanes_barrier();
    if (threadIdx.x == 0) {
      near.links.in.holds = 0;
      tg_link_goes_on(&near.links.in);
    }
    lanes_barrier();
  } while (near.links.in.known != near.links.in.count); /* another look would go to the host, for its stop */
  if (threadIdx.x == 0) tg_device.returned_end = near.links.in.count;
  /* The host's stop is the core's to see too. */
  return asked != TG_LINK_OVER || (near.links.ended & 0xffffu) == TG_LINK_STOPPED;
}

/* All lanes: step `number`, which the turn has composed, is what the next graph runs, and its kernels may begin. */
__device__ inline void open_step(const tg_state *state, tg_stage *stage, const Near &near, uint64_t number) {
  copy(&stage->step, &state->steps[tg_step_place(state, number)], sizeof(tg_step), threadIdx.x, LANES);
  copy(&stage->links, &near.links, sizeof(tg_links), threadIdx.x, LANES);
  if (threadIdx.x == 0) stage->goes_to = tg_link_place(&near.links.out);
  lanes_barrier();
  if (threadIdx.x == 0) store_release(&stage->opened, number + 1);
}

/* All lanes: waits until a step comes back, or the host has said something, or a turn is due. */
__device__ inline void wait_for_news(tg_state *state, const tg_rings *rings, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  const tg_inputs *seen = &state->inputs;
  for (uint32_t looks = 0; looks < LOOKS_A_TURN; looks++) {
    if (threadIdx.x == 0) {
      near.asked = watch(near.links.in, near.pause_ns);
      if (near.asked && near.foreseen) launch_foreseen(state, graphs, stage, near);
      near.pause_ns = min(2 * near.pause_ns, LAST_PAUSE_NS);
    }
    lanes_barrier();
    /* That step is taken with what the host's indices were a moment ago. */
    if (near.asked) return;
    look(rings);
    lanes_barrier();
    if ((uint32_t)tg_device.flags != (seen->flags & ~TG_INPUT_UNCLAIMED) || tg_device.control_head != seen->control_head ||
        tg_device.request_head != seen->request_head || tg_device.event_tail != seen->event_tail ||
        tg_device.trace_tail != seen->trace_tail)
      return;
  }
}

/* All lanes: turns until there is a step, or the end, or so many more than one were in vain that the idle graph is to go on.
 * Whether a step was opened. */
__device__ inline bool take_turns(tg_state *state, tg_rings *rings, const tg_graphs *graphs, tg_stage *stage, Near &near) {
  for (uint32_t poll = 0;; poll++) {
    const bool goes_on = collect(state, near);
    const bool foreseen = near.order == LAUNCH_STEP;
    if (threadIdx.x == 0 && !foreseen) near.start_ns = now_ns();
    lanes_barrier();
    if (!goes_on) {
      if (threadIdx.x == 0) {
        state->error = TG_ERROR_LINK;
        tg_store(&rings->status.ended, near.links.ended);
        tg_release(&rings->action.value, (uint64_t)TG_ERROR_LINK << 32 | TG_ACTION_ERROR);
      }
      return false;
    }
    bool routine = false;
#pragma unroll
    for (uint32_t phase = 0; phase < TG_PHASES; phase++) {
      if (phase == TG_COLLECT_PHASE) routine = tg_is_routine(state);
      if (routine && phase > TG_TELL_PHASE && phase < TG_FINISH_PHASE) continue;
      tg_phase(state, rings, near.start_ns, phase, threadIdx.x, LANES);
      lanes_barrier();
      if (phase == TG_COLLECT_PHASE && routine) open_step(state, stage, near, state->steps_composed);
    }
    const tg_outcome &outcome = state->outcome;
    const uint32_t action = outcome.action;
    /* a bug: the graph that is launched already is not that of the step */
    if (foreseen && (action != TG_ACTION_STEP || outcome.kind != TG_KIND_DECODE || outcome.bucket != near.bucket)) __trap();
    if (action == TG_ACTION_STEP) {
      if (!routine) open_step(state, stage, near, outcome.step);
      if (threadIdx.x == 0 && !foreseen) {
        near.graph = graph_of(graphs, stage, outcome.kind, outcome.bucket);
        give(near, LAUNCH_STEP);
      }
    }
    if (threadIdx.x == 0) {
      tg_trace_write(state, rings, now_ns(), 0);
      tg_flush();
      if (near.given_back != near.links.in.count) {
        near.given_back = near.links.in.count;
        tg_release(&near.links.in.mine->count, near.given_back);
      }
      if (action == TG_ACTION_ERROR) tg_links_end(&near.links, TG_LINK_FAILED);
      if (action == TG_ACTION_DONE) tg_links_end(&near.links, state->inputs.flags & TG_INPUT_STOP ? TG_LINK_STOPPED : TG_LINK_DRAINED);
    }
    if (action == TG_ACTION_STEP) {
      /* Where the links are over, the next turn finds out. */
      announce(state, near.links, *tg_step_at(state, outcome.step));
      return true;
    }
    if (action == TG_ACTION_DONE || action == TG_ACTION_ERROR) return false;
    /* Where steps are on their way one of them comes back before long, or the links end. */
    if (poll == (tg_in_flight(state) == 0 ? POLLS : LINK_POLLS) / LOOKS_A_TURN) {
      if (near.idle && threadIdx.x == 0) give(near, LAUNCH_IDLE);
      return false;
    }
    if (outcome.changed) { /* it found something new, so there may be more at once */
      if (threadIdx.x == 0) near.pause_ns = FIRST_PAUSE_NS;
      look(rings);
      lanes_barrier();
    } else {
      if (threadIdx.x == 0) near.foreseen = foresees(state, near);
      wait_for_news(state, rings, graphs, stage, near);
    }
  }
}

/* Stage 0's dispatcher. `where`: TG_DISPATCH_*. `layout`: a copy of the rings' head in device memory. One warp more than the
 * lanes launches graphs.
 * Launch: grid = 1, block = TG_DISPATCH_THREADS. */
extern "C" __global__ void __launch_bounds__(TG_DISPATCH_THREADS)
    tg_lead(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_stage *stage, uint32_t where,
            const tg_stage_times *times) {
  __shared__ __align__(16) Near near;
  __shared__ __align__(16) unsigned char head[HEAD_BYTES];
  tg_state *state = reinterpret_cast<tg_state *>(head);
  const bool idle = where == TG_DISPATCH_IDLE;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    while (load_acquire(&stage->settled) != stage->launched) {
    }
  }
  __syncthreads();
  /* No kernel of a step writes these. */
  copy(state, block, HEAD_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  copy(&tg_device.layout.bytes, &layout->bytes, LAYOUT_BYTES, threadIdx.x, TG_DISPATCH_THREADS);
  look(rings);
  if (threadIdx.x == 0) {
    tg_device.block = block;
    tg_device.rows_step = TG_NO_STEP;
    tg_device.releases = 0;
    tg_device_turn.asks_more = 0;
    near.given_back = stage->links.in.count;
    near.pause_ns = FIRST_PAUSE_NS;
    near.order = NOTHING_YET;
    near.foreseen = false;
    near.idle = idle;
    near.launched = true;
  }
  await_earlier_kernels();
  const Passed passed = noted(idle ? nullptr : times, stage->step.number, false);
  copy(&near.links, &stage->links, sizeof(tg_links), threadIdx.x, TG_DISPATCH_THREADS);
  __syncthreads();
  /* The chain ended with all that was to do: the idle graph had been launched before. */
  if (idle && (state->outcome.action == TG_ACTION_DONE || state->error != TG_ERROR_NONE)) return;
  if (idle && stage->left != 0) {
    if (threadIdx.x == 0) near.launched = launch_step(stage, graphs, stage->left, idle);
  } else if (idle || stage->in_chain < TG_CHAIN_STEPS) {
    if (threadIdx.x < LANES) {
      const bool opened = take_turns(state, rings, graphs, stage, near);
      lanes_barrier();
      if (threadIdx.x == 0 && near.order == NOTHING_YET) give(near, LEAVE);
      copy(block, state, HEAD_BYTES, threadIdx.x, LANES);
      /* A step that was opened has its links already, and may have been posted by now: there is room for as many as are in
       * flight. */
      if (!opened) copy(&stage->links, &near.links, sizeof(tg_links), threadIdx.x, LANES);
    } else if (threadIdx.x == LANES) {
      obey(stage, graphs, near);
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
  tell(passed);
}

/* Thread 0 of a later stage's dispatcher, by the links in shared memory: launches the next step's graph as soon as one is
 * announced. False where the GPU refused what nothing else would launch. */
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
  if (!idle && last) tg_put_results_of(state, &step, place, threadIdx.x, LANES);
  const bool over = __syncthreads_or(stage->over != 0);
  if (threadIdx.x != 0 || over) return;
  const Passed passed = noted(idle ? nullptr : times, step.number, last);
  if (!idle) {
    if (last) tg_links_post(&links);
    links.in.known = max(links.in.known, links.in.count + 1); /* it came */
    if (tg_read(tg_link_place(&links.in)) != links.in.count) tg_links_end_at(&links, &links.in, TG_LINK_ORDER);
    tg_links_give_back(&links);
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
  tell(passed);
}
