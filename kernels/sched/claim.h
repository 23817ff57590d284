/* claim.h: one queue of requests, and replicas of a model that take from it. A replica claims the next few, at most as many
 * as it has free slots, so a slow one never sits on what others could run. But requests that the host pushed together since they begin
 * alike stay together, as far as that leaves the others their share: then one replica computes their prefix, not all.
 *
 * Entries, biases and prompts are in one block of host memory. The count of claims, which replicas compare and swap, lies in that
 * block for threads of the host, and in the first GPU's memory for GPUs, whose atomics on host memory are not dependable. The host
 * never reads that, so each replica stores words of its own into the block: where its newest claim ends (told), the oldest request
 * that it has claimed and still reads (held), and, on a device, which request of the queue each of its own is (tg_claimed).
 *
 * The host writes over requests that nobody reads. A replica publishes `held` before it swaps; the swap releases that and acquires what
 * earlier claims have released; `told` comes after it. So a host that looks at `told` first, and then at `held`, sees what everyone whose
 * claim ends there holds. Every store to `held` is a release, since it hides the one that gave back what was read. A replica goes by the
 * count that it last knew, so `held` may be older than what the host has reused: that is why the host's tail never moves back.
 *
 * A device's claim is an input of its turn: `inputs.request_head` counts it, and a replay pushes the requests over the rings. */
#pragma once

#include "sched/layout.h"

#ifndef __CUDACC__ /* the host's side */

/* Places every table of `queue`, whose capacities are set. */
TG_FN void tg_place_queue(tg_queue *queue) {
  tg_cursor cursor = {0, sizeof(tg_queue), 0u};
  tg_place(&cursor, 0u, 0u);
  queue->runs = tg_place(&cursor, queue->run_capacity, sizeof(uint64_t));
  queue->requests = tg_place(&cursor, queue->capacity, sizeof(tg_request));
  queue->biases = tg_place(&cursor, (uint64_t)queue->capacity * queue->bias_capacity, sizeof(tg_bias));
  queue->tokens = tg_place(&cursor, queue->token_capacity, sizeof(int32_t));
  queue->claims = tg_place(&cursor, (uint64_t)queue->replicas * queue->claim_capacity, sizeof(tg_claimed));
  queue->bytes = cursor.end;
}

TG_API uint64_t tg_queue_bytes(const tg_queue *shape) {
  tg_queue copy = *shape;
  tg_place_queue(&copy);
  return copy.bytes;
}

TG_API void tg_queue_init(tg_queue *queue, const tg_queue *shape) {
  *queue = *shape;
  tg_place_queue(queue);
  for (uint32_t i = 0u; i < TG_MAX_REPLICAS; i++) queue->held[i].value = TG_NO_STEP;
}

/* Claims that are over, by those that were published. */
TG_FN uint64_t tg_queue_told(const tg_queue *queue) {
  uint64_t told = 0u;
  for (uint32_t i = 0u; i < queue->replicas; i++) {
    uint64_t one = tg_acquire(&queue->told[i].value);
    if (one > told) told = one;
  }
  return told;
}

TG_API uint64_t tg_queue_tail(const tg_queue *queue, uint64_t before) {
  uint64_t tail = TG_MUT(150, tg_queue_told(queue), TG_NO_STEP);
  for (uint32_t i = 0u; i < queue->replicas; i++) {
    uint64_t held = tg_acquire(&queue->held[i].value);
    if (held < tail) tail = held;
  }
  uint64_t late = TG_MUT(150, tail, tg_queue_told(queue));
  if (late < tail) tail = late;
  return tail > before ? tail : before;
}

TG_API void tg_claimer_init(tg_claimer *claimer, tg_queue *queue, uint64_t *claimed, uint32_t replica) {
  tg_clear(claimer, 0u, sizeof(tg_claimer));
  claimer->queue = queue;
  claimer->claimed = claimed;
  claimer->runs = (const uint64_t *)((const char *)queue + queue->runs);
  claimer->held = TG_NO_STEP;
  claimer->replica = replica;
  claimer->replicas = queue->replicas;
  claimer->capacity = queue->capacity;
  claimer->token_capacity = queue->token_capacity;
  claimer->claim_capacity = queue->claim_capacity;
  claimer->run_capacity = queue->run_capacity;
}

#endif

TG_API void tg_claim_look(tg_claimer *claimer) {
  const uint64_t *pushed = &claimer->queue->pushed.value;
  claimer->pushed = TG_MUT(151, tg_acquire(pushed), tg_load(pushed));
}

TG_API void tg_claim_release(tg_claimer *claimer, uint64_t oldest) {
  uint64_t *held = &claimer->queue->held[claimer->replica].value;
  if (oldest == claimer->held) return;
  claimer->held = oldest;
  TG_MUT(154, tg_release_later(held, oldest), tg_store(held, oldest));
}

/* How many requests a claim of `count` from `from` on has with those that begin as its last one. Should others have claimed these, what is
 * read here may be of a newer request: then the claim fails. */
TG_FN uint64_t tg_claim_with_run(const tg_claimer *claimer, uint64_t from, uint64_t count, uint32_t run_most) {
  uint64_t left = claimer->pushed - from;
  if (count == left || run_most <= count) return count;
  uint64_t all = count + tg_load(&claimer->runs[(from + count - 1u) & (claimer->run_capacity - 1u)]);
  if (all > TG_MUT(157, left, TG_NO_STEP)) all = left;
  return all < TG_MUT(158, run_most, TG_NO_STEP) ? all : run_most;
}

TG_API uint32_t tg_claim(tg_claimer *claimer, uint32_t most, uint32_t run_most, uint64_t *first) {
  uint64_t *held = &claimer->queue->held[claimer->replica].value;      /* nobody else writes these */
  uint64_t *told = &claimer->queue->told[claimer->replica].value;
  const uint32_t held_none = claimer->held == TG_NO_STEP;
  uint64_t from = claimer->known;
  for (;;) {
    uint64_t left = claimer->pushed > from ? claimer->pushed - from : 0u;
    uint64_t count = left < most ? left : most;
    if (count == 0u) {
      claimer->known = from;
      if (held_none) tg_claim_release(claimer, TG_NO_STEP);
      return 0u;
    }
    count = tg_claim_with_run(claimer, from, count, run_most);
    if (claimer->held == TG_NO_STEP) {
      claimer->held = from;
      if (TG_MUT(152, 1, 0)) TG_MUT(156, tg_release(held, from), tg_store(held, from));
    }
    uint64_t found = TG_MUT(153, tg_swap(claimer->claimed, from, from + count), tg_acquire(claimer->claimed));
    if (found == from) {
      if (TG_MUT(153, 0, 1)) tg_release(claimer->claimed, from + count);
      if (TG_MUT(152, 0, 1)) tg_release(held, claimer->held);
      claimer->known = from + count;
      TG_MUT(155, tg_release_later(told, from + count), tg_store(told, from + count));
      *first = from;
      return (uint32_t)count;
    }
    from = found;
  }
}
