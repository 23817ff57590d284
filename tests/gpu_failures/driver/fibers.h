/* fibers.h: the threads of a cluster's blocks as fibers, and who of them goes on (simt.cpp). hopper.cpp builds barriers and copies on
 * it, products.cpp matrix instructions. Of all host threads only the one with the baton runs, so nothing here is locked. */
#ifndef TEST_FIBERS_H
#define TEST_FIBERS_H

#include "simt.h"

#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace simt {
constexpr uint32_t WARP_LANES = 32, MOST_THREADS = 1024, MOST_BLOCKS = 16;

struct Block;

/* What happens without a thread: `run` says whether it is over, or is to be drawn once more. */
struct Event {
  Block *uses; /* whose shared memory it reads or writes; null: none's */
  std::function<bool(Event &)> run;
};

/* What a thread has asked for that goes on without it. */
struct Work {
  /* Its copies of 16 bytes: of no group yet; whether each group is done. */
  std::vector<std::function<void()>> uncommitted;
  std::vector<bool> copied;
  /* Its bulk copies: of no group yet; of groups, that have still to read and to write. */
  std::vector<std::function<bool(Event &)>> bulk;
  uint32_t unread = 0, unwritten = 0;
  /* Matrix instructions that it has issued, and how many at the end of each of its groups. */
  uint64_t issued = 0;
  std::vector<uint64_t> committed;
};

struct Fiber {
  void *at;
  Extent thread;
  Block *block;
  uint32_t index; /* in its block */
  uint32_t meets; /* lanes of its warp that it waits for; 0: it does not wait for a warp */
  bool ended;
  /* What it waits for, where it does, as who reads of a hang is told. */
  const void *key;
  uint32_t detail;
  std::string (*describe)(const Fiber &);
  /* What it has asked for, where it has asked for anything. */
  bool used;
  Work work;
};

struct WarpState {
  uint32_t there, arrived; /* lanes that have not ended; of them, those at a meeting */
  uint64_t words[WARP_LANES];
  uint32_t operands[WARP_LANES][6];
};

struct Block {
  Extent index;
  uint32_t rank; /* in its cluster */
  Fiber fibers[MOST_THREADS];
  WarpState warps[MOST_THREADS / WARP_LANES];
  std::vector<uint32_t> ready[2]; /* fibers that may run; [1]: of the slow warp */
  std::vector<uint32_t> at_block;
  uint32_t alive;
  bool all; /* of __syncthreads_and */
  void *scheduler;
  char *stacks;
  char *shared; /* its dynamic shared memory */
};

Fiber &self(); /* the fiber that runs */
Work &work();  /* its own */
std::vector<Block *> &cluster();
uint64_t random_word();

/* Others may go on before this fiber does; always or (pause) often. */
void yield();
void pause();
/* This fiber waits until somebody calls wake(key), then looks again. `describe` tells what it waits for. */
void park(const void *key, uint32_t detail, std::string (*describe)(const Fiber &));
void wake(const void *key);
void later(Event event);
/* The launch fails with this text, at the next draw; stop(): of a fiber, which does not go on. */
void fail(const std::string &text);
[[noreturn]] void stop(const std::string &text);
struct Failure {
  const char *kernel;
  std::string why, schedule;
  uint64_t seed;
  uint32_t threads; /* of a block */
  const std::vector<Block *> &blocks;
};
/* To standard error, with all that waits. */
void report(const Failure &of);
std::string text(const char *form, ...);

constexpr uint32_t FIRST_SHARED = 1024; /* the address of a block's first dynamic byte: none is 0 */

/* TEST_SIMT_MUTANT=n: the n-th of these is not as it should be, and tests of kernels that need it fail. */
enum Mutant { NONE, NO_NAMED_BARRIER, SHORT_GROUP_WAIT, NO_COPY_WAIT, NO_BULK_WAIT, NO_CLUSTER_WAIT };
bool is_mutant(Mutant which);

/* Of products.cpp: called as a cluster begins. */
void begin_products();
/* Of hopper.cpp: called as a cluster begins, and when a thread has ended. */
void begin_cluster();
void thread_ended();
}  // namespace simt

#endif
