/* links.cu: a word that two GPUs send to each other and back: how long a store takes until the other GPU sees it
 * (src/backend/cuda/device/links.rs). Two launches, one on each GPU, both of 1 block and 1 thread. Each waits for a word of its own and
 * stores into the other's, by a release and an acquire at system scope. Bound: the link's latency, twice a round. */
#include "sched/instructions.cuh"
#include "sched/platform.h"

constexpr uint64_t FIRST_ROUNDS = 16;  /* not timed: the other GPU's kernel may begin later than this one */
constexpr uint32_t LOOKS = 256;        /* at the word between two looks at the clock */

/* found[2]: timed rounds that are through, and what they took in ns. `mine`, `theirs`: 0 before. `first`: this one begins each
 * round. Without an answer it ends after `limit_ns`. */
extern "C" __global__ void __launch_bounds__(1)
    tg_bounce(const uint64_t *mine, uint64_t *theirs, uint32_t first, uint32_t rounds, uint64_t limit_ns, uint64_t *found) {
  const uint64_t start = now_ns();
  uint64_t began = start, round = 1;
  for (; round <= FIRST_ROUNDS + rounds; round++) {
    if (round == FIRST_ROUNDS + 1) began = now_ns();
    if (first) tg_release(theirs, round);
    bool there, late = false;
    do {
      there = false;
      for (uint32_t look = 0; look < LOOKS && !there; look++) there = tg_acquire(mine) == round;
      if (!there) late = now_ns() - start > limit_ns;
    } while (!there && !late);
    if (!there) break;
    if (!first) tg_release(theirs, round);
  }
  found[0] = round > FIRST_ROUNDS ? round - 1 - FIRST_ROUNDS : 0;
  found[1] = now_ns() - began;
}
