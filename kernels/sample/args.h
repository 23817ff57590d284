/* args.h: what the kernels of sample/ are launched with, by value (common/address.h). S are the sampled rows, V the vocabulary. With
 * `tile_rows`, as in a score step, the logits are those of so many rows of the step from row `first` on; else of the sampled rows. */
#ifndef TAILGRAPH_SAMPLE_ARGS_H
#define TAILGRAPH_SAMPLE_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_SEEN_THREADS 256u         /* of a block of tg_mark_seen */
#define TG_SAMPLE_THREADS 512u
#define TG_BEST_THREADS 256u         /* of a block of tg_sample_best */
#define TG_MEETING_BYTES 16u         /* of a Meeting (sample/scores.cuh) */

typedef struct tg_sample_best_args {
  TG_ADDRESS(unsigned long long) best;        /* [S,blocks of a row] */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(float) logits;                   /* [S,V] or [tile_rows,V] */
  TG_ADDRESS(const tg_step) step;
  uint32_t vocabulary;
  uint32_t first;
  uint32_t tile_rows;
  uint32_t pad;
} tg_sample_best_args;

typedef struct tg_sample_args {
  TG_ADDRESS(tg_state) state;
  TG_ADDRESS(float) logits;                   /* [S,V] or [tile_rows,V] */
  TG_ADDRESS(uint32_t) seen;                  /* a bit a token, of each slot */
  TG_ADDRESS(uint16_t) counts;                /* [slots,V] */
  TG_ADDRESS(const unsigned long long) best;  /* [S,parts] */
  TG_ADDRESS(struct Meeting) meetings;        /* [S], 0 before and after */
  TG_ADDRESS(const tg_step) step;
  uint32_t vocabulary;
  uint32_t first;
  uint32_t tile_rows;
  uint32_t parts;                             /* of a row's best logit */
  uint32_t marks;                             /* a sampled row is all that its sequence has in the step, and its token is noted */
  uint32_t pad;
} tg_sample_args;

#endif
