/* args.h: what the kernels of swap_ab/ are launched with, by value (common/address.h), beside tensor maps. Words that stand beside a struct
 * are arguments of their own: kernels/README.md, "Adding a kernel", says why. */
#ifndef TAILGRAPH_SWAP_AB_ARGS_H
#define TAILGRAPH_SWAP_AB_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_SWAP_AB_MOST_STAGES 16u

/* swap_ab/swap_ab.cuh, beside K, the epilogue (TILED_*) and the pipeline's stages */
typedef struct tg_swap_ab_args {
  TG_ADDRESS(void) y;                       /* [R,N] */
  TG_ADDRESS(const float) bias;             /* [N] or null */
  TG_ADDRESS(const uint32_t) count;         /* rows */
  uint32_t n_total;                         /* N */
  uint32_t pad;
  TG_ADDRESS(const float) w_scale;          /* [N], as is the pair's: of weights in 8 bits, else null */
  TG_ADDRESS(const float) pair_scale;
} tg_swap_ab_args;

/* swap_ab/head.cuh */
typedef struct tg_swap_ab_head_args {
  TG_ADDRESS(float) y;                      /* [S,N] */
  TG_ADDRESS(unsigned long long) best;      /* [S,blocks along N] */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  uint32_t n_total;                         /* N */
  uint32_t k_total;                         /* K */
  uint32_t stages;                          /* of the pipeline */
  uint32_t pad;
} tg_swap_ab_head_args;

#endif
