/* args.h: what the kernels of persistent/ are launched with, by value (common/address.h). A plane is the rows of a part of bf16x3. */
#ifndef TAILGRAPH_PERSISTENT_ARGS_H
#define TAILGRAPH_PERSISTENT_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_PERSISTENT_GROUPS 2u      /* warpgroups that multiply weights of 16 bits */
#define TG_PERSISTENT_ROWS (TG_PERSISTENT_GROUPS * TG_GMMA_ROWS)  /* batch rows of a tile */
#define TG_PERSISTENT_TURN_ROWS 8u   /* weight rows of gate or of up that follow each other before the other's; so with B, C and X */
#define TG_BF16X3_THREADS 256u       /* of a block of tg_bf16x3_rows */
#define TG_E4M3_ROWS_THREADS 128u    /* of a block of tg_e4m3_rows */
#define TG_E4M3_ROWS_SCALED 128u     /* columns of a row in 8 bits that have one scale: those of a k-block */

typedef struct tg_persistent_args {
  TG_ADDRESS(void) y;                       /* [rows, n_total]; by expert by place */
  TG_ADDRESS(const float) bias;             /* dense: [n_total] or null */
  TG_ADDRESS(const void) x;                 /* where rows are gathered or in 8 bits: [R, k_total] */
  TG_ADDRESS(const uint32_t) count;         /* rows, counted from row_base on; by expert tiles */
  TG_ADDRESS(const struct ExpertTile) tiles;
  TG_ADDRESS(const uint32_t) gather;        /* the row at each place of the token sort */
  uint32_t row_base;                        /* dense, as is most_rows */
  uint32_t most_rows;
  uint32_t x_plane;
  uint32_t y_plane;
  uint32_t n_total;                         /* columns of y */
  uint32_t k_total;                         /* columns of x; in 8 bits pairs of them, with what fills the last packed block */
  uint32_t epilogue;                        /* dense: TILED_* */
  uint32_t up_first;                        /* of gate and up, up has the lower address */
  tg_prefetch_args prefetch;                /* by split_k.cuh */
  TG_ADDRESS(const float) scale;            /* weights in 8 bits: [n_total], by expert [experts, n_total]; of gate, where there are two */
  TG_ADDRESS(const float) scale_pair;       /* of up */
} tg_persistent_args;

#endif
