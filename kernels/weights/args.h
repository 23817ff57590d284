/* args.h: what the kernels of weights/ are launched with, by value (common/address.h). */
#ifndef TAILGRAPH_WEIGHTS_ARGS_H
#define TAILGRAPH_WEIGHTS_ARGS_H

#include "abi.h"
#include "common/address.h"

#define TG_RANDOM_THREADS 256u       /* of a block */

/* weights/random.cu: how a tensor's elements are made; its first is element `first` of the stream. */
typedef struct tg_random_args {
  TG_ADDRESS(void) w;      /* [rows,columns] */
  TG_ADDRESS(float) row_scales;  /* out, of weights in 8 bits: [rows] */
  uint64_t first;
  uint32_t key_low;
  uint32_t key_high;
  uint32_t seed_high;
  float scale;
  float offset;
  uint32_t columns;
  uint32_t packed;         /* w is (common/packed.cuh) */
  uint32_t keeps_f32;      /* published in f32, else in bf16 */
} tg_random_args;

#endif
