/* claim.h: one queue of requests, and replicas of a model that take from it. A replica claims the next few, at most as many
 * as it has free slots, so a slow one never sits on what others could run, and each runs what it has in the queue's order.
 *
 * What lies where. Entries, biases and prompts are in one block of host memory that all replicas and the host see. The count of claims,
 * which all replicas compare and swap, lies where such an operation is dependable for all of them: in that block where replicas are
 * threads of the host, in the memory of the first GPU where they are GPUs that reach it (over NVLink; on host memory atomics of a GPU are
 * not dependable). The host never reads GPU memory, so each replica also stores into the block, in words of its own: where its newest
 * claim ends (told), the oldest request that it has claimed and still reads (held), and, on a device, which request of the queue each of
 * its own is (tg_claimed), since events, cancels and trace name those by its own numbers.
 *
 * What is safe. The host writes over requests that nobody reads. A replica publishes which is the oldest that it holds *before* it tries
 * to claim it. Its swap releases that and acquires what those before it have released, and only after it comes `told`. So a host that
 * sees any replica's `told` sees what everyone whose claim lies before its end has published; it looks at `told` *before* it looks at who
 * holds what. Every store to `held` is a release, that of a new claim too: it hides the one before it, with which what was read was given
 * back. `told` may lag: then less is free than could be. What it publishes may be older than what it gets, and older than what the host
 * has reused already, since it goes by the count as it last knew it. That is why the tail that the host goes by never moves back.
 *
 * What it costs. A dispatcher looks at `pushed` together with the host's other words, in one trip over the bus. It swaps only
 * where it has room and more has been pushed than it knows to be claimed: a swap that fails shows it the others' claims.
 * While all slots are in use, or nothing new is in the queue, a turn is what it is without one.
 *
 * A device's claim is an input of its turn: `inputs.request_head` counts it, and the requests themselves are in the recording as the host
 * reads them (tg_claimed comes out before events and trace of the turn do). A replay pushes them over the rings, so it needs no queue. */
#pragma once

#include "sched/layout.h"

#ifndef __CUDACC__ /* the host's side */

/* Sets what is set once, but for the capacities. */
TG_FN void tg_place_queue(tg_queue *queue) {
  tg_cursor cursor;
  cursor.block = 0;
  cursor.end = (sizeof(tg_queue) + TG_ALIGN - 1u) / TG_ALIGN * TG_ALIGN;
  queue->requests = tg_place(&cursor, queue->capacity, sizeof(tg_request));
  queue->biases = tg_place(&cursor, (uint64_t)queue->capacity * queue->bias_capacity, sizeof(tg_bias));
  queue->tokens = tg_place(&cursor, queue->token_capacity, sizeof(int32_t));
  queue->claims = tg_place(&cursor, (uint64_t)queue->replicas * queue->claim_capacity, sizeof(tg_claimed));
  queue->bytes = queue->capacity ? cursor.end : sizeof(tg_queue);
}

TG_FN void tg_shape_queue(tg_queue *queue, const tg_queue *shape) {
  queue->replicas = shape->replicas;
  queue->capacity = shape->capacity;
  queue->token_capacity = shape->token_capacity;
  queue->bias_capacity = shape->bias_capacity;
  queue->claim_capacity = shape->claim_capacity;
  tg_place_queue(queue);
}

TG_API uint64_t tg_queue_bytes(const tg_queue *shape) {
  tg_queue copy;
  tg_shape_queue(&copy, shape);
  return copy.bytes;
}

TG_API void tg_queue_init(tg_queue *queue, const tg_queue *shape) {
  tg_clear(queue, 0u, sizeof(tg_queue));
  tg_shape_queue(queue, shape);
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
  if (TG_MUT(150, 0, 1)) {
    uint64_t told = tg_queue_told(queue);
    if (told < tail) tail = told;
  }
  return tail > before ? tail : before;
}

TG_API void tg_claimer_init(tg_claimer *claimer, tg_queue *queue, uint64_t *claimed, uint32_t replica) {
  tg_clear(claimer, 0u, sizeof(tg_claimer));
  claimer->queue = queue;
  claimer->claimed = claimed;
  claimer->held = TG_NO_STEP;
  claimer->replica = replica;
  claimer->replicas = queue->replicas;
  claimer->capacity = queue->capacity;
  claimer->token_capacity = queue->token_capacity;
  claimer->claim_capacity = queue->claim_capacity;
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
  if (TG_MUT(154, 1, 0)) {
    tg_release_later(held, oldest);
  } else {
    tg_store(held, oldest);
  }
}

TG_API uint32_t tg_claim(tg_claimer *claimer, uint32_t most, uint64_t *first) {
  uint64_t *held = &claimer->queue->held[claimer->replica].value;      /* nobody else writes these */
  uint64_t *told = &claimer->queue->told[claimer->replica].value;
  const uint32_t held_none = claimer->held == TG_NO_STEP;
  uint64_t from = claimer->known;
  for (;;) {
    uint64_t left = claimer->pushed > from ? claimer->pushed - from : 0u;
    uint64_t count = left < most ? left : most;
    if (count == 0u) {
      claimer->known = from;
      if (held_none && claimer->held != TG_NO_STEP) {
        claimer->held = TG_NO_STEP;
        tg_release(held, TG_NO_STEP);
      }
      return 0u;
    }
    if (claimer->held == TG_NO_STEP) {
      claimer->held = from;
      if (TG_MUT(156, 0, 1)) tg_store(held, from);
      if (TG_MUT(152, 1, 0) && TG_MUT(156, 1, 0)) tg_release(held, from);
    }
    uint64_t found = TG_MUT(153, tg_swap(claimer->claimed, from, from + count), tg_acquire(claimer->claimed));
    if (found == from) {
      if (TG_MUT(153, 0, 1)) tg_release(claimer->claimed, from + count);
      if (TG_MUT(152, 0, 1)) tg_release(held, claimer->held);
      claimer->known = from + count;
      if (TG_MUT(155, 1, 0)) {
        tg_release_later(told, from + count);
      } else {
        tg_store(told, from + count);
      }
      *first = from;
      return (uint32_t)count;
    }
    from = found;
  }
}
