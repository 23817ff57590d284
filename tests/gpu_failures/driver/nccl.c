/* nccl.c: a libnccl.so.2 over the driver beside it. A group's sends and receives are done as it ends. See driver.h. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

struct comm {
  int device;
  struct comm *other;
};

/* What one end of a link does in the group. */
struct half {
  struct comm *comm;
  struct stream *stream;
  uint64_t at;
  size_t bytes;
  int sends;
};

static _Thread_local struct half group[16];
static _Thread_local int halves, depth;

/* All have two ends. */
int ncclCommInitAll(struct comm **comms, int count, const int *devices) {
  if (count != 2) return INVALID_ARGUMENT;
  for (int i = 0; i < 2; i++) comms[i] = calloc(1, sizeof *comms[i]);
  for (int i = 0; i < 2; i++) *comms[i] = (struct comm){devices[i], comms[1 - i]};
  return OK;
}
int ncclCommDestroy(struct comm *comm) { free(comm); return OK; }
int ncclCommAbort(struct comm *comm) { return ncclCommDestroy(comm); }
const char *ncclGetErrorString(int answer) { return answer == OK ? "no error" : "a test's error"; }

int ncclGroupStart(void) { depth++; return OK; }

static int put(struct half half, int type, int peer, int expected) {
  if (!depth || halves == sizeof group / sizeof *group) return INVALID_USAGE;
  if (type || peer != expected || half.comm->device != half.stream->context->device) return INVALID_ARGUMENT;
  group[halves++] = half;
  return OK;
}
int ncclSend(const void *from, size_t bytes, int type, int peer, struct comm *comm, struct stream *stream) {
  return put((struct half){comm, stream, (uint64_t)from, bytes, 1}, type, peer, 1);
}
int ncclRecv(void *to, size_t bytes, int type, int peer, struct comm *comm, struct stream *stream) {
  return put((struct half){comm, stream, (uint64_t)to, bytes, 0}, type, peer, 0);
}

int ncclGroupEnd(void) {
  int count = halves, done = 0;
  halves = 0;
  if (--depth) return INVALID_USAGE;
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < count; j++) {
      const struct half *by = &group[i], *there = &group[j];
      if (!by->sends || there->sends || by->comm->other != there->comm || by->bytes != there->bytes) continue;
      if (order_is_checked()) order_exchange(by->stream, there->stream, there->at, by->at, by->bytes);
      memcpy((void *)there->at, (const void *)by->at, by->bytes);
      done += 2;
    }
  }
  return done == count ? OK : INVALID_USAGE;
}
