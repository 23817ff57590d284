/* driver.h: a libcuda.so without a GPU, for tests of what goes wrong. Device memory is the host's, kernels do nothing,
 * and the environment says what fails:
 *
 *   TEST_CUDA_VERSION=12040       what cuDriverGetVersion answers                          (13000)
 *   TEST_CUDA_DEVICES=0           how many GPUs there are; cuInit refuses none             (1)
 *   TEST_CUDA_CAPABILITY=7.5      their compute capability                                 (9.0)
 *   TEST_CUDA_MULTIPROCESSORS=4   how many each has                                        (132)
 *   TEST_CUDA_MEMORY=1000000      bytes of each, all free at first                         (1 GiB)
 *   TEST_CUDA_RATE=3352           GB/s of their memory                                     (4800)
 *   TEST_CUDA_FAIL=F:N:CODE       the N-th call of F, from 1, returns CODE, or with `hang` never, with `slow` a second later;
 *                                 several with commas. A code that ends a context is every later call's answer too
 *   TEST_CUDA_FAIL=F:G+N:CODE     so does the first call of F after the N-th of G began
 *   TEST_CUDA_GRAPH=F:N:CODE      F of the N-th graph captured, from 1, returns CODE, whichever call that is; several with commas
 *   TEST_CUDA_NODE=N:TYPE         the N-th node captured, from 0, is of this CUgraphNodeType
 *   TEST_CUDA_DEVICE=WHAT         of every device that schedules itself (device.c); WHAT@D of device D alone:
 *                                   dead          takes the launch and does nothing
 *                                   stuck:N       step N never ends
 *                                   fault:N:CODE  step N ends the context with CODE
 *                                   refuse:N      the graph of step N cannot be launched by the device
 *   TEST_CUDA_CLOCKS=NS           by so much the clock of a stage is ahead of that of the stage before it, as it tells the times
 *                                 of its steps                                             (0)
 *   TEST_CUDA_PEERS=0             whether GPUs reach each other's memory; `stores`: they do, but for atomics (1)
 *   TEST_CUDA_ORDER=1             work that is not ordered as it has to be ends the process (order.c)
 *   TEST_CUDA_ORDER=to            but copies from a device may come behind launches that write elsewhere
 *   TEST_CUDA_DEAF=N              then, the N-th time that a stream is told to wait for an event, from 1, it does not;
 *   TEST_CUDA_DEAF=host           the host does not when it is to
 *   TEST_CUDA_LOG=FILE            a line `device BYTES` or `pinned BYTES` for each allocation
 *
 * Each GPU has a context of its own, which a thread has to make current before it uses what was made in it: a kernel, a copy
 * or an event in a stream of another context is refused, as is anything that needs a context where none is current.
 *
 * Every token that is sampled is TOKEN.
 */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* "A" of the byte tokenizer. */
#define TOKEN 73

/* CUresult */
#define SUCCESS 0
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define INVALID_CONTEXT 201
#define CAPTURE_UNSUPPORTED 900
#define NOT_FOUND 500
#define NOT_READY 600

#define MOST_DEVICES 16
#define MOST_STREAMS 64
#define MOST_DISPATCH_ARGUMENTS 7
#define MOST_ARGUMENTS 6

struct stream;
struct context {
  int device;
  struct stream *launch; /* where order.c has seen the last one */
  uint64_t used_bytes;
  /* the answer of every call that is made in it, once something has ended it; 0 before */
  int lost;
};

struct function {
  char name[64];
  struct context *context;
};

/* What one end of a link of nccl.c has been sent and has not taken: first come, first taken. */
struct letter { struct letter *behind; size_t bytes; unsigned char data[]; };
struct box { struct letter *first; };

enum op { KERNEL, COPY, SEND, RECEIVE, REDUCE };

/* One kernel of a captured graph, or another operation. */
struct node {
  enum op op;
  /* of a copy, and of what one end of a link does */
  uint64_t to, from;
  size_t bytes;
  struct box *own, *other;
  const struct function *function;
  uint32_t grid[3], block[3], shared_bytes;
  int type;
  /* launched with programmatic dependent launch */
  int early;
  /* of a dispatcher: its arguments */
  uint64_t dispatch[MOST_DISPATCH_ARGUMENTS];
  /* of a kernel that runs when its graph does: its arguments */
  uint64_t arguments[MOST_ARGUMENTS];
  size_t after; /* the node that it waits for, counted from 1; 0: none */
};

struct graph {
  struct node *nodes;
  size_t count;
  uint64_t number; /* of all that were captured, from 1; an executable's is its graph's */
};

struct event {
  struct graph *capture; /* of the stream that it was recorded in, */
  size_t captured;       /* its last node there, as in a stream */
  struct timespec at;
  /* for order.c */
  uint32_t clock[MOST_STREAMS];
  int looks; /* how often it is not through yet */
};

/* A queue of work. All work is done when it is enqueued, but for a device that schedules itself, a word on its way between two, and
 * a graph with a node that waits for another GPU's. */
struct stream {
  struct context *context;
  struct graph *capture;
  size_t captured; /* its last node of that, counted from 1; 0: none */
  /* 1 while a dispatcher runs, which only device.c sets back, or a graph waits for another GPU's */
  int running;
  /* for order.c */
  uint32_t number, clock[MOST_STREAMS], launch_clock[MOST_STREAMS];
};

int lost(const struct context *context);
void lose(struct context *context, int code);

/* What this thread has made current. */
extern _Thread_local struct context *current;

/* Counts calls by name; the answer that the environment wants from this one. */
int enter(const char *name);
#define ENTER() do { int code = enter(__func__); if (code) return code; } while (0)
/* What is used has to be of the context that is current. */
#define ENTER_IN(context) do { ENTER(); if (!current || current != (context)) return INVALID_CONTEXT; } while (0)

/* Where kernels.cpp is linked in, kernels run, `cluster` blocks along x together, by the time that finish_kernels() returns. CUresults. */
__attribute__((weak)) int run_kernel(const char *name, const uint32_t grid[3], const uint32_t block[3], uint32_t cluster,
                                     uint32_t shared_bytes, int early, void **arguments);
__attribute__((weak)) int finish_kernels(void);

/* order.c: what happens in which order, where that is checked. */
int order_is_checked(void);
void order_launch(struct stream *stream);
void order_peer(struct stream *stream, struct context *to, uint64_t to_at, struct context *from, uint64_t from_at, size_t bytes);
void order_to_device(struct stream *stream, uint64_t to, const void *from, size_t bytes);
void order_to_host(struct stream *stream, void *to, uint64_t from, const void *left, size_t bytes);
void order_record(struct event *event, struct stream *stream);
void order_wait(struct stream *stream, const struct event *event);
void order_exchange(struct stream *by, struct stream *there, uint64_t to, uint64_t from, size_t bytes);
int order_look(struct event *event, int waits);
void order_synchronize(struct stream *stream);

/* A graph for the stream to capture. */
struct graph *new_graph(void);
/* An operation that is no kernel, as a node of the stream's capture. */
void capture_operation(struct stream *stream, struct node node);
/* Does it; 0 where it has to wait for another GPU. `again`: it has left its own part already. */
int do_operation(const struct node *node, int again);
/* Leaves its part for the other end of its link; 0. */
int leave(const struct node *node);

/* Whether a kernel is a dispatcher, and so how many arguments it has; 0: it is none. */
int dispatch_arguments(const char *kernel);
/* Starts the thread that does what the dispatcher with these arguments would do. */
void run_device(struct stream *stream, const char *kernel, const uint64_t arguments[MOST_DISPATCH_ARGUMENTS]);
/* Starts the thread that does what tg_bounce would; SUCCESS. */
int bounce(struct stream *stream, void **arguments);

#endif
