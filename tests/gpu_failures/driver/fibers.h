/* fibers.h: the threads of the blocks that run as fibers, and who of them goes on (simt.cpp). hopper.cpp builds barriers and copies on
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
struct Grid;

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

/* Words of global memory at which a thread has looked since the last store to such a word. */
struct Looks {
  uint64_t stores;
  const void *at[4];
  uint32_t next;
};

struct Fiber {
  void *at;
  Extent thread;
  Block *block;
  uint32_t index; /* in its block */
  uint32_t meets; /* lanes of its warp that it waits for; 0: it does not wait for a warp */
  bool ended;
  Looks looks;
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

struct Grid {
  const Launched *launched;
  Extent next;               /* of its blocks, to begin */
  bool has_begun;            /* all of it */
  uint32_t running, holding; /* blocks; of them, those that have not let the next launch begin */
};

struct Block {
  Grid *grid;
  Extent index;
  uint32_t place;       /* that of its host thread */
  uint32_t rank, first; /* in its cluster, and the place of that one's first */
  uint64_t cluster; /* the how many-th to begin */
  uint32_t threads;
  bool lets_go;  /* the next launch may begin */
  bool is_fresh; /* its host thread has still to find its shared memory */
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

/* Others may go on before this fiber does, as they may at a pause(). */
void yield();
/* This fiber waits until somebody calls wake(key), then looks again. `describe` tells what it waits for. */
void park(const void *key, uint32_t detail, std::string (*describe)(const Fiber &));
void wake(const void *key);
void later(Event event);
/* The launch fails with this text, at the next draw; stop(): of a fiber, which does not go on. */
void fail(const std::string &text);
[[noreturn]] void stop(const std::string &text);
struct Failure {
  std::string why, schedule;
  uint64_t seed;
  const std::vector<Block *> &blocks;
};
/* To standard error, with all that waits. */
void report(const Failure &of);
std::string text(const char *form, ...);

constexpr uint32_t FIRST_SHARED = 1024; /* the address of a block's first dynamic byte: none is 0 */

/* TEST_SIMT_MUTANT=n: the n-th of these is not as it should be, and tests of kernels that need it fail. Of words in global memory by
 * which blocks tell each other things, nobody waits for one, the last but one of those who count themselves takes itself for the last,
 * or a block finds none that others have stored. */
enum Mutant {
  NONE, NO_NAMED_BARRIER, SHORT_GROUP_WAIT, NO_COPY_WAIT, NO_BULK_WAIT, NO_CLUSTER_WAIT, NO_KERNEL_WAIT, NO_BLOCK_BARRIER, NO_WORD_WAIT,
  EARLY_COUNT, NO_LOOK_BEFORE_STORE
};
bool is_mutant(Mutant which);

/* products.cpp has this called as a block begins. */
void begin_products(const Block &block);
/* hopper.cpp has these called as a block begins, and when a thread has ended. */
void begin_block(const Block &block);
void thread_ended();
}  // namespace simt

#endif
