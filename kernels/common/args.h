/* args.h: what kernels of several families are launched with, by value. Plain C for both sides: kernels include it, and Rust has it
 * through bindgen. Addresses are as common/address.h says. */
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

#endif
