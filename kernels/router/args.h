/* args.h: what the kernels of router/ are launched with, by value (common/address.h). H is the hidden size, R the rows of
 * the bucket, E the experts, k of a row. */
#ifndef TAILGRAPH_ROUTER_ARGS_H
#define TAILGRAPH_ROUTER_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_SORT_THREADS 1024u        /* at most */
#define TG_SORT_BLOCKS 8u            /* of the cluster of tg_sort_tokens_many */
#define TG_COMBINE_ROWS 2u           /* of a block of tg_combine_*, at most */
#define TG_COMBINE_FOUR 4u           /* experts a row that tg_combine_four_* takes, at most */
#define TG_ROUTER_MANY_ROWS 8u       /* of a block of tg_router_many_*, a warp each */
/* router/norm_router.cu, all of the router of few rows: experts of a block at a time, blocks that share their columns, rows of a
 * cluster and columns, at most, and the words of bits of its instances. */
#define TG_ROUTE_EACH 8u
#define TG_ROUTE_SHARES 2u
#define TG_ROUTE_ROWS 8u
#define TG_ROUTE_HIDDEN (TG_ROUTE_SHARES * 4u * TG_NORM_THREADS)
#define TG_ROUTE_WORDS 2u
/* router/norm_router_many.cu, the same of many rows: threads of a block, and rows of a tile. */
#define TG_ROUTE_MANY_THREADS 512u
#define TG_ROUTE_MANY_ROWS 16u

/* Arrays of a kernel that norms rows and chooses their experts. */
typedef struct tg_choosing_args {
  TG_ADDRESS(uint32_t) experts;            /* [R,k] */
  TG_ADDRESS(float) weights;               /* [R,k] */
  TG_ADDRESS(void) x;                      /* [R,H] */
  TG_ADDRESS(const float) h;               /* [R,H] */
  TG_ADDRESS(const float) norm_weight;     /* [H] */
  TG_ADDRESS(const float) gate;            /* [E,H] */
  TG_ADDRESS(const float) bias;            /* [E] or null */
  TG_ADDRESS(const tg_step) step;
} tg_choosing_args;

/* Beside tg_choosing_args, hidden, expert_count, k, normalize and scaling as arguments of their own: kernels/README.md, "Adding a kernel",
 * says why. */
typedef struct tg_route_args {
  TG_ADDRESS(uint32_t) counts;             /* set to zeros (clear_counts) */
  float eps;
  uint32_t rows_each;                      /* of a cluster; router/router.cu reads none */
} tg_route_args;

/* router/sort_combine.cu */
typedef struct tg_sort_tokens_args {
  TG_ADDRESS(struct ExpertTile) tiles;
  TG_ADDRESS(uint32_t) tile_count;
  TG_ADDRESS(uint32_t) rows;               /* [R k], by place */
  TG_ADDRESS(uint32_t) place;              /* [R k], by pair */
  TG_ADDRESS(const uint32_t) experts;      /* [R,k] */
  TG_ADDRESS(const tg_step) step;
  uint32_t k;
  uint32_t tile_rows;
} tg_sort_tokens_args;

/* router/sort_combine.cu */
typedef struct tg_combine_args {
  TG_ADDRESS(float) h;                     /* [R,H] */
  TG_ADDRESS(const void) y;                /* [R k,H] */
  TG_ADDRESS(const float) weights;         /* [R,k] */
  TG_ADDRESS(const uint32_t) place;        /* [R k] or null */
  TG_ADDRESS(void) x;                      /* [R,H], with norm_weight */
  TG_ADDRESS(const float) norm_weight;     /* [H] or null */
  TG_ADDRESS(const tg_step) step;
  uint32_t hidden;
  uint32_t k;
  float eps;
  uint32_t known;                          /* all that it reads but y is there before the wait */
} tg_combine_args;

#endif
