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
constexpr uint32_t FAR_STAYS = 8; /* times so many before those of a block of another cluster */
constexpr uint64_t MOST_IDLE_LOOKS = 4096;     /* where nobody else can go on */
constexpr uint64_t MOST_EAGER_LOOKS = 1 << 18; /* where somebody can */

/* Who is slow. */
enum Schedule { NOBODY, A_WARP_LAST, A_WARP_SELDOM, A_BLOCK_LAST, A_BLOCK_SELDOM, EVENTS_LAST, EVENTS_FIRST, SCHEDULES };

/* Places for blocks, a host thread each, of which one has the baton: `__shared__` is thread_local, so each block has its own. */
std::unique_ptr<Block> block_at[MOST_BLOCKS];
sem_t batons[MOST_BLOCKS], helped;
std::vector<Block *> blocks; /* of all places that these launches have */
std::vector<Block *> clusters[MOST_BLOCKS]; /* by the first place of each */
uint64_t clusters_begun;
std::vector<Grid> grids;
size_t first_grid; /* of those that have not ended */
bool has_room, has_fresh, drawn, are_beside;
std::vector<Event> events;
std::map<const void *, std::vector<Fiber *>> parked;
Fiber *running;
Schedule schedule;
Block *slow_block; /* the slow one, or that of the slow warp */
uint32_t slow_warp;
bool over, told;
/* How often a word was stored that others look at, and they have looked without that; whether they look again at once. */
uint64_t stores, idle_looks;
bool looks_on;
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
  Grid &grid = *block.grid;
  grid.running--, grid.holding -= !block.lets_go;
  has_room = true;
  for (; first_grid < grids.size() && grids[first_grid].has_begun && !grids[first_grid].running; first_grid++) wake(&first_grid);
  for (const Event &event : events)
    if (event.uses == &block) return fail("the block has ended while a copy or an arrival is on its way from or to its shared memory");
}

void begin() {
  const Launched &launched = *running->block->grid->launched;
  launched.kernel(launched.argument);
  ended(*running);
  void *nowhere;
  simt_switch(&nowhere, running->block->scheduler);
  abort();
}

/* What goes on next: nothing, an event or a fiber of `block`. */
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
  const bool stays = mine->alive && random_word() % STAYS;
  if (stays && !many && count(*mine)) all = count(*mine);
  else for (const Block *block : blocks) all += count(*block);
  if (!all && !many) return {};
  if (many && (!all || schedule == EVENTS_FIRST || random_word() % (all + many) < many)) return {nullptr, nullptr, true};
  Block *from = mine;
  if (!count(*mine) || !stays) {
    size_t at = random_word() % all;
    for (Block *block : blocks) {
      if (at < count(*block)) {
        from = block;
        break;
      }
      at -= count(*block);
    }
    if (from->cluster != mine->cluster && count(*mine) && random_word() % FAR_STAYS) from = mine;
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
  const Extent of = block.grid->launched->block;
  block.threads = block.alive = of.x * of.y * of.z;
  if (block.threads > MOST_THREADS) abort();
  block.lets_go = false, block.is_fresh = has_fresh = true;
  block.ready[0].clear(), block.ready[1].clear(), block.at_block.clear();
  for (uint32_t i = 0; i < block.threads; i++) {
    void **top = (void **)(block.stacks + (i + 1) * STACK_BYTES);
    top[-1] = nullptr;
    top[-2] = (void *)begin;
    Fiber &fiber = block.fibers[i];
    fiber.at = top - 8, fiber.block = &block, fiber.index = i;
    fiber.thread = {i % of.x, i / of.x % of.y, i / (of.x * of.y)};
    fiber.meets = 0, fiber.ended = false, fiber.describe = nullptr, fiber.looks = {};
    if (fiber.used) fiber.work = {};
    fiber.used = false;
    make_ready(fiber);
  }
  for (uint32_t warp = 0; warp * WARP_LANES < block.threads; warp++) {
    const uint32_t lanes = std::min(block.threads - warp * WARP_LANES, WARP_LANES);
    block.warps[warp].there = lanes == WARP_LANES ? 0xffffffffu : (1u << lanes) - 1;
    block.warps[warp].arrived = 0;
  }
  begin_block(block);
}

void find_shared(Block &block) {
  block.is_fresh = false;
  block.shared = block.grid->launched->shared();
  memset(block.shared, 0xff, block.grid->launched->shared_bytes);
}

/* Who is slow, from now on. */
void draw_schedule() {
  std::vector<Block *> all;
  std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(all), [](const Block *block) { return block->alive > 0; });
  schedule = (Schedule)(random_word() % SCHEDULES);
  slow_block = schedule != NOBODY && schedule <= A_BLOCK_SELDOM ? all[random_word() % all.size()] : nullptr;
  if (slow_block) slow_warp = random_word() % ((slow_block->threads + WARP_LANES - 1) / WARP_LANES);
  for (Block *block : all) {
    std::vector<uint32_t> ready = std::move(block->ready[0]);
    ready.insert(ready.end(), block->ready[1].begin(), block->ready[1].end());
    block->ready[0].clear(), block->ready[1].clear();
    for (uint32_t index : ready) make_ready(block->fibers[index]);
  }
  looks_on = random_word() % 2;
}

/* A place is, until all of its block's cluster have ended. */
bool is_taken(const Block *place) {
  return std::any_of(blocks.begin(), blocks.end(), [&](const Block *block) { return block->alive && block->cluster == place->cluster; });
}

/* Whether the grid's next cluster has found places. */
bool begin_cluster(Grid &grid) {
  const Launched &of = *grid.launched;
  for (size_t first = 0; first + of.cluster <= blocks.size(); first += of.cluster) {
    const auto at = blocks.begin() + first;
    if (std::any_of(at, at + of.cluster, is_taken)) continue;
    clusters_begun++;
    clusters[first].assign(at, at + of.cluster);
    for (uint32_t rank = 0; rank < of.cluster; rank++) {
      Block &block = *clusters[first][rank];
      block.grid = &grid, block.rank = rank, block.first = first, block.cluster = clusters_begun;
      block.index = {grid.next.x + rank, grid.next.y, grid.next.z};
      prepare(block);
    }
    draw_schedule();
    grid.running += of.cluster, grid.holding += of.cluster;
    grid.next.x += of.cluster;
    if (grid.next.x == of.grid.x) grid.next.x = 0, grid.next.y++;
    if (grid.next.y == of.grid.y) grid.next.y = 0, grid.next.z++;
    grid.has_begun = grid.next.z == of.grid.z;
    return true;
  }
  return false;
}

/* Clusters begin in their order as places are free; those of a launch that may be early once all blocks before it have said so or
 * ended, of another one once they have ended. */
void begin_clusters() {
  has_room = false;
  for (size_t i = first_grid; i < grids.size(); i++) {
    if (i > first_grid && !(grids[i].launched->early && grids[i - 1].has_begun && !grids[i - 1].holding)) return;
    while (!grids[i].has_begun)
      if (!begin_cluster(grids[i])) return;
  }
}

/* Who looks at words has looked at all that were stored: whether they look once more. */
bool look_again() {
  if (!parked.count(&stores) || ++idle_looks > MOST_IDLE_LOOKS) return false;
  wake(&stores);
  return true;
}

/* With the baton, which is back when it returns: whether `running` is a fiber of this block that is to go on; else all is over. */
bool is_next(Block &mine) {
  for (;;) {
    over = over || !failure.empty();
    if (over) return false;
    if (mine.is_fresh) find_shared(mine);
    if (drawn) {
      drawn = false;
      return true;
    }
    if (has_room) begin_clusters();
    const auto fresh = has_fresh ? std::find_if(blocks.begin(), blocks.end(), [](const Block *block) { return block->is_fresh; }) : blocks.end();
    Block *next = fresh == blocks.end() ? nullptr : *fresh;
    has_fresh = next;
    if (!next) {
      const Choice choice = draw(&mine);
      if (choice.event) {
        run_event();
        continue;
      }
      if (!choice.block) {
        if (look_again()) continue;
        over = true;
        if (first_grid < grids.size()) fail("a hang: no thread can go on");
        return false;
      }
      running = choice.fiber;
      next = choice.block;
      drawn = true;
    }
    if (next == &mine) continue;
    pass(next->place);
    take(mine.place);
  }
}

void drive(Block &mine) {
  while (is_next(mine)) {
    running->describe = nullptr;
    threadIdx = running->thread;
    blockIdx = mine.index;
    blockDim = mine.grid->launched->block, gridDim = mine.grid->launched->grid;
    simt_switch(&mine.scheduler, running->at);
  }
  if (told) return;
  told = true;
  for (const Block *block : blocks)
    if (block != &mine) pass(block->place);
}

/* The host thread of a place but the first, whose is the launch's own. */
void help(uint32_t place) {
  for (;;) {
    take(place);
    drive(*block_at[place]);
    sem_post(&helped);
  }
}

/* On so many places. */
void run_on(uint32_t places) {
  blocks.clear();
  for (uint32_t place = 0; place < places; place++) {
    if (!block_at[place]) {
      block_at[place].reset(new Block());
      block_at[place]->place = place;
      sem_init(&batons[place], 0, 0);
      if (place == 0) sem_init(&helped, 0, 0);
      if (place > 0) std::thread(help, place).detach();
    }
    Block &block = *block_at[place];
    block.alive = 0, block.is_fresh = false;
    block.ready[0].clear(), block.ready[1].clear();
    blocks.push_back(&block);
  }
  events.clear(), parked.clear();
  first_grid = 0, stores = idle_looks = 0;
  over = told = drawn = false, has_room = true;
  drive(*blocks[0]);
  for (size_t i = 1; i < blocks.size(); i++)
    while (sem_wait(&helped)) {
    }
}

/* The seed of the next launch follows from TEST_SIMT_SEED as simt.h says. */
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
std::vector<Block *> &cluster() { return clusters[running->block->first]; }

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

void pause_beside() {
  if (are_beside) pause();
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

std::string describe_look(const Fiber &) { return "a word in global memory"; }

void look(const void *at) {
  Looks &mine = self().looks;
  if (looks_on && ++idle_looks > MOST_EAGER_LOOKS) looks_on = false, idle_looks = 0;
  const bool again = mine.stores == stores && std::find(std::begin(mine.at), std::end(mine.at), at) != std::end(mine.at);
  if (!again) pause();
  else if (looks_on) yield();
  else park(&stores, 0, describe_look);
  if (mine.stores != stores) mine = {stores};
  if (!again) mine.at[mine.next++ % std::size(mine.at)] = at;
}

void stored() {
  stores++, idle_looks = 0;
  wake(&stores);
  pause();
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

void let_next_start() {
  Block &block = *self().block;
  if (block.lets_go) return;
  block.lets_go = has_room = true;
  block.grid->holding--;
  pause();
}

void await_earlier() {
  pause();
  if (is_mutant(NO_KERNEL_WAIT)) return;
  while (&grids[first_grid] != self().block->grid) park(&first_grid, 0, [](const Fiber &) { return std::string("the kernels before"); });
}

void meet_block() {
  if (is_mutant(NO_BLOCK_BARRIER)) return pause();
  Fiber &fiber = self();
  Block &block = *fiber.block;
  if (block.at_block.size() + 1 == block.alive) return release_block(block);
  block.at_block.push_back(fiber.index);
  to_scheduler(fiber);
}

bool run(const std::vector<Launched> &launches) {
  grids.clear();
  uint32_t least = 1;
  are_beside = false; /* which takes longer: as drawn, and of launches that are never early, none */
  for (const Launched &launch : launches) {
    if (launch.cluster > MOST_BLOCKS || launch.grid.x % launch.cluster) abort();
    least = std::max(least, launch.cluster);
    are_beside = are_beside || launch.early;
    grids.push_back({&launch});
  }
  seed = next_seed();
  random_state = seed * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < 8; i++) random_word();
  failure.clear();
  are_beside = are_beside && random_word() % 2;
  run_on(!are_beside ? least : least + random_word() % (MOST_BLOCKS - least + 1));
  if (failure.empty()) return true;
  report({failure, describe_schedule(), seed, blocks});
  return false;
}
}  // namespace simt
