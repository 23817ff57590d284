/* simt.cpp: fibers. See simt.h. */
#include "simt.h"

#include <sys/mman.h>
#include <vector>

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
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace simt {
namespace {
constexpr size_t STACK_BYTES = 256 << 10;
constexpr uint32_t MOST_THREADS = 1024, WARP = 32;

struct Fiber {
  void *at;
  Extent thread;
  uint32_t meets; /* lanes of its warp that it waits for; 0: it does not wait for a warp */
};
struct Warp {
  uint32_t there, arrived; /* lanes that have not ended; of them, those at a meeting */
  uint64_t words[WARP];
};

Fiber fibers[MOST_THREADS];
Warp warps[MOST_THREADS / WARP];
std::vector<uint32_t> ready; /* fibers that may run */
std::vector<uint32_t> at_block;
uint32_t running, threads, alive;
void *scheduler;
void (*entry)(void *);
void *entry_argument;
uint64_t random_state = 88172645463325252u;

uint64_t random_word() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

void release_warp(uint32_t index, uint32_t mask) {
  Warp &warp = warps[index];
  for (uint32_t lane = 0; lane < WARP; lane++) {
    Fiber &fiber = fibers[index * WARP + lane];
    if (!(warp.arrived & mask & 1u << lane) || !fiber.meets) continue;
    fiber.meets = 0;
    ready.push_back(index * WARP + lane);
  }
  warp.arrived &= ~mask;
}

void release_block() {
  ready.insert(ready.end(), at_block.begin(), at_block.end());
  at_block.clear();
}

/* A fiber that has ended keeps nobody waiting. */
void ended() {
  const uint32_t index = running / WARP;
  Warp &warp = warps[index];
  warp.there &= ~(1u << running % WARP);
  alive--;
  for (uint32_t lane = 0; lane < WARP; lane++) {
    const uint32_t mask = fibers[index * WARP + lane].meets & warp.there;
    if (mask && (warp.arrived & mask) == mask) release_warp(index, mask);
  }
  if (alive && at_block.size() == alive) release_block();
}

void begin() {
  entry(entry_argument);
  ended();
  void *nowhere;
  simt_switch(&nowhere, scheduler);
  abort();
}

void yield() {
  Fiber &fiber = fibers[running];
  simt_switch(&fiber.at, scheduler);
}

char *stacks() {
  static void *memory = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  return (char *)memory;
}

void run_block() {
  for (uint32_t i = 0; i < threads; i++) {
    void **top = (void **)(stacks() + (i + 1) * STACK_BYTES);
    top[-1] = nullptr;
    top[-2] = (void *)begin;
    fibers[i] = Fiber{top - 8, {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)}, 0};
    ready.push_back(i);
  }
  for (uint32_t warp = 0; warp * WARP < threads; warp++) {
    const uint32_t lanes = std::min(threads - warp * WARP, WARP);
    warps[warp] = Warp{lanes == WARP ? 0xffffffffu : (1u << lanes) - 1, 0, {}};
  }
  alive = threads;
  while (!ready.empty()) {
    const size_t next = random_word() % ready.size();
    running = ready[next];
    ready[next] = ready.back();
    ready.pop_back();
    threadIdx = fibers[running].thread;
    simt_switch(&scheduler, fibers[running].at);
  }
  if (alive) abort(); /* threads wait for others that never come */
}
}  // namespace

uint32_t lane() { return running % WARP; }
uint64_t *words() { return warps[running / WARP].words; }

void meet_warp(uint32_t mask) {
  Warp &warp = warps[running / WARP];
  warp.arrived |= 1u << lane();
  mask &= warp.there;
  if ((warp.arrived & mask) == mask) return release_warp(running / WARP, mask);
  fibers[running].meets = mask;
  yield();
}

void meet_block() {
  if (at_block.size() + 1 == alive) return release_block();
  at_block.push_back(running);
  yield();
}

void run(Extent grid, Extent block, void (*kernel)(void *), void *argument) {
  gridDim = grid;
  blockDim = block;
  threads = block.x * block.y * block.z;
  if (threads > MOST_THREADS) abort();
  entry = kernel;
  entry_argument = argument;
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block();
}
}  // namespace simt
