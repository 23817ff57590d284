/* args.h: what the kernels of tiled/ are launched with, by value (common/address.h). */
#ifndef TAILGRAPH_TILED_ARGS_H
#define TAILGRAPH_TILED_ARGS_H

#include "abi.h"
#include "common/address.h"

typedef struct tg_tiled_args {
  TG_ADDRESS(void) y;                         /* [rows, n_total] */
  TG_ADDRESS(const void) x;                   /* [rows, k_total] */
  TG_ADDRESS(const void) w;                   /* [n_total, k_total], of the first expert */
  TG_ADDRESS(const void) w_pair;              /* the other matrix of TILED_SILU_MUL, or null */
  TG_ADDRESS(const float) bias;               /* [n_total] or null */
  TG_ADDRESS(const uint32_t) count;           /* rows, or with tiles how many of these there are */
  TG_ADDRESS(const struct ExpertTile) tiles;  /* by expert, or null */
  TG_ADDRESS(const uint32_t) gather;          /* the row at each place of the token sort, or null */
  uint64_t expert_stride;                     /* elements from one expert's matrix to the next's */
  uint32_t row_base;
  uint32_t n_total;
  uint32_t k_total;
  uint32_t epilogue;                          /* TILED_* */
  TG_ADDRESS(const float) w_scale;            /* of weights in 8 bits: each row's, [n_total] of each expert */
  TG_ADDRESS(const float) pair_scale;
} tg_tiled_args;

#endif
