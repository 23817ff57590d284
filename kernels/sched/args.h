/* args.h: when a stage that has a GPU of its own had each step (stages.cu), for a trace. */
#ifndef TAILGRAPH_SCHED_ARGS_H
#define TAILGRAPH_SCHED_ARGS_H

#include <stdint.h>

/* Steps whose times wait for the host to read them, at most. */
#define TG_TIMES_STEPS 8192u
/* A time as the host reads it: ns of the GPU's %globaltimer, modulo 2^48, above the step's number modulo 2^16. It is one word,
 * so that no reader sees half of it. 0: none yet. */
#define TG_TIMES_STEP_BITS 16u

/* In the memory of the stage's GPU. A step's kernels note their times here; its dispatcher reports them to the host, as the last that it
 * does: a store over the bus, and no kernel of a step waits for one. */
typedef struct tg_stage_times {
  uint64_t *told;    /* pinned: [TG_TIMES_STEPS][2], by the step's number: it came, it left */
  uint64_t came_ns;  /* the step's rows were there; stage 0, which has no stage before it: never set */
  uint64_t left_ns;  /* just before the step was posted to the next stage */
  uint64_t pad;
} tg_stage_times;

#endif
