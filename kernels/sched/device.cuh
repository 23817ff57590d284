/* device.cuh: what kernels that take turns of the core, or hand steps on, have in common. */
#pragma once

#include "common/pdl.cuh"
#include "sched/instructions.cuh"
#include "sched/sched.c"

/* While nothing is to be done the dispatcher polls, with pauses that grow from the first to the last, and then leaves to the idle graph. */
constexpr uint32_t FIRST_PAUSE_NS = 128;
constexpr uint32_t LAST_PAUSE_NS = 8192;
constexpr uint32_t POLLS = 64;

/* For how long a dispatcher tries to launch a graph that has not left the GPU yet: far longer than that takes while nobody else has it. */
constexpr uint64_t LEAVING_NS = 100000;

constexpr uint32_t LANES = TG_MAX_LANES;

/* The lanes' own barrier, since a warp beside them launches. 0 is __syncthreads(). */
constexpr int LANES_BARRIER = 1;

__device__ inline void lanes_barrier() { wait_at_barrier<LANES_BARRIER, LANES>(); }

/* Loads all of the host's indices, and the queue's where it claims from one, each by a thread of its own: one trip over the bus. */
__device__ inline void look(const tg_rings *rings, const tg_state *state) {
  constexpr uint32_t INDICES = offsetof(tg_rings, request_tail) / sizeof(tg_index);
  static_assert(INDICES == 5, "tg_device has as many, in the same order");
  const tg_claimer *claimer = &state->claimer;
  if (threadIdx.x >= INDICES + (tg_claims(state) ? 2 : 0)) return;
  const tg_index *from = &rings->request_head + threadIdx.x;
  if (threadIdx.x == INDICES) from = &claimer->queue->pushed;
  if (threadIdx.x == INDICES + 1) from = &claimer->queue->claims_tail[claimer->replica];
  const uint64_t value = tg_load(&from->value);
  tg_fence();
  (&tg_device.request_head)[threadIdx.x] = value;
}

/* One thread waits until the dispatcher before this one has stored everything: then `settled` is what that one has made of `newest`. */
__device__ inline void await_settled(const uint64_t *settled, const uint64_t *newest) {
  uint64_t left;
  do {
    left = load_acquire(settled);
  } while (TG_MUT(172, left != load_acquire(newest), false));
}

__device__ inline void copy(void *to, const void *from, uint32_t bytes, uint32_t thread, uint32_t threads) {
  uint4 *out = static_cast<uint4 *>(to);
  const uint4 *in = static_cast<const uint4 *>(from);
  for (uint32_t i = thread; i < bytes / sizeof(uint4); i += threads) out[i] = in[i];
}

/* All lanes: one turn, by the host's indices as last looked at. `decided` is called in a routine turn as soon as it is known to be one, and
 * `advanced` when it has written all that the next step's kernels read. Whether it was routine. */
template <class Decided, class Advanced>
__device__ inline bool run_phases(tg_state *state, tg_rings *rings, uint64_t start_ns, Decided decided, Advanced advanced) {
  bool routine = false;
#pragma unroll
  for (uint32_t phase = 0; phase < TG_PHASES; phase++) {
    if (phase == TG_COLLECT_PHASE) routine = tg_is_routine(state);
    if (phase == TG_COLLECT_PHASE && routine) decided();
    if (routine && phase > TG_DELIVER_PHASE && phase < TG_FINISH_PHASE) continue;
    if (phase == TG_CLAIM_PHASE && !tg_claims_now(state)) continue;
    tg_phase(state, rings, start_ns, phase, threadIdx.x, LANES);
    lanes_barrier();
    if (phase == TG_COLLECT_PHASE && routine) advanced();
  }
  return routine;
}

/* Launches a graph in one of the streams that CUDA has for that. Whether the GPU did. */
__device__ inline bool launch(uint64_t graph, cudaStream_t stream) {
  return cudaGraphLaunch((cudaGraphExec_t)graph, stream) == cudaSuccess;
}

/* Whether nothing is new for the next turn but the step that comes back, of `rows` rows: by the rule of tg_only_step_is_new. Its gather
 * takes the host's indices as they were looked at, unless what is read first has moved. */
__device__ inline bool only_a_step_is_new(const tg_state *state, uint32_t rows) {
  const tg_inputs *inputs = &state->inputs;
  const tg_rings *layout = &tg_device.layout;
  const tg_claimer *claimer = &state->claimer;
  const bool as_looked = (uint32_t)tg_device.flags == (inputs->flags & ~TG_INPUT_UNCLAIMED) &&
                         tg_device.control_head == inputs->control_head;
  const bool open = state->error == TG_ERROR_NONE && !(tg_device.flags & TG_INPUT_STOP) &&
                    (!layout->record || state->traces_written - tg_device.trace_tail < layout->trace_capacity);
  const bool all_decode = state->prefill == 0 && state->leaving == TG_NONE && state->going == 0;
  const bool room = state->pending == 0 && rows + state->events_published - tg_device.event_tail <= state->most_unread;
  /* Slots that end leave room for claims too; but then the turn is another anyway. */
  const bool none_come = tg_claims(state) ? claimer->known >= tg_device.pushed || state->running == state->config.slots
                                          : tg_device.request_head == state->requests_seen;
  const bool nothing_new = none_come && state->requests_taken == state->requests_seen &&
                           tg_device.control_head == state->controls_taken;
  return as_looked && open && all_decode && room && nothing_new;
}

/* Whether a decode row's sequence goes on, as far as that is known before its token. */
__device__ inline bool row_is_calm(const tg_state *state, const tg_returned_row &row) {
  return row.end_reason == TG_END_NONE && row.generated + 1 < row.max_new_tokens && !tg_row_wants_pages(state, &row);
}

/* Whether it goes on with that token. */
__device__ inline bool row_goes_on(tg_state *state, const tg_returned_row &row, int32_t token, uint64_t now) {
  return token >= 0 && now < row.deadline_ns && !tg_is_stop_id(state, &row, token);
}

/* The head of the state block, up to the mailboxes, which others may write. */
constexpr uint32_t HEAD_BYTES = offsetof(tg_state, mailbox);
static_assert(HEAD_BYTES % sizeof(uint4) == 0 && HEAD_BYTES / sizeof(uint4) <= TG_MAX_LANES, "a load a thread");
constexpr uint32_t LAYOUT_AT = offsetof(tg_rings, bytes), LAYOUT_BYTES = sizeof(tg_rings) - LAYOUT_AT;
static_assert((offsetof(decltype(tg_device), layout) + LAYOUT_AT) % sizeof(uint4) == 0 && LAYOUT_AT % sizeof(uint4) == 0 &&
                  LAYOUT_BYTES % sizeof(uint4) == 0,
              "copied in 16s");

/* ---- steps that pass a stage (stages.cu) ------------------------------------------------------ */

/* The residual stream in a place of a link. */
__device__ inline float *activations_in(const uint64_t *place, const tg_state *state) {
  return reinterpret_cast<float *>(const_cast<uint64_t *>(place) + tg_place_activations(&state->config));
}

/* Past the first-level cache: what was written while this kernel's SM ran others. */
__device__ inline uint64_t *where_it_goes(const tg_stage *stage) {
  return reinterpret_cast<uint64_t *>(__ldcg(reinterpret_cast<const uint64_t *>(&stage->goes_to)));
}

/* Rows first, first + stride ... : f32 [rows, hidden], hidden a multiple of 4. What came over a link is read past the first-level cache. */
__device__ inline void copy_rows(float *to, const float *from, uint32_t rows, uint32_t hidden, uint32_t first, uint32_t stride) {
  for (uint32_t r = first; r < rows; r += stride) {
    const float4 *in = reinterpret_cast<const float4 *>(from + (size_t)r * hidden);
    float4 *out = reinterpret_cast<float4 *>(to + (size_t)r * hidden);
    for (uint32_t i = threadIdx.x; i < hidden / 4; i += LANES) out[i] = __ldcg(in + i);
  }
}

/* When a step came and left; without `times` there is no trace. */
struct Passed {
  const tg_stage_times *times;
  uint64_t step, came_ns, left_ns;
};

/* The times of a step whose other kernels have ended, before the next step's begin. `leaves`: it leaves now. */
__device__ inline Passed noted(const tg_stage_times *times, uint64_t step, bool leaves) {
  if (!times) return {};
  return {times, step, __ldcg(&times->came_ns), leaves ? now_ns() : __ldcg(&times->left_ns)};
}

/* One thread reports them to the host, as the last that a dispatcher does. */
__device__ inline void report(const Passed &passed) {
  if (!passed.times) return;
  uint64_t *told = passed.times->told + passed.step % TG_TIMES_STEPS * 2;
  const uint64_t number = passed.step & ((1u << TG_TIMES_STEP_BITS) - 1);
  if (passed.came_ns != 0) tg_store(told, passed.came_ns << TG_TIMES_STEP_BITS | number);
  tg_store(told + 1, passed.left_ns << TG_TIMES_STEP_BITS | number);
}

/* Looks of a stage that waits for its neighbour before its idle graph follows: some milliseconds. */
constexpr uint32_t LINK_POLLS = 4096;

/* Thread 0 waits at most `most_ns` for a step to be posted that was not known yet, and returns whether one was. */
__device__ inline bool watch(const tg_link_end &in, uint32_t most_ns) {
  const uint64_t start = now_ns();
  bool known;
  do {
    known = tg_load(&in.theirs->count) == in.known;
  } while (known && now_ns() - start < most_ns);
  return !known;
}

/* All lanes wait for room in the link that goes on, store the step's description there, and announce it. Whether the links go on. */
__device__ inline bool announce(tg_state *state, tg_links &links, const tg_step &step) {
  __shared__ uint32_t answer;
  if (threadIdx.x == 0) {
    do {
      answer = tg_links_room(&links, now_ns());
    } while (answer == TG_LINK_WAIT);
  }
  lanes_barrier();
  if (answer != TG_LINK_READY) return false;
  tg_put_step(state, step.number, tg_link_place(&links.out), threadIdx.x, LANES);
  lanes_barrier();
  if (threadIdx.x == 0) tg_links_announce(&links, step.kind, step.bucket);
  return true;
}

/* One thread launches a step's graph, inside the idle graph's run, or beside the step's that this dispatcher ends. Where the GPU refuses,
 * the chain ends here, and the idle graph launches this step. False where the idle graph itself is refused. */
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
