/* nccl.c: a libnccl.so.2 over the driver beside it. A group's sends, receives and sums are done as it ends,
 * or are nodes of the graphs that its streams are captured for. See driver.h. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

struct comm {
  int device;
  struct comm *other;
  struct box box;
};

/* What one end of a link does in the group. */
struct half {
  struct comm *comm;
  struct stream *stream;
  uint64_t at;
  size_t bytes;
  enum op op;
};

static _Thread_local struct half group[16];
static _Thread_local int halves, depth;

/* All have two ends. */
int ncclCommInitAll(struct comm **comms, int count, const int *devices) {
  if (count != 2) return INVALID_ARGUMENT;
  /* Never over multicast: it is read as communicators are made. */
  const char *multicast = getenv("NCCL_NVLS_ENABLE");
  if (!multicast || strcmp(multicast, "0")) return INVALID_USAGE;
  for (int i = 0; i < 2; i++) comms[i] = calloc(1, sizeof *comms[i]);
  for (int i = 0; i < 2; i++) *comms[i] = (struct comm){.device = devices[i], .other = comms[1 - i]};
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
  return put((struct half){comm, stream, (uint64_t)from, bytes, SEND}, type, peer, 1);
}
int ncclRecv(void *to, size_t bytes, int type, int peer, struct comm *comm, struct stream *stream) {
  return put((struct half){comm, stream, (uint64_t)to, bytes, RECEIVE}, type, peer, 0);
}

/* bf16, and their sum. */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct comm *comm, struct stream *stream) {
  if (!depth || halves == sizeof group / sizeof *group) return INVALID_USAGE;
  if (type != 9 || op || from != to || comm->device != stream->context->device) return INVALID_ARGUMENT;
  group[halves++] = (struct half){comm, stream, (uint64_t)to, count * sizeof(uint16_t), REDUCE};
  return OK;
}

static struct node node_of(const struct half *half) {
  return (struct node){
    .op = half->op, .to = half->at, .bytes = half->bytes, .own = &half->comm->box, .other = &half->comm->other->box};
}

int ncclGroupEnd(void) {
  int count = halves, done = 0;
  halves = 0;
  if (--depth) return INVALID_USAGE;
  if (count && group[0].stream->capture) {
    for (int i = 0; i < count; i++) capture_operation(group[i].stream, node_of(&group[i]));
    return OK;
  }
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < count; j++) {
      const struct half *by = &group[i], *there = &group[j];
      if (by->op != SEND || there->op != RECEIVE || by->comm->other != there->comm || by->bytes != there->bytes) continue;
      if (order_is_checked()) order_exchange(by->stream, there->stream, there->at, by->at, by->bytes);
      memcpy((void *)there->at, (const void *)by->at, by->bytes);
      done += 2;
    }
  }
  /* All leave their parts, and then take the other's. */
  for (int again = 0; again < 2; again++) {
    for (int i = 0; i < count; i++) {
      const struct node node = node_of(&group[i]);
      if (group[i].op == REDUCE && (again ? do_operation(&node, 1) : leave(&node))) done++;
    }
  }
  return done == count ? OK : INVALID_USAGE;
}
