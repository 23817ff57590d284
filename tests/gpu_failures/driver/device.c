/* device.c: the dispatcher of kernels/sched/dispatcher.cu as a thread: it takes turns of the real core, and a step's kernels
 * take no time. */
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
  for (uint32_t phase = 0; phase < tg_phases(); phase++) tg_phase(device->state, device->rings, start_ns, phase, 0, 1);
  tg_trace_write(device->state, device->rings, now_ns(), 0);
  return device->state->outcome.action;
}

/* 0: the device goes no further. */
static int run_step(struct device *device) {
  tg_state *state = device->state;
  const uint64_t number = state->outcome.step;
  const tg_step *step = &state->steps[number % state->config.steps_in_flight];
  if (*device->what && number == device->step) {
    if (!strcmp(device->what, "stuck")) return 0;
    if (!strcmp(device->what, "refuse")) {
      state->error = TG_ERROR_LAUNCH;
      tg_release(&device->rings->action.value, (uint64_t)TG_ERROR_LAUNCH << 32 | TG_ACTION_ERROR);
    } else {
      lose(device->stream->context, device->code);
    }
    end(device);
    return 0;
  }
  tg_sampled *sampled = (tg_sampled *)((char *)state + step->sampled_table);
  for (uint32_t i = 0; i < step->sample_rows; i++) sampled[i] = (tg_sampled){.token = TOKEN};
  if (!tg_mailbox_post(&state->mailbox[0], number)) state->error = TG_ERROR_MAILBOX;
  return 1;
}

static void *run(void *argument) {
  struct device *device = argument;
  while (!lost(device->stream->context)) {
    switch (turn(device)) {
      case TG_ACTION_STEP:
        if (!run_step(device)) return NULL;
        break;
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

void run_device(struct stream *stream, const uint64_t addresses[4]) {
  struct device *device = calloc(1, sizeof *device);
  device->stream = stream;
  device->state = (tg_state *)addresses[0];
  device->rings = (tg_rings *)addresses[1];
  const char *what = getenv("TEST_CUDA_DEVICE");
  const char *which = what ? strchr(what, '@') : NULL;
  if (which && atoi(which + 1) != stream->context->device) what = NULL;
  stream->running = 1;
  if (what && !strncmp(what, "dead", 4)) return;
  unsigned long long step = 0;
  if (what) sscanf(what, "%15[a-z]:%llu:%d", device->what, &step, &device->code);
  device->step = step;
  pthread_t thread;
  pthread_create(&thread, NULL, run, device);
  pthread_detach(thread);
}
