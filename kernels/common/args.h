/* args.h: what kernels of several families are launched with, by value. Plain C for both sides: kernels include it, and Rust has it
 * through bindgen. Addresses are as common/address.h says. H is the hidden size, R the rows of the bucket, L the taps. */
#ifndef TAILGRAPH_COMMON_ARGS_H
#define TAILGRAPH_COMMON_ARGS_H

#include "abi.h"
#include "common/address.h"

/* What of a layer's experts comes to the second-level cache meanwhile (common/prefetch.cuh). */
typedef struct tg_prefetch_args {
  TG_ADDRESS(const char) gate;              /* of the first expert; on 16 bytes */
  TG_ADDRESS(const char) up;                /* of the first expert; on 16 bytes */
  uint64_t expert_bytes;                    /* from one expert's gate to the next one's, and from up to up; a multiple of 16 */
  uint32_t experts;
  uint32_t pieces;                          /* of each gate, and of each up; 0 where nothing is asked for */
} tg_prefetch_args;

/* A conv layer's in-projection with its short convolution, in one kernel (persistent/conv.cuh, swap_ab/conv.cuh). H and what
 * else differs between them are arguments of their own. */
typedef struct tg_conv_product_args {
  TG_ADDRESS(void) y;                       /* [R,H] */
  TG_ADDRESS(void) columns;                 /* [slots,L-1,H] */
  TG_ADDRESS(const float) bias;             /* [3H] or null */
  TG_ADDRESS(const float) taps;             /* [H,L] */
  TG_ADDRESS(const float) taps_bias;        /* [H] or null */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
} tg_conv_product_args;

#endif
