/* args.h: what the kernels of step/ are launched with, by value (common/address.h). */
#ifndef TAILGRAPH_STEP_ARGS_H
#define TAILGRAPH_STEP_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_EMBED_THREADS 256u
#define TG_LOGITS_COPY_THREADS 256u
#define TG_NEEDED_THREADS 1024u
#define TG_GATHER_THREADS 256u
#define TG_SHARE_THREADS 256u
#define TG_SHARE_LAYERS 32u           /* of a launch, at most */

/* step/deliver.cu */
typedef struct tg_logits_copy_args {
  TG_ADDRESS(uint64_t) ring;
  TG_ADDRESS(const uint64_t) counter;
  TG_ADDRESS(const float) logits;       /* [S,V], or [tile_rows,V] of the step's rows from `first` on */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  uint32_t vocabulary;                  /* V */
  uint32_t lines;                       /* of a tile of the ring */
  uint32_t first;
  uint32_t tile_rows;                   /* 0: the logits are of the sampled rows */
} tg_logits_copy_args;

/* step/needed.cu: the step's rows that are needed, listed. */
typedef struct tg_needed_args {
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  TG_ADDRESS(tg_step) needed;
  TG_ADDRESS(tg_row) rows;              /* [needed rows] */
  TG_ADDRESS(uint32_t) from;            /* [needed rows]: which of the step's rows each is */
  TG_ADDRESS(tg_sequence) sequences;    /* [slots] */
  TG_ADDRESS(uint32_t) samples;         /* [slots] */
  uint32_t last_rows;                   /* of each sequence, at most */
  uint32_t pad;
} tg_needed_args;

/* step/needed.cu: rows of h and q, gathered. */
typedef struct tg_gather_args {
  TG_ADDRESS(const tg_step) needed;
  TG_ADDRESS(const uint32_t) from;      /* 0: row r is row r */
  TG_ADDRESS(void) h_to;
  TG_ADDRESS(const void) h;             /* f32 [R,H] */
  TG_ADDRESS(void) qkv_to;
  TG_ADDRESS(const void) qkv;           /* [R, (heads + 2 kv_heads) D] */
  uint32_t h_bytes;                     /* of a row */
  uint32_t q_bytes;                     /* of a row's queries; 0: they stay */
  uint32_t qkv_bytes;                   /* of a row */
  uint32_t pad;
} tg_gather_args;

/* step/share.cu: what sequences have in each layer, of which there is one for each place. */
typedef struct tg_share_args {
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  TG_ADDRESS(char) kept[TG_SHARE_LAYERS];    /* conv state, behind the slots that of prefixes; or keys by page */
  TG_ADDRESS(char) values[TG_SHARE_LAYERS];  /* by page; 0: of a conv layer */
  uint64_t conv_bytes;                       /* of a slot's state */
  uint64_t page_bytes;                       /* of a page's keys */
  uint32_t ends;                             /* 1: sequences leave it at borders; 0: they start with it */
  uint32_t pad;
} tg_share_args;

#endif
