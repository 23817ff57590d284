/* args.h: what the kernels of grouped/ are launched with, by value (common/address.h), beside the maps of gate and up and of down. */
#ifndef TAILGRAPH_GROUPED_ARGS_H
#define TAILGRAPH_GROUPED_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_GROUPED_OUTPUTS 128u      /* weight rows of a work tile: 64 for each warpgroup of consumers */
#define TG_GROUPED_GROUP_ROWS 16u    /* of those, for each consumer warp */
#define TG_GROUPED_BF16X3_ROWS 32u   /* of an expert tile of f32 rows, at most */
#define TG_GROUPED_MOST_STAGES 16u
#define TG_GROUPED_SORTERS 256u      /* threads that sort: so many rows for each one that they have */
#define TG_GROUPED_MOST_EACH 4u      /* for which there are instances; of f32 rows 1 */
#define TG_GROUPED_MOST_TILES 256u   /* expert tiles of a step */
#define TG_GROUPED_MOST_BLOCKS 384u  /* of a grid */

typedef struct tg_grouped_args {
  TG_ADDRESS(void) partial;                 /* [R K,H], by pair: f32, or x's type, as the instance has it */
  TG_ADDRESS(void) y;                       /* [R K,M], by place */
  TG_ADDRESS(const void) x;                 /* [R,H] */
  TG_ADDRESS(const uint32_t) chosen;        /* [R,K] */
  TG_ADDRESS(struct GroupedCounts) counts;  /* zeros (clear_counts), and counted up */
  TG_ADDRESS(const tg_step) step;
  uint32_t experts;
  uint32_t k;
  uint32_t predicts;                        /* blocks predict some of the experts */
  uint32_t beyond;                          /* k-blocks of a prediction for which the pipeline has no room, prefetched into L2 */
  uint32_t hidden;                          /* H */
  uint32_t inner;                           /* M */
  uint32_t tile_rows;
  uint32_t stages;                          /* of the pipeline */
  uint32_t up_first;                        /* of gate and up, up's rows come first */
  uint32_t pad;
} tg_grouped_args;

#endif
