/* device.c: the dispatchers of kernels/sched (dispatch.cuh, stages.cu) as threads: they take turns of the real core and hand
 * steps on by it, and a step's kernels take no time. So is what waits for another GPU (kernels/sched/links.cu). */
#define _GNU_SOURCE
#include "driver.h"
#include "sched/sched.c"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct device {
  struct stream *stream;
  tg_state *state;
  tg_rings *rings;
  tg_links *links; /* of a stage of several GPUs */
  int last;        /* the stage is the last one */
  tg_stage_times *times; /* where the stage says when it had its steps, if that is asked */
  /* what goes wrong, and when */
  char what[16];
  uint64_t step;
  int code;
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void end(struct device *device) { __atomic_store_n(&device->stream->running, 0, __ATOMIC_RELEASE); }

static uint32_t turn(struct device *device) {
  const uint64_t start_ns = now_ns();
  for (uint32_t phase = 0; phase < TG_PHASES; phase++) tg_phase(device->state, device->rings, start_ns, phase, 0, 1);
  tg_trace_write(device->state, device->rings, now_ns(), 0);
  return device->state->outcome.action;
}

static void fail(struct device *device, uint32_t error) {
  device->state->error = error;
  tg_release(&device->rings->action.value, (uint64_t)error << 32 | TG_ACTION_ERROR);
}

/* Whether the step runs. What goes wrong with it happens here; a device that is not stuck has ended then. */
static int runs(struct device *device, uint64_t number) {
  if (!*device->what || number != device->step) return 1;
  if (!strcmp(device->what, "stuck")) return 0;
  if (!strcmp(device->what, "fault")) {
    lose(device->stream->context, device->code);
  } else {
    if (device->rings) fail(device, TG_ERROR_LAUNCH);
    if (device->links) tg_links_end(device->links, TG_LINK_FAILED);
  }
  end(device);
  return 0;
}

static void sample(tg_state *state, uint64_t number) {
  const tg_step *step = &state->steps[number % state->config.steps_in_flight];
  tg_sampled *sampled = (tg_sampled *)((char *)state + step->sampled_table);
  for (uint32_t i = 0; i < step->sample_rows; i++) sampled[i] = (tg_sampled){.token = TOKEN};
}

/* tg_dispatch_claims, tg_dispatch_tail */
static void *run_all(void *argument) {
  struct device *device = argument;
  tg_state *state = device->state;
  while (!lost(device->stream->context)) {
    switch (turn(device)) {
      case TG_ACTION_STEP: {
        const uint64_t number = state->outcome.step;
        if (!runs(device, number)) return NULL;
        sample(state, number);
        if (!tg_mailbox_post(&state->mailbox[0], number)) state->error = TG_ERROR_MAILBOX;
        break;
      }
      case TG_ACTION_DONE:
      case TG_ACTION_ERROR:
        end(device);
        return NULL;
      default:
        usleep(50);
    }
  }
  end(device);
  return NULL;
}

/* tg_dispatch, which has no instructions for a queue */
static void *run_alone(void *argument) {
  struct device *device = argument;
  if (!device->state->claimer.queue) return run_all(argument);
  fail(device, TG_ERROR_CONFIG);
  end(device);
  return NULL;
}

static uint64_t stage_ns(const struct device *device) {
  const char *ahead = getenv("TEST_CUDA_CLOCKS");
  return now_ns() + (ahead ? strtoull(ahead, NULL, 10) : 0) * device->links->stage;
}

/* The step's times are told as device.cuh tells them; the first stage has 0 for `came_ns`. */
static void tell(const struct device *device, uint64_t number, uint64_t came_ns, uint64_t left_ns) {
  if (!device->times) return;
  uint64_t *told = device->times->told + number % TG_TIMES_STEPS * 2;
  const uint64_t step = number & ((1u << TG_TIMES_STEP_BITS) - 1);
  if (came_ns) tg_store(told, came_ns << TG_TIMES_STEP_BITS | step);
  tg_store(told + 1, left_ns << TG_TIMES_STEP_BITS | step);
}

/* Waits for room, and hands the step on. */
static void hand_on(struct device *device, uint64_t number, uint64_t came_ns) {
  tg_links *links = device->links;
  uint32_t asked;
  while ((asked = tg_links_room(links, now_ns())) == TG_LINK_WAIT) usleep(10);
  if (asked != TG_LINK_READY) return;
  if (device->last) {
    sample(device->state, number);
    tg_put_results(device->state, number, tg_link_place(&links->out), 0, 1);
  } else {
    tg_put_step(device->state, number, tg_link_place(&links->out), 0, 1);
  }
  const uint64_t left_ns = stage_ns(device);
  tg_links_post(links);
  tell(device, number, came_ns, left_ns);
}

/* tg_lead */
static void *run_first(void *argument) {
  struct device *device = argument;
  tg_state *state = device->state;
  tg_links *links = device->links;
  while (!lost(device->stream->context)) {
    uint32_t asked;
    while ((asked = tg_links_take(links, now_ns())) == TG_LINK_READY) {
      const uint64_t *place = tg_link_place(&links->in);
      tg_get_results(state, place, 0, 1);
      if (!tg_mailbox_post(&state->mailbox[0], place[0])) state->error = TG_ERROR_MAILBOX;
      tg_links_release(links);
    }
    if (asked == TG_LINK_OVER && (links->ended & 0xffffu) != TG_LINK_STOPPED) {
      tg_store(&device->rings->status.ended, links->ended);
      fail(device, TG_ERROR_LINK);
      break;
    }
    const uint32_t action = turn(device);
    if (action == TG_ACTION_DONE || action == TG_ACTION_ERROR) {
      tg_links_end(links, action == TG_ACTION_DONE ? TG_LINK_DRAINED : TG_LINK_FAILED);
      break;
    }
    if (action == TG_ACTION_STEP) {
      if (!runs(device, state->outcome.step)) return NULL;
      hand_on(device, state->outcome.step, 0);
    } else {
      usleep(50);
    }
  }
  end(device);
  return NULL;
}

/* tg_follow */
static void *run_later(void *argument) {
  struct device *device = argument;
  tg_links *links = device->links;
  while (!lost(device->stream->context)) {
    const uint32_t asked = tg_links_take(links, now_ns());
    if (asked == TG_LINK_OVER) break;
    if (asked == TG_LINK_WAIT) {
      usleep(20);
      continue;
    }
    const uint64_t *place = tg_link_place(&links->in), came_ns = stage_ns(device);
    tg_get_step(device->state, place, 0, 1);
    if (!runs(device, place[0])) return NULL;
    hand_on(device, place[0], came_ns);
    tg_links_release(links);
  }
  end(device);
  return NULL;
}

static const struct dispatcher {
  const char *kernel;
  int arguments;
  void *(*run)(void *);
} DISPATCHERS[] = {{"tg_dispatch", 6, run_alone},
                   {"tg_dispatch_claims", 6, run_all},
                   {"tg_dispatch_tail", 6, run_all},
                   {"tg_lead", 7, run_first},
                   {"tg_follow", 6, run_later}};

static const struct dispatcher *dispatcher(const char *kernel) {
  for (size_t i = 0; i < sizeof DISPATCHERS / sizeof *DISPATCHERS; i++)
    if (!strcmp(DISPATCHERS[i].kernel, kernel)) return &DISPATCHERS[i];
  return NULL;
}

int dispatch_arguments(const char *kernel) {
  const struct dispatcher *found = dispatcher(kernel);
  return found ? found->arguments : 0;
}

/* What goes wrong with the device of this stream; NULL: nothing. */
static const char *trouble(const struct stream *stream) {
  const char *what = getenv("TEST_CUDA_DEVICE");
  const char *which = what ? strchr(what, '@') : NULL;
  return which && atoi(which + 1) != stream->context->device ? NULL : what;
}

static void start(void *(*run)(void *), void *argument) {
  pthread_t thread;
  pthread_create(&thread, NULL, run, argument);
  pthread_detach(thread);
}

struct bounce { struct stream *stream; const uint64_t *mine; uint64_t *theirs; uint32_t first, rounds; uint64_t limit_ns, *found; };

/* Who waits for a word sleeps: on a busy host a thread that looks again and again has its turn too seldom. */
static pthread_mutex_t word = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stored = PTHREAD_COND_INITIALIZER;

static void store_word(uint64_t *theirs, uint64_t round) {
  pthread_mutex_lock(&word);
  tg_release(theirs, round);
  pthread_cond_broadcast(&stored);
  pthread_mutex_unlock(&word);
}

/* Whether `mine` was `round` before `until`, on now_ns()'s clock. */
static int wait_for_word(const uint64_t *mine, uint64_t round, const struct timespec *until) {
  pthread_mutex_lock(&word);
  while (tg_acquire(mine) != round && !pthread_cond_clockwait(&stored, &word, CLOCK_MONOTONIC, until)) {}
  const int there = tg_acquire(mine) == round;
  pthread_mutex_unlock(&word);
  return there;
}

static void *run_bounce(void *argument) {
  struct bounce *to = argument;
  const uint64_t untimed = 16, second_ns = 1000000000, start_ns = now_ns(), until_ns = start_ns + to->limit_ns;
  const struct timespec until = {.tv_sec = until_ns / second_ns, .tv_nsec = until_ns % second_ns};
  uint64_t began_ns = start_ns, round = 0;
  for (int there = 1; there && round < untimed + to->rounds; round += there) {
    if (round == untimed) began_ns = now_ns();
    if (to->first) store_word(to->theirs, round + 1);
    there = wait_for_word(to->mine, round + 1, &until);
    if (there && !to->first) store_word(to->theirs, round + 1);
  }
  to->found[0] = round > untimed ? round - untimed : 0;
  to->found[1] = now_ns() - began_ns;
  __atomic_store_n(&to->stream->running, 0, __ATOMIC_RELEASE);
  free(to);
  return NULL;
}

int bounce(struct stream *stream, void **arguments) {
  const char *what = trouble(stream);
  if (what && !strncmp(what, "dead", 4)) return SUCCESS;
  struct bounce *to = malloc(sizeof *to);
  *to = (struct bounce){
    .stream = stream, .mine = *(uint64_t **)arguments[0], .theirs = *(uint64_t **)arguments[1], .first = *(uint32_t *)arguments[2],
    .rounds = *(uint32_t *)arguments[3], .limit_ns = *(uint64_t *)arguments[4], .found = *(uint64_t **)arguments[5]};
  stream->running = 1;
  start(run_bounce, to);
  return SUCCESS;
}

void run_device(struct stream *stream, const char *kernel, const uint64_t arguments[MOST_DISPATCH_ARGUMENTS]) {
  struct device *device = calloc(1, sizeof *device);
  const struct dispatcher *found = dispatcher(kernel);
  device->stream = stream;
  device->state = (tg_state *)arguments[0];
  if (found->run == run_later) {
    device->links = &((tg_stage *)arguments[2])->links;
    device->last = (uint32_t)arguments[4] != 0;
    device->times = (tg_stage_times *)arguments[5];
  } else {
    device->rings = (tg_rings *)arguments[1];
  }
  if (found->run == run_first) {
    device->links = &((tg_stage *)arguments[4])->links;
    device->times = (tg_stage_times *)arguments[6];
  }
  const char *what = trouble(stream);
  stream->running = 1;
  if (what && !strncmp(what, "dead", 4)) return;
  unsigned long long step = 0;
  if (what) sscanf(what, "%15[a-z]:%llu:%d", device->what, &step, &device->code);
  device->step = step;
  start(found->run, device);
}
