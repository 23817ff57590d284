/* host.h: the host's side of a run: it pushes requests at random, cancels some, reads events and holds them to what steps sampled. */
#ifndef TEST_HOST_H
#define TEST_HOST_H

#include "abi.h"
#include "gpu.h"

#include <cstdlib>
#include <cstring>

struct Request {
  tg_request request;
  bool cancelled = false, ended = false;
  uint32_t told = 0;            /* tokens */
  std::vector<int32_t> sampled; /* by a step, each at its index */
};

constexpr int32_t TOKENS = 40; /* the vocabulary */

template <class T>
T *at(void *block, uint64_t offset) { return (T *)((char *)block + offset); }

inline void *block_of(size_t bytes) {
  void *block = aligned_alloc(128, (bytes + 127) / 128 * 128);
  memset(block, 0, bytes);
  return block;
}

struct Host {
  tg_config config{};
  tg_rings *rings;
  std::vector<Request> requests;
  tg_queue *queue = nullptr; /* where the GPU claims what it runs: it is the only replica, so its numbers of requests are the queue's */
  uint64_t claimed = 0;      /* the word that replicas swap */
  uint32_t ended = 0, all;
  uint64_t tokens = 0;

  /* The host has `stages` stages and as many steps in flight. Most ends of a sequence change the bucket. */
  Host(uint32_t requests_, uint32_t stages) : all(requests_) {
    static const uint32_t SLOTS[] = {1, 3, 4, 4, 8, 40};
    tg_config &c = config;
    c.slots = SLOTS[gpu::below(6)];
    c.page_tokens = 4, c.max_context = 48, c.grow_tokens = 4, c.chunk_align = 4, c.chunk_tokens = 8;
    c.pages = gpu::one_in(2) ? 12 * c.slots : 12 + 3 * c.slots;
    c.step_tokens = c.slots + 16;
    c.stages = stages, c.steps_in_flight = stages, c.mailbox_depth = 1;
    c.request_capacity = 16, c.token_capacity = 256, c.event_capacity = gpu::one_in(2) ? 128 : 16, c.sampled_capacity = 16;
    for (uint32_t kind = 0; kind < TG_KINDS; kind++) {
      const uint32_t most = kind == TG_KIND_DECODE ? c.slots : c.step_tokens;
      for (uint32_t rows = 1;; rows = rows < 4 ? rows + 1 : 2 * rows) {
        c.bucket_rows[kind][c.bucket_count[kind]++] = rows < most ? rows : most;
        if (rows >= most) break;
      }
    }
    tg_rings shape{};
    shape.request_capacity = c.request_capacity, shape.token_capacity = c.token_capacity, shape.control_capacity = 16;
    shape.event_capacity = c.event_capacity, shape.sampled_capacity = c.sampled_capacity, shape.trace_capacity = 8;
    rings = (tg_rings *)block_of(tg_rings_bytes(&shape));
    tg_rings_init(rings, &shape);
  }

  tg_state *new_state() const {
    tg_state *state = (tg_state *)block_of(tg_state_bytes(&config));
    if (tg_state_init(state, &config) != TG_ERROR_NONE) gpu::fail("the configuration is none");
    return state;
  }

  void claims(tg_state *state) {
    tg_queue shape{};
    shape.replicas = 1, shape.capacity = config.request_capacity, shape.token_capacity = config.token_capacity;
    shape.claim_capacity = 16;
    queue = (tg_queue *)block_of(tg_queue_bytes(&shape));
    tg_queue_init(queue, &shape);
    tg_claimer &c = state->claimer;
    tg_claimer_init(&c, queue, &claimed, 0);
    c.requests = queued<tg_request>(queue->requests), c.tokens = queued<int32_t>(queue->tokens);
    c.claims = queued<tg_claimed>(queue->claims);
    c.numbers = (uint64_t *)calloc(config.request_capacity + config.slots, sizeof(uint64_t));
    c.seen = (uint64_t *)calloc(queue->capacity, sizeof(uint64_t));
  }

  template <class T>
  T *table(uint64_t offset) const { return at<T>(rings, offset); }
  template <class T>
  T *queued(uint64_t offset) const { return at<T>(queue, offset); }

  /* In some runs requests come in bursts, and nothing new comes while one of them runs. */
  bool comes() {
    if (!bursts || queue) return gpu::one_in(20);
    if (burst == 0 && ended == requests.size()) burst = 1 + gpu::below(config.slots);
    if (burst == 0) return false;
    burst--;
    return true;
  }

  void push() {
    const uint64_t number = requests.size();
    if (queue) tail = tg_queue_tail(queue, tail);
    const uint64_t request_tail = queue ? tail : rings->request_tail.value;
    const uint64_t token_tail = !queue ? rings->token_tail.value : tail < number ? requests[tail].request.token_start : pushed_tokens;
    if (number == all || number - request_tail >= config.request_capacity) return;
    Request one;
    tg_request &r = one.request;
    memset(&r, 0, sizeof r);
    r.prompt_tokens = 1 + gpu::below(12), r.token_start = pushed_tokens;
    r.max_new_tokens = 1 + gpu::below(30);
    if (gpu::one_in(4)) r.flags = TG_REQUEST_UNLIMITED, r.max_new_tokens = config.max_context - r.prompt_tokens;
    r.timeout_ns = gpu::one_in(8) ? gpu::below(4000000) : TG_NO_TIMEOUT;
    r.stop_count = gpu::one_in(3) ? 0 : gpu::below(TG_MAX_STOP_IDS + 1);
    for (uint32_t i = 0; i < r.stop_count; i++) r.stop_ids[i] = gpu::below(TOKENS);
    r.sampling.logprobs = gpu::one_in(8) ? 0 : TG_LOGPROBS_NONE;
    if (pushed_tokens + r.prompt_tokens - token_tail > config.token_capacity) return;
    for (uint32_t i = 0; i < r.prompt_tokens; i++)
      (queue ? queued<int32_t>(queue->tokens) : table<int32_t>(rings->tokens))[pushed_tokens++ % config.token_capacity] = gpu::below(TOKENS);
    (queue ? queued<tg_request>(queue->requests) : table<tg_request>(rings->requests))[number % config.request_capacity] = r;
    requests.push_back(one);
    (queue ? queue->pushed : rings->request_head).value = number + 1;
    if (requests.size() == all) rings->flags.value = TG_INPUT_DRAIN;
  }

  void cancel() {
    const uint64_t at = rings->control_head.value, known = queue ? queue->claims_head[0].value : requests.size();
    if (known == 0 || at - rings->control_tail.value >= rings->control_capacity) return;
    const uint64_t number = known - 1 - gpu::below(known < 8 ? known : 8);
    table<tg_control>(rings->controls)[at % rings->control_capacity].request = number;
    requests[number].cancelled = true;
    rings->control_head.value = at + 1;
  }

  bool stops(const Request &one, int32_t token) const {
    for (uint32_t i = 0; i < one.request.stop_count; i++)
      if (one.request.stop_ids[i] == token) return true;
    return false;
  }

  void read(const tg_event &event) {
    if (event.request >= requests.size()) gpu::fail("an event of request %lu, which is none", event.request);
    Request &one = requests[event.request];
    if (one.ended) gpu::fail("an event of request %lu, which has ended", event.request);
    const bool stopped = one.told && stops(one, one.sampled[one.told - 1]);
    if (event.type == TG_EVENT_TOKEN) {
      if (event.index != one.told || one.told >= one.sampled.size() || one.sampled[one.told] != event.token)
        gpu::fail("request %lu got token %d as its number %u, expected number %u of %zu: %d", event.request, event.token, event.index,
                  one.told, one.sampled.size(), one.told < one.sampled.size() ? one.sampled[one.told] : -1);
      if (stopped || one.told == one.request.max_new_tokens) gpu::fail("request %lu went on after its end", event.request);
      one.told++, tokens++;
      return;
    }
    const bool right = event.detail == TG_END_STOP        ? stopped
                       : event.detail == TG_END_LENGTH    ? one.told == one.request.max_new_tokens
                       : event.detail == TG_END_CANCELLED ? one.cancelled
                                                          : event.detail == TG_END_TIMEOUT && one.request.timeout_ns != TG_NO_TIMEOUT;
    if (!right || event.index != one.told) gpu::fail("request %lu ended as %u after %u tokens", event.request, event.detail, one.told);
    one.ended = true, ended++;
  }

  /* Called between any two accesses of the GPU. */
  void turn() {
    if ((uint32_t)rings->action.value == TG_ACTION_ERROR) gpu::fail("error %lu", rings->action.value >> 32);
    if (comes()) push();
    if (queue) queue->claims_tail[0].value = queue->claims_head[0].value;
    if (gpu::one_in(1000)) cancel();
    if (gpu::one_in(4)) rings->trace_tail.value = rings->trace_head.value;
    if (!gpu::one_in(8)) return;
    uint64_t &tail = rings->event_tail.value;
    if (tail != rings->event_head.value) gpu::progress();
    for (; tail != rings->event_head.value; tail++) read(table<tg_event>(rings->events)[tail % config.event_capacity]);
  }

  void end() {
    turn_all();
    if (ended != all) gpu::fail("%u of %u requests have ended, and nothing runs", ended, all);
  }

  /* A step's row samples a token of its sequence, which is returned. */
  int32_t sample(const tg_row &row, const tg_slot &slot) {
    Request &one = requests.at(slot.request);
    const int64_t index = (int64_t)row.position + 1 - slot.prompt_tokens;
    if (index < 0 || index > (int64_t)one.sampled.size()) gpu::fail("request %lu samples its token %ld", slot.request, index);
    const int32_t came = row.token == -1 ? slot.last_token : row.token;
    if (index > 0 && came >= 0 && came != one.sampled[index - 1])
      gpu::fail("request %lu goes on after token %d, expected %d", slot.request, came, one.sampled[index - 1]);
    const int32_t token = gpu::below(TOKENS);
    one.sampled.resize(index + 1);
    return one.sampled[index] = token;
  }

  /* All sampled rows of a step. */
  void sample_all(tg_state *state, const tg_step *step) {
    for (uint32_t i = 0; i < step->sample_rows; i++) {
      const tg_row row = at<tg_row>(state, step->row_table)[at<uint32_t>(state, step->sample_table)[i]];
      at<tg_sampled>(state, step->sampled_table)[i].token = sample(row, at<tg_slot>(state, state->slot_table)[row.slot]);
      gpu::yield();
    }
    gpu::progress();
  }

 private:
  uint64_t pushed_tokens = 0, tail = 0;
  const bool bursts = !gpu::one_in(3);
  uint32_t burst = 0;

  void turn_all() {
    for (; rings->event_tail.value != rings->event_head.value; rings->event_tail.value++)
      read(table<tg_event>(rings->events)[rings->event_tail.value % config.event_capacity]);
  }
};

#endif
