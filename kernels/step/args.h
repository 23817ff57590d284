/* args.h: what the kernels of step/ are launched with, by value (common/address.h). */
#ifndef TAILGRAPH_STEP_ARGS_H
#define TAILGRAPH_STEP_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_EMBED_THREADS 256u
#define TG_LOGITS_COPY_THREADS 256u

/* step/deliver.cu */
typedef struct tg_logits_copy_args {
  TG_ADDRESS(uint64_t) ring;
  TG_ADDRESS(const uint64_t) counter;
  TG_ADDRESS(const float) logits;       /* [S,V], or [tile_rows,V] of the step's rows from `first` on */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  uint32_t vocabulary;                  /* V */
  uint32_t lines;                       /* of a tile of the ring */
  uint32_t first;
  uint32_t tile_rows;                   /* 0: the logits are of the sampled rows */
} tg_logits_copy_args;

#endif
