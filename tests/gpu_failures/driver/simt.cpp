/* simt.cpp: fibers, and the draw of who goes on. See simt.h and fibers.h. */
#include "fibers.h"

#include <map>
#include <memory>
#include <semaphore.h>
#include <sys/mman.h>
#include <thread>

Extent threadIdx, blockIdx, blockDim, gridDim;

#ifndef __x86_64__
#error "fibers switch by the registers of x86-64: run these tests there"
#endif
extern "C" void simt_switch(void **save, void *to);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
)");

namespace simt {
namespace {
constexpr size_t STACK_BYTES = 256 << 10;
constexpr uint32_t SELDOM = 1000; /* draws to one of somebody slow, where he is not the last of all */
constexpr uint32_t STAYS = 64;    /* draws of a block before another's */

/* Who is slow. */
enum Schedule { NOBODY, A_WARP_LAST, A_WARP_SELDOM, A_BLOCK_LAST, A_BLOCK_SELDOM, EVENTS_LAST, EVENTS_FIRST, SCHEDULES };

std::unique_ptr<Block> block_of[MOST_BLOCKS];
/* Blocks of a cluster run on a host thread each, of which one has the baton: `__shared__` is thread_local, so each has its own. */
sem_t batons[MOST_BLOCKS], helped;
std::vector<Block *> blocks;
std::vector<Event> events;
std::map<const void *, std::vector<Fiber *>> parked;
Fiber *running;
Launched launched;
uint32_t thread_count, slow_warp;
Schedule schedule;
Block *slow_block; /* ... or where the slow warp is */
bool over, told;
std::string failure;
uint64_t random_state, seed;

void make_ready(Fiber &fiber) {
  Block &block = *fiber.block;
  const bool slow = schedule <= A_WARP_SELDOM && schedule != NOBODY && slow_block == &block && fiber.index / WARP_LANES == slow_warp;
  block.ready[slow].push_back(fiber.index);
}

void to_scheduler(Fiber &fiber) { simt_switch(&fiber.at, fiber.block->scheduler); }

void release_warp(Block &block, uint32_t index, uint32_t mask) {
  WarpState &warp = block.warps[index];
  for (uint32_t lane = 0; lane < WARP_LANES; lane++) {
    Fiber &fiber = block.fibers[index * WARP_LANES + lane];
    if (!(warp.arrived & mask & 1u << lane) || !fiber.meets) continue;
    fiber.meets = 0;
    make_ready(fiber);
  }
  warp.arrived &= ~mask;
}

void release_block(Block &block) {
  for (uint32_t index : block.at_block) make_ready(block.fibers[index]);
  block.at_block.clear();
}

/* A fiber that has ended keeps nobody waiting. */
void ended(Fiber &fiber) {
  Block &block = *fiber.block;
  const uint32_t index = fiber.index / WARP_LANES;
  WarpState &warp = block.warps[index];
  warp.there &= ~(1u << fiber.index % WARP_LANES);
  fiber.ended = true;
  block.alive--;
  for (uint32_t lane = 0; lane < WARP_LANES; lane++) {
    const uint32_t mask = block.fibers[index * WARP_LANES + lane].meets & warp.there;
    if (mask && (warp.arrived & mask) == mask) release_warp(block, index, mask);
  }
  if (block.alive && block.at_block.size() == block.alive) release_block(block);
  thread_ended();
  if (block.alive) return;
  for (const Event &event : events)
    if (event.uses == &block) return fail("the block has ended while a copy or an arrival is on its way from or to its shared memory");
}

void begin() {
  launched.kernel(launched.argument);
  ended(*running);
  void *nowhere;
  simt_switch(&nowhere, running->block->scheduler);
  abort();
}

/* Of all that may go on: nothing, an event or a fiber of `block`. */
struct Choice {
  Block *block;
  Fiber *fiber;
  bool event;
};

bool is_slow(const Block &block) { return (schedule == A_BLOCK_LAST || schedule == A_BLOCK_SELDOM) && slow_block == &block; }

/* `slow`: among those that are, or among the others. */
Choice draw_among(Block *mine, bool slow) {
  const bool with_events = slow == (schedule == EVENTS_LAST);
  const size_t many = with_events ? events.size() : 0;
  auto count = [&](const Block &block) -> size_t {
    if (is_slow(block)) return slow ? block.ready[0].size() : 0;
    return block.ready[slow].size();
  };
  size_t all = 0;
  for (const Block *block : blocks) all += count(*block);
  if (!all && !many) return {};
  if (many && (!all || schedule == EVENTS_FIRST || random_word() % (all + many) < many)) return {nullptr, nullptr, true};
  Block *from = mine;
  if (!count(*mine) || random_word() % STAYS == 0) {
    size_t at = random_word() % all;
    for (Block *block : blocks) {
      if (at < count(*block)) {
        from = block;
        break;
      }
      at -= count(*block);
    }
  }
  std::vector<uint32_t> &ready = from->ready[slow && !is_slow(*from)];
  const size_t next = random_word() % ready.size();
  Fiber *fiber = &from->fibers[ready[next]];
  ready[next] = ready.back();
  ready.pop_back();
  return {from, fiber, false};
}

Choice draw(Block *mine) {
  const bool seldom = schedule == A_WARP_SELDOM || schedule == A_BLOCK_SELDOM;
  const bool slow_first = seldom && random_word() % SELDOM == 0;
  const Choice choice = draw_among(mine, slow_first);
  return choice.block || choice.event ? choice : draw_among(mine, !slow_first);
}

void run_event() {
  const size_t at = random_word() % events.size();
  Event event = std::move(events[at]);
  events[at] = std::move(events.back());
  events.pop_back();
  if (!event.run(event)) events.push_back(std::move(event));
}

/* Who is slow, in words. */
std::string describe_schedule() {
  static const char *const words[SCHEDULES] = {"nobody is slow", "a warp goes on only where nobody else can", "a warp is drawn seldom",
                                               "a block goes on only where nobody else can", "a block is drawn seldom",
                                               "what is asynchronous happens only where nobody else can go on",
                                               "what is asynchronous happens at once"};
  std::string found = words[schedule];
  if (slow_block) found += text(schedule <= A_WARP_SELDOM ? " (of rank %u warp %u)" : " (of rank %u)", slow_block->rank, slow_warp);
  return found;
}

void pass(uint32_t rank) { sem_post(&batons[rank]); }
void take(uint32_t rank) {
  while (sem_wait(&batons[rank])) {
  }
}

void prepare(Block &block) {
  if (!block.stacks) {
    void *memory = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    block.stacks = (char *)memory;
  }
  block.ready[0].clear(), block.ready[1].clear(), block.at_block.clear();
  for (uint32_t i = 0; i < thread_count; i++) {
    void **top = (void **)(block.stacks + (i + 1) * STACK_BYTES);
    top[-1] = nullptr;
    top[-2] = (void *)begin;
    Fiber &fiber = block.fibers[i];
    fiber.at = top - 8, fiber.block = &block, fiber.index = i;
    fiber.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    fiber.meets = 0, fiber.ended = false, fiber.describe = nullptr;
    if (fiber.used) fiber.work = {};
    fiber.used = false;
    make_ready(fiber);
  }
  for (uint32_t warp = 0; warp * WARP_LANES < thread_count; warp++) {
    const uint32_t lanes = std::min(thread_count - warp * WARP_LANES, WARP_LANES);
    block.warps[warp].there = lanes == WARP_LANES ? 0xffffffffu : (1u << lanes) - 1;
    block.warps[warp].arrived = 0;
  }
  block.alive = thread_count;
}

void find_shared(Block &block) {
  block.shared = launched.shared();
  memset(block.shared, 0xff, launched.shared_bytes);
}

/* With the baton, which is back when it returns: whether `running` is a fiber of this block that is to go on; else all is over. */
bool is_next(Block &mine) {
  for (;;) {
    over = over || !failure.empty();
    if (over) return false;
    const Choice choice = draw(&mine);
    if (choice.event) {
      run_event();
      continue;
    }
    if (!choice.block) {
      over = true;
      for (const Block *block : blocks)
        if (block->alive) fail("a hang: no thread can go on");
      return false;
    }
    running = choice.fiber;
    if (choice.block == &mine) return true;
    pass(choice.block->rank);
    take(mine.rank);
    return !over;
  }
}

/* `chosen`: `running` is to go on first. */
void drive(Block &mine, bool chosen) {
  while (chosen || is_next(mine)) {
    chosen = false;
    running->describe = nullptr;
    threadIdx = running->thread;
    blockIdx = mine.index;
    simt_switch(&mine.scheduler, running->at);
  }
  if (told) return;
  told = true;
  for (const Block *block : blocks)
    if (block != &mine) pass(block->rank);
}

/* The host thread of all blocks of that rank but 0, whose is the launch's own. */
void help(uint32_t rank) {
  for (;;) {
    take(rank);
    find_shared(*block_of[rank]);
    sem_post(&helped);
    take(rank);
    if (!over) drive(*block_of[rank], true);
    sem_post(&helped);
  }
}

void await_helpers() {
  for (size_t i = 1; i < blocks.size(); i++)
    while (sem_wait(&helped)) {
    }
}

void run_cluster(Extent first) {
  blocks.clear();
  for (uint32_t rank = 0; rank < launched.cluster; rank++) {
    if (!block_of[rank]) {
      block_of[rank].reset(new Block());
      sem_init(&batons[rank], 0, 0);
      if (rank == 0) sem_init(&helped, 0, 0);
      if (rank > 0) std::thread(help, rank).detach();
    }
    Block &block = *block_of[rank];
    block.rank = rank;
    block.index = {first.x + rank, first.y, first.z};
    blocks.push_back(&block);
  }
  schedule = (Schedule)(random_word() % SCHEDULES);
  slow_block = schedule != NOBODY && schedule <= A_BLOCK_SELDOM ? blocks[random_word() % blocks.size()] : nullptr;
  slow_warp = random_word() % ((thread_count + WARP_LANES - 1) / WARP_LANES);
  events.clear(), parked.clear();
  over = told = false;
  for (Block *block : blocks) prepare(*block);
  begin_cluster();
  find_shared(*blocks[0]);
  for (size_t rank = 1; rank < blocks.size(); rank++) pass(rank);
  await_helpers();
  drive(*blocks[0], false);
  await_helpers();
}

/* As simt.h says of TEST_SIMT_SEED. */
uint64_t next_seed() {
  static uint64_t launches;
  const char *text = getenv("TEST_SIMT_SEED");
  if (!text) return ++launches;
  char *end;
  const uint64_t from = strtoull(text, &end, 10);
  return *end == '+' ? from + launches++ : from;
}
}  // namespace

Fiber &self() { return *running; }
Work &work() {
  running->used = true;
  return running->work;
}
std::vector<Block *> &cluster() { return blocks; }

uint64_t random_word() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

void yield() {
  make_ready(self());
  to_scheduler(self());
}

void pause() {
  if (random_word() % 4 == 0 || (slow_block == self().block && (schedule > A_WARP_SELDOM || self().index / WARP_LANES == slow_warp))) yield();
}

void park(const void *key, uint32_t detail, std::string (*describe)(const Fiber &)) {
  Fiber &fiber = self();
  fiber.key = key, fiber.detail = detail, fiber.describe = describe;
  parked[key].push_back(&fiber);
  to_scheduler(fiber);
}

void wake(const void *key) {
  const auto found = parked.find(key);
  if (found == parked.end()) return;
  for (Fiber *fiber : found->second) {
    fiber->describe = nullptr;
    make_ready(*fiber);
  }
  parked.erase(found);
}

void later(Event event) { events.push_back(std::move(event)); }

void fail(const std::string &text) {
  if (failure.empty()) failure = text;
}

void stop(const std::string &text) {
  fail(text);
  to_scheduler(self());
  abort();
}

uint32_t lane() { return running->index % WARP_LANES; }
uint64_t *words() { return running->block->warps[running->index / WARP_LANES].words; }
bool &all_of_block() { return running->block->all; }

void meet_warp(uint32_t mask) {
  Fiber &fiber = self();
  const uint32_t index = fiber.index / WARP_LANES;
  WarpState &warp = fiber.block->warps[index];
  warp.arrived |= 1u << lane();
  mask &= warp.there;
  if ((warp.arrived & mask) == mask) return release_warp(*fiber.block, index, mask);
  fiber.meets = mask;
  to_scheduler(fiber);
}

void meet_block() {
  Fiber &fiber = self();
  Block &block = *fiber.block;
  if (block.at_block.size() + 1 == block.alive) return release_block(block);
  block.at_block.push_back(fiber.index);
  to_scheduler(fiber);
}

bool run(const Launched &launch) {
  launched = launch;
  gridDim = launch.grid;
  blockDim = launch.block;
  thread_count = launch.block.x * launch.block.y * launch.block.z;
  if (thread_count > MOST_THREADS || launch.cluster > MOST_BLOCKS || launch.grid.x % launch.cluster) abort();
  seed = next_seed();
  random_state = seed * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < 8; i++) random_word();
  failure.clear();
  Extent at;
  for (at.z = 0; at.z < launch.grid.z; at.z++)
    for (at.y = 0; at.y < launch.grid.y; at.y++)
      for (at.x = 0; at.x < launch.grid.x; at.x += launch.cluster) {
        run_cluster(at);
        if (failure.empty()) continue;
        report({launched.name, failure, describe_schedule(), seed, thread_count, blocks});
        return false;
      }
  return true;
}
}  // namespace simt
