/* args.h: what the kernels of attention/ are launched with, by value (common/address.h). D is the size of a head, R the rows
 * of the bucket; q, k and v of a row lie in qkv[R,(heads + 2 kv_heads) D], keys and values in [pages, kv_heads, page_tokens, D] of each. */
#ifndef TAILGRAPH_ATTENTION_ARGS_H
#define TAILGRAPH_ATTENTION_ARGS_H

#include "abi.h"
#include "common/address.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_ROPE_THREADS 128u
#define TG_ROPE_HEADS 16u            /* of a block of attention/rope.cu */
#define TG_TILE_PAIRS 64u            /* of a query row and a head, in a block of attention/tiles.cu */
#define TG_TILE_THREADS 128u
#define TG_LIST_THREADS 1024u        /* of the one block that lists query tiles */
#define TG_QUERY_TILE_BYTES 16u      /* of a QueryTile (attention/attention.cuh) */
#define TG_DECODE_SPLITS 32u         /* chunks of a row's keys, at most (attention/decode.cu) */
#define TG_DECODE_HEADS 8u           /* query heads of a block there */
#define TG_DECODE_HEADS_F32 4u       /* of f32 */
#define TG_PROMPT_PAIRS 128u         /* of a query row and a head, in a tile of attention/prompt.cu */
#define TG_PROMPT_MOST_PAIRS 192u    /* in a step of many tiles */
#define TG_PROMPT_THREADS 512u

/* attention/rope.cu */
typedef struct tg_qk_norm_rope_args {
  TG_ADDRESS(void) qkv;
  TG_ADDRESS(void) k_pages;
  TG_ADDRESS(void) v_pages;
  TG_ADDRESS(const float) q_weight;             /* [D] */
  TG_ADDRESS(const float) k_weight;             /* [D] */
  TG_ADDRESS(const float) inverse_frequencies;  /* [D / 2] */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  uint32_t heads;
  uint32_t kv_heads;
  float eps;
  uint32_t pad;
} tg_qk_norm_rope_args;

/* attention/decode.cu, beside heads, kv_heads, the bucket's rows, and keys and number of the parts that a sequence's keys are split into,
 * as arguments of their own: kernels/README.md, "Adding a kernel", says why. */
typedef struct tg_attention_decode_args {
  TG_ADDRESS(void) out;                         /* [R, heads D] */
  TG_ADDRESS(const void) qkv;                   /* as it was projected */
  TG_ADDRESS(void) k_pages;
  TG_ADDRESS(void) v_pages;
  TG_ADDRESS(const float) q_weight;             /* [D] */
  TG_ADDRESS(const float) k_weight;             /* [D] */
  TG_ADDRESS(const float) inverse_frequencies;  /* [D / 2] */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  TG_ADDRESS(float) partials;                   /* [R, splits, heads, D + 2] */
  TG_ADDRESS(uint32_t) done;                    /* [R, groups], 0 before and after */
  float scale;                                  /* of scores */
  float eps;
  uint32_t firsts_go_on;                        /* blocks take further chunks behind a row's first */
  uint32_t pad;
} tg_attention_decode_args;

/* attention/tiles.cu and prompt.cu, which have their rows from the tiles that tg_query_tiles left; prompt.cu has queries, keys and values
 * from tensor maps. */
typedef struct tg_attention_chunks_args {
  TG_ADDRESS(void) out;                         /* [R, heads D] */
  TG_ADDRESS(const void) qkv;
  TG_ADDRESS(const void) k_pages;
  TG_ADDRESS(const void) v_pages;
  TG_ADDRESS(const struct QueryTile) tiles;
  TG_ADDRESS(const uint32_t) tile_count;        /* and rows of a tile, at most */
  TG_ADDRESS(const tg_state) state;
  uint32_t heads;
  uint32_t kv_heads;
  float scale;                                  /* of scores */
  uint32_t box_keys;                            /* of a box of the maps of keys and of values */
} tg_attention_chunks_args;

#endif
