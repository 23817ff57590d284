/* args.h: what kernels of several families are launched with, by value (common/address.h). L are the taps. */
#ifndef TAILGRAPH_COMMON_ARGS_H
#define TAILGRAPH_COMMON_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that kernels and their launchers both go by, of several families. */
#define TG_NORM_THREADS 256u        /* of a block that norms a row (common/rmsnorm.cuh) */
#define TG_MAX_EXPERTS 128u         /* of a layer, at most */
#define TG_MAX_TOP_K 8u             /* of a row, at most */
#define TG_MOST_BIT_WORDS 2u        /* of common/bits.cuh: instances have 1 or 2 */
#define TG_EXPERT_TILE_BYTES 16u    /* of an ExpertTile (common/experts.cuh) */
#define TG_EXPERT_COUNTS 272u       /* words of GroupedCounts: 4 + MOST_BLOCKS / 32 + MOST_TILES (grouped/scheduler.cuh) */
#define TG_PACKED_ROWS 8u           /* of a block (common/packed.cuh) */
#define TG_PACKED_COLUMNS 64u
#define TG_PREFETCH_BYTES 4096u     /* of a piece (common/prefetch.cuh) */
#define TG_PARTS 3u                 /* bf16 values whose sum is an f32 */
#define TG_GMMA_ROWS 64u            /* of the operands of a warpgroup's instructions: M (common/operands.cuh) */
#define TG_GMMA_COLUMNS 64u         /* K of four instructions, which is a row of 128 bytes */
#define TG_GMMA_ROW_BYTES 128u
#define TG_GMMA_ATOM_BYTES 1024u    /* operands begin on multiples of it */
#define TG_GMMA_THREADS 128u        /* of a warpgroup */

/* What of a layer's experts comes to the second-level cache meanwhile (common/prefetch.cuh). */
typedef struct tg_prefetch_args {
  TG_ADDRESS(const char) gate;              /* of the first expert; on 16 bytes */
  TG_ADDRESS(const char) up;                /* of the first expert; on 16 bytes */
  uint64_t expert_bytes;                    /* from one expert's gate to the next one's, and from up to up; a multiple of 16 */
  uint32_t experts;
  uint32_t pieces;                          /* of each gate, and of each up; 0 where nothing is prefetched */
} tg_prefetch_args;

/* A conv layer's in-projection with its short convolution, in one kernel (persistent/conv.cuh, swap_ab/conv.cuh). */
typedef struct tg_conv_product_args {
  TG_ADDRESS(void) y;                       /* [R,H] */
  TG_ADDRESS(void) columns;                 /* [slots,L-1,H] */
  TG_ADDRESS(const float) bias;             /* [3H] or null */
  TG_ADDRESS(const float) taps;             /* [H,L] */
  TG_ADDRESS(const float) taps_bias;        /* [H] or null */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  TG_ADDRESS(const float) w_scale;          /* [3H] of weights in 8 bits, else null */
} tg_conv_product_args;

#endif
