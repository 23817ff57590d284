/* gpu.cpp: threads as fibers, and the draw of who goes on.
 *
 * A fiber runs until it waits. Where its file was compiled with -fsanitize=thread it may also stop at any load and store: the compiler
 * calls a function at each, and these functions are here, not the sanitizer's. So what only some order of accesses makes wrong goes
 * wrong. Most of the time somebody is slow: a warp, a block, or whatever the GPU does by itself (starting a kernel, ending a graph).
 *
 * Accesses are seen by all at once, in their order: what a missing fence or a stale cache does does not show.
 *
 * Graphs as CUDA has them (programming guide, "Device-side Graph Launch"): fire and forget runs inside the run of the graph that
 * launches; a sibling beside it; a tail launch behind it and all inside it. A graph that has not left the GPU is refused. */
#include "gpu.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "cuda.h"

Extent threadIdx, blockIdx, gridDim;
uint32_t gpu_mutation;

namespace gpu {
namespace {
constexpr size_t STACK_BYTES = 64 << 10;
constexpr uint32_t LANES = 32, BARRIERS = 16, STAYS = 32, HOST_EVERY = 48, MOST_BETWEEN = 128;
constexpr uint64_t HANGS = 4000000; /* draws without progress */

struct Block;

struct Fiber {
  jmp_buf at;
  ucontext_t first;
  bool begun = false;
  Block *block;
  uint32_t index;
  uint32_t came[BARRIERS]; /* how often each barrier had been passed when it last came there, and one */
  const char *waits; /* for what; null: it does not */
  uint32_t detail;
};

struct Barrier {
  uint32_t arrived = 0, passed = 0;
  std::vector<Fiber *> waiting;
};

struct Warp {
  uint64_t words[LANES];
  std::vector<Fiber *> waiting;
};

struct Node;

struct Block {
  Node *node;
  uint32_t index;
  std::vector<Fiber *> fibers, ready[2]; /* [1]: slow ones */
  uint32_t alive;
  Barrier barriers[BARRIERS];
  std::vector<Warp> warps;
  uint32_t holding; /* of gpu_fold */
  bool let;         /* the next kernel may start as far as this block is concerned */
  std::vector<char> shared;
};

struct Run;

struct Node {
  Run *run;
  const Kernel *kernel;
  std::vector<Block *> blocks;
  uint32_t running = 0, holds = 0; /* blocks that have not ended; that do not let the next kernel start yet */
  bool started = false, ended = false;
  std::vector<Fiber *> behind; /* fibers of the next kernel that wait for its end */
};

/* A graph's run. */
struct Run {
  Graph *graph;
  Run *parent;
  std::deque<Graph *> tails, later; /* behind it: its own, then what was behind the one that it follows */
  std::vector<Node> nodes;
  uint32_t inside = 0; /* runs in it */
  bool ended = false;  /* its own kernels */
};

std::vector<Run *> runs;
std::vector<Block *> blocks;
std::vector<std::function<void()>> events;
std::vector<Fiber *> spare;
Fiber *running;
Block *resident, *slow_block;
int slow_warp;        /* -1: all of them */
uint32_t seldom = 1;  /* draws to one of somebody slow */
bool slow_events;
jmp_buf scheduler;
uint64_t state, seeded, draws, epoch_end, last_progress, clock_ns = 1, clock_step;
size_t ready_count[2];
uint32_t until_switch = 1;
std::function<void()> tells;
char *shared_at;
size_t shared_bytes;

uint64_t random_word() {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

void make_ready(Fiber *fiber) {
  Block &block = *fiber->block;
  const bool slow = slow_block == &block && (slow_warp < 0 || fiber->index / LANES == (uint32_t)slow_warp);
  fiber->waits = nullptr;
  block.ready[slow].push_back(fiber);
  ready_count[slow]++;
}

void make_ready(std::vector<Fiber *> &those) {
  for (Fiber *fiber : those) make_ready(fiber);
  those.clear();
}

/* The thread that runs goes on when somebody makes it ready. */
void leave(const char *waits, uint32_t detail) {
  running->waits = waits, running->detail = detail;
  if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}

void start(Graph *graph, Run *parent, std::deque<Graph *> later);

void start_kernel(Node &node);

/* What comes once a kernel lets the next one start, and once a run is over. */
void let(Node &node) {
  const size_t next = &node - node.run->nodes.data() + 1;
  Run *run = node.run;
  if (next < run->nodes.size()) events.push_back([run, next] { start_kernel(run->nodes[next]); });
}

void is_over(Run *run) {
  if (!run->ended || run->inside) return;
  run->graph->there = false;
  std::deque<Graph *> tails = std::move(run->tails);
  tails.insert(tails.end(), run->later.begin(), run->later.end());
  for (size_t i = 0; i < runs.size(); i++)
    if (runs[i] == run) runs.erase(runs.begin() + i--);
  Run *parent = run->parent;
  if (!tails.empty()) {
    Graph *next = tails.front();
    tails.pop_front();
    start(next, parent, std::move(tails));
  } else if (parent) {
    parent->inside--;
    is_over(parent);
  }
  delete run;
}

void end_kernel(Node &node) {
  node.ended = true;
  make_ready(node.behind);
  for (const Node &other : node.run->nodes)
    if (!other.ended) return;
  Run *run = node.run;
  events.push_back([run] { run->ended = true, is_over(run); });
}

void end_block(Block *block) {
  Node &node = *block->node;
  if (!block->let && --node.holds == 0) let(node);
  for (size_t i = 0; i < blocks.size(); i++)
    if (blocks[i] == block) blocks.erase(blocks.begin() + i--);
  if (resident == block) resident = nullptr;
  if (slow_block == block) slow_block = nullptr;
  if (--node.running == 0) events.push_back([&node] { end_kernel(node); });
  delete block;
}

void body() {
  for (;;) {
    running->block->node->kernel->body();
    Block &block = *running->block;
    spare.push_back(running);
    if (--block.alive == 0) {
      running = nullptr;
      end_block(&block);
    } else if (block.barriers[0].arrived == block.alive && block.alive) {
      block.barriers[0].arrived = 0, block.barriers[0].passed++;
      make_ready(block.barriers[0].waiting);
    }
    Fiber *me = spare.back();
    if (!_setjmp(me->at)) _longjmp(scheduler, 1);
  }
}

Fiber *new_fiber() {
  if (!spare.empty()) {
    Fiber *fiber = spare.back();
    spare.pop_back();
    return fiber;
  }
  Fiber *fiber = new Fiber();
  getcontext(&fiber->first);
  void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) abort();
  fiber->first.uc_stack.ss_sp = stack;
  fiber->first.uc_stack.ss_size = STACK_BYTES;
  makecontext(&fiber->first, body, 0);
  return fiber;
}

/* Who is slow from now on, if anybody, and how the clock goes. */
void new_epoch(Block *slow) {
  epoch_end = draws + 500 + below(40000);
  for (Block *block : blocks) {
    block->ready[0].insert(block->ready[0].end(), block->ready[1].begin(), block->ready[1].end());
    block->ready[1].clear();
  }
  ready_count[0] += ready_count[1], ready_count[1] = 0;
  slow_block = slow, slow_events = one_in(6);
  static const uint64_t STEPS[] = {20, 200, 200, 20000};
  clock_step = STEPS[below(4)];
  seldom = one_in(2) ? 200 : 5000;
  if (!slow) return;
  const uint32_t warps = slow->warps.size();
  slow_warp = one_in(6) ? -1 : one_in(3) ? below(warps) : warps - 1; /* the last one launches */
}

void start_kernel(Node &node) {
  const Kernel &kernel = *node.kernel;
  node.started = true;
  node.running = node.holds = kernel.blocks;
  for (uint32_t b = 0; b < kernel.blocks; b++) {
    Block *block = new Block();
    block->node = &node, block->index = b, block->alive = kernel.threads;
    block->warps.resize((kernel.threads + LANES - 1) / LANES);
    block->shared.assign(shared_bytes, one_in(2) ? 0 : (char)random_word()); /* whatever it is */
    blocks.push_back(block);
    if (kernel.threads > LANES && one_in(2)) new_epoch(block);
    for (uint32_t t = 0; t < kernel.threads; t++) {
      Fiber *fiber = new_fiber();
      fiber->block = block, fiber->index = t;
      memset(fiber->came, 0, sizeof fiber->came);
      block->fibers.push_back(fiber);
      make_ready(fiber);
    }
  }
}

void start(Graph *graph, Run *parent, std::deque<Graph *> later) {
  Run *run = new Run{graph, parent, {}, std::move(later), {}};
  graph->there = true;
  for (const Kernel &kernel : graph->kernels) run->nodes.push_back(Node{run, &kernel, {}});
  runs.push_back(run);
  events.push_back([run] { start_kernel(run->nodes[0]); });
}

Fiber *draw(Block *&stays) {
  const bool slow = ready_count[1] && (!ready_count[0] || one_in(seldom));
  Block *from = stays && !stays->ready[slow].empty() && !one_in(STAYS) ? stays : nullptr;
  if (!from) {
    size_t at = below(ready_count[slow]);
    for (Block *block : blocks) {
      from = block;
      if (at < block->ready[slow].size()) break;
      at -= block->ready[slow].size();
    }
  }
  std::vector<Fiber *> &ready = from->ready[slow];
  std::swap(ready[below(ready.size())], ready.back());
  Fiber *fiber = ready.back();
  ready.pop_back();
  ready_count[slow]--;
  return fiber;
}

void resume(Fiber *fiber) {
  Block *block = fiber->block;
  if (resident != block) {
    if (resident) memcpy(resident->shared.data(), shared_at, shared_bytes);
    memcpy(shared_at, block->shared.data(), shared_bytes);
    resident = block;
  }
  running = fiber;
  threadIdx = {fiber->index, 0, 0}, blockIdx = {block->index, 0, 0}, gridDim = {block->node->kernel->blocks, 1, 1};
  if (!_setjmp(scheduler)) {
    if (fiber->begun) _longjmp(fiber->at, 1);
    fiber->begun = true;
    setcontext(&fiber->first);
  }
  running = nullptr;
}

/* What the program itself has of thread_local variables lies just below its thread pointer. */
int find_shared(dl_phdr_info *info, size_t, void *) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) &header = info->dlpi_phdr[i];
    if (header.p_type != PT_TLS) continue;
    shared_bytes = header.p_memsz;
    shared_at = (char *)__builtin_thread_pointer() - (header.p_memsz + header.p_align - 1) / header.p_align * header.p_align;
  }
  return 1; /* the program is the first */
}
}  // namespace

void seed(uint64_t number) {
  seeded = number;
  state = number * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < 8; i++) random_word();
}

uint32_t below(uint32_t end) { return (random_word() >> 32) * end >> 32; }
bool one_in(uint32_t of) { return below(of) == 0; }
uint32_t thread() { return running->index; }
void progress() { last_progress = draws; }

void fail(const char *form, ...) {
  va_list values;
  va_start(values, form);
  fprintf(stderr, "seed %lu: ", seeded);
  vfprintf(stderr, form, values);
  va_end(values);
  fprintf(stderr, "\n");
  for (const Block *block : blocks) {
    fprintf(stderr, "  %s of %s, block %u:", block->node->kernel->name.c_str(), block->node->run->graph->name.c_str(), block->index);
    const char *last = "";
    uint32_t detail = 0;
    for (const Fiber *fiber : block->fibers) {
      if (fiber->block != block) continue;
      const char *waits = fiber->waits ? fiber->waits : "may go on";
      if (waits != last || fiber->detail != detail) fprintf(stderr, " %u.. %s %u;", fiber->index, waits, fiber->detail);
      last = waits, detail = fiber->detail;
    }
    fprintf(stderr, "\n");
  }
  if (tells) tells();
  _Exit(1);
}

void on_failure(std::function<void()> what) { tells = std::move(what); }

void yield() {
  make_ready(running);
  leave(nullptr, 0);
}

void run(const std::vector<Graph *> &graphs, const std::function<void()> &host) {
  dl_iterate_phdr(find_shared, nullptr);
  for (Graph *graph : graphs) start(graph, nullptr, {});
  Block *stays = nullptr;
  progress();
  while (!runs.empty()) {
    if (draws++ >= epoch_end) new_epoch(nullptr);
    if (draws - last_progress > HANGS) fail("nothing comes of it any more");
    clock_ns++;
    if (one_in(HOST_EVERY)) host();
    const bool ready = ready_count[0] + ready_count[1] != 0;
    if (!events.empty() && (!ready || one_in(slow_events ? 3000 : 30))) {
      std::swap(events[below(events.size())], events.back());
      const std::function<void()> event = std::move(events.back());
      events.pop_back();
      event();
      stays = nullptr;
    } else if (ready) {
      Fiber *fiber = draw(stays);
      stays = fiber->block;
      resume(fiber);
      if (!resident) stays = nullptr; /* it has ended */
    } else {
      fail("a hang: no thread can go on");
    }
  }
}
}  // namespace gpu

using namespace gpu;

void gpu_access() {
  if (running && --until_switch == 0) {
    until_switch = 1 + below(MOST_BETWEEN);
    yield();
  }
}

static void meet_warp() {
  Warp &warp = running->block->warps[running->index / LANES];
  if (warp.waiting.size() + 1 == LANES) return make_ready(warp.waiting);
  warp.waiting.push_back(running);
  leave("wait for their warp", 0);
}

void gpu_meet(uint32_t id, uint32_t threads, bool waits) {
  if (gpu_mutation == 1000 + id) return yield();
  Block &block = *running->block;
  Barrier &barrier = block.barriers[id];
  const uint32_t all = threads ? threads : block.alive;
  if (!waits) meet_warp(); /* a barrier counts whole warps */
  if (running->came[id] == barrier.passed + 1) fail("thread %u came to barrier %u before the others had gone on", running->index, id);
  running->came[id] = barrier.passed + 1;
  if (++barrier.arrived == all) {
    barrier.arrived = 0, barrier.passed++;
    make_ready(barrier.waiting);
  } else if (waits) {
    barrier.waiting.push_back(running);
    return leave("wait at barrier", id);
  }
  yield();
}

bool gpu_fold(bool holds, bool all) {
  Block &block = *running->block;
  gpu_meet(0, 0, true);
  block.holding = all;
  gpu_meet(0, 0, true);
  if (holds != all) block.holding = !all;
  gpu_meet(0, 0, true);
  return block.holding;
}

uint64_t gpu_from_lane(uint64_t value, uint32_t lane) {
  uint64_t *words = running->block->warps[running->index / LANES].words;
  words[running->index % LANES] = value;
  meet_warp();
  const uint64_t found = words[lane];
  meet_warp();
  return found;
}

uint64_t gpu_lanes_that(bool holds) {
  uint64_t *words = running->block->warps[running->index / LANES].words, found = 0;
  words[running->index % LANES] = holds;
  meet_warp();
  for (uint32_t lane = 0; lane < LANES; lane++) found |= words[lane] << lane;
  meet_warp();
  return found;
}

uint32_t atomicOr(uint32_t *word, uint32_t bits) {
  gpu_access();
  const uint32_t found = *word;
  *word |= bits;
  return found;
}

uint32_t atomicAdd(uint32_t *word, uint32_t more) {
  gpu_access();
  const uint32_t found = *word;
  *word += more;
  return found;
}

uint64_t now_ns() { return clock_ns += 1 + below(clock_step); }

void gpu_sleep(uint64_t ns) {
  clock_ns += ns;
  yield();
}

void gpu_trap() { fail("__trap() in thread %u of %s", running->index, running->block->node->kernel->name.c_str()); }

uint64_t load_acquire(const uint64_t *from) {
  yield();
  return *from;
}

void store_release(uint64_t *to, uint64_t value) {
  yield();
  *to = value;
}

/* Accesses of the core to what other processors see, by TG_EXPLORE_* of kernels/sched/platform.h. */
uint64_t tg_explore(uint32_t access, const uint64_t *word, uint64_t to, uint64_t expected) {
  uint64_t *at = const_cast<uint64_t *>(word);
  yield();
  const uint64_t found = *at;
  if (access == 1 || access == 3 || access == 5 || (access == 6 && found == expected)) *at = to;
  return found;
}

void let_next_kernel_start() {
  Block &block = *running->block;
  Node &node = *block.node;
  if (block.let) return;
  block.let = true;
  if (--node.holds == 0) let(node);
}

void await_earlier_kernels() {
  Node &node = *running->block->node;
  if (&node == node.run->nodes.data()) return;
  Node &before = *(&node - 1);
  if (before.ended) return;
  before.behind.push_back(running);
  leave("wait for the kernel before", 0);
}

int cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  yield();
  Graph *graph = (Graph *)exec;
  Run *run = running->block->node->run;
  if (!graph) fail("a graph that does not exist is launched");
  if (stream == cudaStreamGraphTailLaunch) {
    for (const Graph *other : run->tails)
      if (other == graph) fail("a second tail launch of %s", graph->name.c_str());
    run->tails.push_back(graph);
    return cudaSuccess;
  }
  if (graph->there) return 1;
  Run *parent = stream == cudaStreamGraphFireAndForget ? run : run->parent;
  if (!parent) fail("%s is launched beside what the host launched", graph->name.c_str());
  parent->inside++;
  start(graph, parent, {});
  return cudaSuccess;
}

/* What a compiler calls with -fsanitize=thread. */
#define ACCESS(NAME) \
  extern "C" void __tsan_##NAME(void *) { gpu_access(); }
#define ACCESSES(KIND) ACCESS(KIND##1) ACCESS(KIND##2) ACCESS(KIND##4) ACCESS(KIND##8) ACCESS(KIND##16)
ACCESSES(read)
ACCESSES(write)
ACCESSES(unaligned_read)
ACCESSES(unaligned_write)
ACCESSES(volatile_read)
ACCESSES(volatile_write)
extern "C" void __tsan_read_range(void *, size_t) { gpu_access(); }
extern "C" void __tsan_write_range(void *, size_t) { gpu_access(); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
