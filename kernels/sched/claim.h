/* claim.h: one queue of requests, and replicas of a model that take from it. A replica claims the next few, at most as many
 * as it has free slots, so a slow one never sits on what others could run, and each runs what it has in the queue's order.
 *
 * A claim is a compare-and-swap on the count of claimed requests. What a replica claims it then reads (entries, prompts),
 * and the host must not write over that. So a replica says which request is the oldest it holds *before* it tries to claim
 * it, and the host looks at the count of claims *before* it looks at who holds what: whoever sees the claim sees the hold. */
#ifndef TAILGRAPH_SCHED_CLAIM_H
#define TAILGRAPH_SCHED_CLAIM_H

#include "sched/tables.h"

#ifndef __CUDACC__ /* the host's side */

TG_API void tg_queue_init(tg_queue *queue, uint32_t replicas) {
  queue->replicas = replicas;
  queue->pushed.value = 0u;
  queue->claimed.value = 0u;
  for (uint32_t i = 0u; i < TG_MAX_REPLICAS; i++) queue->held[i].value = TG_NO_STEP;
}

TG_API uint64_t tg_queue_tail(const tg_queue *queue) {
  uint64_t tail = TG_MUT(150, tg_acquire(&queue->claimed.value), TG_NO_STEP);
  for (uint32_t i = 0u; i < queue->replicas; i++) {
    uint64_t held = tg_acquire(&queue->held[i].value);
    if (held < tail) tail = held;
  }
  if (TG_MUT(150, 1, 0)) return tail;
  uint64_t claimed = tg_acquire(&queue->claimed.value);
  return claimed < tail ? claimed : tail;
}

#endif

TG_API void tg_claim_release(tg_queue *queue, uint32_t replica, uint64_t oldest) {
  tg_release(&queue->held[replica].value, oldest);
}

TG_API uint32_t tg_claim(tg_queue *queue, uint32_t replica, uint32_t most, uint64_t *first) {
  uint64_t *held = &queue->held[replica].value; /* nobody else writes it */
  const uint32_t holds = tg_load(held) != TG_NO_STEP;
  uint32_t said = 0u;
  uint64_t from = tg_acquire(&queue->claimed.value);
  for (;;) {
    uint64_t pushed = TG_MUT(151, tg_acquire(&queue->pushed.value), tg_load(&queue->pushed.value));
    uint64_t count = pushed - from < most ? pushed - from : most;
    if (count == 0u) {
      if (said) tg_release(held, TG_NO_STEP);
      return 0u;
    }
    if (!holds && TG_MUT(152, 1, 0)) tg_release(held, from);
    said = !holds;
    uint64_t found = TG_MUT(153, tg_swap(&queue->claimed.value, from, from + count), from);
    if (TG_MUT(153, 0, 1)) tg_release(&queue->claimed.value, from + count);
    if (found == from) {
      if (!holds && TG_MUT(152, 0, 1)) tg_release(held, from);
      *first = from;
      return (uint32_t)count;
    }
    from = found;
  }
}

#endif
