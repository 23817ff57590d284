/* args.h: what the kernels of conv/ are launched with, by value (common/address.h). */
#ifndef TAILGRAPH_CONV_ARGS_H
#define TAILGRAPH_CONV_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_CONV_THREADS 128u         /* of a block, with four channels each */
#define TG_CONV_ROWS 4u              /* of a thread of tg_conv_rows_* */
#define TG_CONV_TAPS 3u              /* that these are made for, and other kernels with one number of taps */

/* tg_conv_decode_*, tg_conv_*, and tg_conv_rows_*, which is of one length and looks at none. */
typedef struct tg_conv_args {
  TG_ADDRESS(void) x;                   /* [R,H] */
  TG_ADDRESS(void) columns;             /* [slots,L-1,H] */
  TG_ADDRESS(const void) bcx;           /* [R,3H] */
  TG_ADDRESS(const float) taps;         /* [H,L] */
  TG_ADDRESS(const float) bias;         /* [H] or null */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  uint32_t hidden;                      /* H */
  uint32_t length;                      /* L */
} tg_conv_args;

#endif
