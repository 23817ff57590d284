/* args.h: what the kernels of grouped/ are launched with, by value (common/address.h), beside the maps of gate and up and of down. */
#ifndef TAILGRAPH_GROUPED_ARGS_H
#define TAILGRAPH_GROUPED_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_GROUPED_OUTPUTS 128u      /* weight rows of a work tile: 128 outputs of down, 64 of gate and up */
#define TG_GROUPED_GROUP_ROWS 16u    /* of those, for each consumer warp */
#define TG_GROUPED_BF16X3_ROWS 32u   /* of an expert tile of f32 rows, at most */
#define TG_GROUPED_MOST_STAGES 16u
#define TG_GROUPED_SORTERS 256u      /* threads that sort; a thread sorts EACH rows */
#define TG_GROUPED_MOST_EACH 4u      /* the largest EACH; f32 rows have 1 only */
#define TG_GROUPED_MOST_TILES 256u   /* expert tiles of a step */
#define TG_GROUPED_MOST_BLOCKS 384u  /* of a grid */

typedef struct tg_grouped_args {
  TG_ADDRESS(void) partial;                 /* [R k,H], by pair: f32, or x's type, as the instance has it */
  TG_ADDRESS(void) y;                       /* [R k,I], by place */
  TG_ADDRESS(const void) x;                 /* [R,H] */
  TG_ADDRESS(const uint32_t) chosen;        /* [R,k] */
  TG_ADDRESS(struct GroupedCounts) counts;  /* zeros (clear_counts), and counted up */
  TG_ADDRESS(const tg_step) step;
  uint32_t experts;
  uint32_t k;
  uint32_t predicts;                        /* whether blocks' first work tiles are predictions (scheduler.cuh) */
  uint32_t beyond;                          /* k-blocks of a prediction for which the pipeline has no room, prefetched into L2 */
  uint32_t hidden;                          /* H */
  uint32_t inner;                           /* I */
  uint32_t tile_rows;                       /* a multiple of 8, at most what the instance has room for */
  uint32_t stages;                          /* of the pipeline */
  uint32_t up_first;                        /* up lies before gate in memory, and so in the map, whose strides are positive */
  uint32_t pad;
  TG_ADDRESS(const float) gate_scale;       /* [experts,I], as is up's: of weights in 8 bits, else null */
  TG_ADDRESS(const float) up_scale;
  TG_ADDRESS(const float) down_scale;       /* [experts,H] */
} tg_grouped_args;

#endif
