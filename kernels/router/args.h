/* args.h: what the kernels of router/ are launched with, by value. Plain C for both sides: kernels include it, and Rust has it
 * through bindgen. Addresses are as common/address.h says. H is the hidden size, R the rows of the bucket, E the experts, K of a row. */
#ifndef TAILGRAPH_ROUTER_ARGS_H
#define TAILGRAPH_ROUTER_ARGS_H

#include "abi.h"
#include "common/address.h"

/* tg_scores_* of router/router.cu */
typedef struct tg_scores_args {
  TG_ADDRESS(float) scores;                /* [R,E] */
  TG_ADDRESS(void) x;                      /* [R,H] */
  TG_ADDRESS(const float) h;               /* [R,H] */
  TG_ADDRESS(const float) norm_weight;     /* [H] */
  TG_ADDRESS(const float) gate;            /* [E,H] */
  TG_ADDRESS(const tg_step) step;
  uint32_t hidden;
  uint32_t expert_count;
  float eps;
  uint32_t pad;
} tg_scores_args;

/* What a kernel reads and leaves that norms rows and chooses their experts. */
typedef struct tg_choosing_args {
  TG_ADDRESS(uint32_t) experts;            /* [R,K] */
  TG_ADDRESS(float) weights;               /* [R,K] */
  TG_ADDRESS(void) x;                      /* [R,H] */
  TG_ADDRESS(const float) h;               /* [R,H] */
  TG_ADDRESS(const float) norm_weight;     /* [H] */
  TG_ADDRESS(const float) gate;            /* [E,H] */
  TG_ADDRESS(const float) bias;            /* [E] or null */
  TG_ADDRESS(const tg_step) step;
} tg_choosing_args;

/* tg_router_* of router/router.cu, beside tg_choosing_args */
typedef struct tg_router_args {
  uint32_t hidden;
  uint32_t expert_count;
  uint32_t k;
  uint32_t normalize;                      /* weights of a row add up to `scaling` */
  float scaling;
  float eps;
} tg_router_args;

/* router/norm_router.cu and norm_router_many.cu, beside tg_choosing_args, hidden, expert_count, k, normalize and scaling as arguments of
 * their own: kernels/README.md, "Adding a kernel", says why. */
typedef struct tg_route_args {
  TG_ADDRESS(uint32_t) counts;             /* set to zeros (clear_counts) */
  float eps;
  uint32_t rows_each;                      /* of a cluster */
} tg_route_args;

/* router/sort_combine.cu */
typedef struct tg_sort_tokens_args {
  TG_ADDRESS(struct ExpertTile) tiles;
  TG_ADDRESS(uint32_t) tile_count;
  TG_ADDRESS(uint32_t) rows;               /* [R K], by place */
  TG_ADDRESS(uint32_t) place;              /* [R K], by pair */
  TG_ADDRESS(const uint32_t) experts;      /* [R,K] */
  TG_ADDRESS(const tg_step) step;
  uint32_t k;
  uint32_t tile_rows;
} tg_sort_tokens_args;

/* router/sort_combine.cu */
typedef struct tg_choose_and_sort_args {
  TG_ADDRESS(struct ExpertTile) tiles;
  TG_ADDRESS(uint32_t) tile_count;
  TG_ADDRESS(uint32_t) rows;               /* [R K], by place */
  TG_ADDRESS(uint32_t) place;              /* [R K], by pair */
  TG_ADDRESS(uint32_t) experts;            /* out: [R,K] */
  TG_ADDRESS(float) weights;               /* out: [R,K] */
  TG_ADDRESS(const float) scores;          /* [R,E] */
  TG_ADDRESS(const float) bias;            /* [E] or null */
  TG_ADDRESS(const tg_step) step;
  uint32_t expert_count;
  uint32_t k;
  uint32_t normalize;                      /* weights of a row add up to `scaling` */
  float scaling;
  uint32_t tile_rows;
  uint32_t pad;
} tg_choose_and_sort_args;

/* router/sort_combine.cu */
typedef struct tg_combine_args {
  TG_ADDRESS(float) h;                     /* [R,H] */
  TG_ADDRESS(const void) y;                /* [R K,H] */
  TG_ADDRESS(const float) weights;         /* [R,K] */
  TG_ADDRESS(const uint32_t) place;        /* [R K] or null */
  TG_ADDRESS(void) x;                      /* [R,H], with norm_weight */
  TG_ADDRESS(const float) norm_weight;     /* [H] or null */
  TG_ADDRESS(const tg_step) step;
  uint32_t hidden;
  uint32_t k;
  float eps;
  uint32_t known;                          /* all that it reads but y is there before the wait */
} tg_combine_args;

#endif
