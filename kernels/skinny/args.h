/* args.h: what the kernels of skinny/ are launched with, by value (common/address.h). H is the hidden size, R the rows of
 * the bucket, E the experts, k of a row; rows are of the operand type, matrices of the weights' type, all else is f32. */
#ifndef TAILGRAPH_SKINNY_ARGS_H
#define TAILGRAPH_SKINNY_ARGS_H

#include "abi.h"
#include "common/address.h"
#include "common/args.h"

/* Sizes that these kernels and their launchers both go by. */
#define TG_SKINNY_ROWS 8u            /* of a batch, at most */
#define TG_SKINNY_STAGE_ROWS 8u      /* weight rows of a stage: half the M of an instruction */
#define TG_SKINNY_OUTPUTS 16u        /* weight rows of a tile */
#define TG_SKINNY_K 2048u            /* of a stage, at most: 8 units a warp; a bulk copy takes some 80 cycles, however short */
#define TG_SKINNY_UNIT 32u           /* of K: two instructions, 16 bytes of a 16-bit weight row in each of 4 lanes */
#define TG_SKINNY_CONSUMER_WARPS 8u
#define TG_SKINNY_PARTS_ROWS 2u       /* of a bucket, at most, whose rows are stored in parts */
#define TG_SKINNY_F16_PARTS 2u        /* rows of f16 whose sum is one of bf16, beside weights in 8 bits, in a bucket of up to as many rows */
#define TG_SKINNY_MOST_STAGES 16u
#define TG_SKINNY_ROW_PLACES 3u       /* for a stage's columns of 16-bit rows beside weights in 8 bits: two are copied ahead */
#define TG_SKINNY_LINE 128u          /* bytes of shared memory that a bulk copy writes at once */
#define TG_SKINNY_SUM_PITCH (TG_SKINNY_OUTPUTS + 4u)    /* pairs of rows of a warp's sums lie in different banks */
#define TG_SKINNY_LOOSE_SUM_PLACES 3u  /* for a tile's sums beside weights in 8 bits (SkinnySums) */
#define TG_SKINNY_SCORE_PITCH (TG_SKINNY_OUTPUTS + 1u)  /* floats between rows of what a tile of h makes scores of */
#define TG_SKINNY_CHOICE_BYTES 2176u    /* of SkinnyChoice (skinny/choice.cuh), with one word of bits */
#define TG_SKINNY_CHOICE_BYTES_2 4256u  /* with two */
#define TG_SKINNY_PREDICTION_EXPERTS TG_SKINNY_CONSUMER_WARPS  /* of a block that predicts, for each word of bits: one a warp */
#define TG_SKINNY_PREDICTION_BEST 2u      /* of a block's experts that it publishes */

/* What the blocks of a layer's first kernel that predict its experts read (skinny/prediction.cuh); without blocks there is no prediction.
 * They mark `fused_y_pieces` of 16 bytes at `fused_y` as missing (skinny/fused.cuh). */
typedef struct tg_skinny_prediction_args {
  TG_ADDRESS(const void) router;              /* bf16 [E,H] whatever the model's types are: the gate times the norm's weight */
  TG_ADDRESS(const float) bias;               /* [E] or null */
  TG_ADDRESS(void) routing;                   /* as skinny/choice.cuh has them */
  TG_ADDRESS(struct uint4) fused_y;           /* y of tg_skinny_experts_* of this layer, or null */
  uint32_t fused_y_pieces;
  uint32_t expert_count;
  uint32_t blocks;
  uint32_t layer;
} tg_skinny_prediction_args;

/* skinny/conv.cu */
typedef struct tg_skinny_conv_args {
  TG_ADDRESS(void) x;                         /* [R,H] */
  TG_ADDRESS(void) columns;                   /* [slots,L-1,H] */
  TG_ADDRESS(const float) h;                  /* [R,H] */
  TG_ADDRESS(const float) norm_weight;        /* [H] */
  TG_ADDRESS(const void) w;                   /* [3H,H] */
  TG_ADDRESS(const float) bias;               /* [3H] or null */
  TG_ADDRESS(const float) taps;               /* [H,L] */
  TG_ADDRESS(const float) taps_bias;          /* [H] or null */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  tg_skinny_prediction_args prediction;
  uint32_t hidden;
  uint32_t length;                            /* L */
  uint32_t bucket;                            /* rows */
  uint32_t stages;                            /* of the pipeline */
  float eps;
  uint32_t pad;
  TG_ADDRESS(const float) scale;              /* [3H], of weights in 8 bits */
} tg_skinny_conv_args;

/* skinny/norm.cu. With `best`, [S,blocks], the rows are the sampled ones; y is f32, and only rows that need more are written. */
typedef struct tg_skinny_norm_args {
  TG_ADDRESS(void) y;                         /* [R,N] */
  TG_ADDRESS(unsigned long long) best;        /* or null */
  TG_ADDRESS(const float) h;                  /* [R,H] */
  TG_ADDRESS(const float) norm_weight;        /* [H] */
  TG_ADDRESS(const void) w;                   /* [N,H] */
  TG_ADDRESS(const tg_state) state;
  TG_ADDRESS(const tg_step) step;
  tg_skinny_prediction_args prediction;
  uint32_t outputs;                           /* N */
  uint32_t hidden;
  uint32_t bucket;                            /* rows */
  uint32_t stages;                            /* of the pipeline */
  float eps;
  uint32_t pad;
  TG_ADDRESS(const void) up;                  /* [N,H], of tg_skinny_gate_up_*, whose gate is w */
  TG_ADDRESS(const float) scale;              /* [N], of weights in 8 bits */
  TG_ADDRESS(const float) up_scale;           /* [N] */
} tg_skinny_norm_args;

/* skinny/add.cu; tg_skinny_held_out_*, which has no pipeline, reads no `stages`. */
typedef struct tg_skinny_add_args {
  TG_ADDRESS(float) h;                        /* [R,N] */
  TG_ADDRESS(const void) x;                   /* [R,K]; of experts [R k,K] */
  TG_ADDRESS(const void) w;                   /* [N,K]; of experts each one's, packed */
  TG_ADDRESS(const float) bias;               /* [N] or null */
  TG_ADDRESS(void) routing;                   /* as skinny/choice.cuh has them, or null */
  TG_ADDRESS(const float) router;             /* [E,N], with routing */
  TG_ADDRESS(const float) norm_weight;        /* [N], with routing */
  TG_ADDRESS(const tg_step) step;
  uint32_t outputs;                           /* N */
  uint32_t inner;                             /* K */
  uint32_t expert_count;
  uint32_t bucket;                            /* rows */
  uint32_t stages;                            /* of the pipeline */
  uint32_t k;                                 /* this and what follows: of experts */
  TG_ADDRESS(const float) weights;            /* [R,k] */
  uint64_t stride;                            /* elements from one expert's to the next's */
  TG_ADDRESS(const float) scale;              /* [N], of weights in 8 bits; of experts each one's */
} tg_skinny_add_args;

/* skinny/experts.cu: the experts that it chooses. tg_skinny_expert_gate_up_* only reads h. */
typedef struct tg_skinny_experts_args {
  TG_ADDRESS(void) y;                         /* [R k,N] */
  TG_ADDRESS(float) h;                        /* [R,H] */
  TG_ADDRESS(const float) norm_weight;        /* [H] */
  TG_ADDRESS(const void) gate;                /* [N,H] of each expert, packed */
  TG_ADDRESS(const void) up;                  /* [N,H] of each expert, packed */
  uint64_t stride;                            /* elements from one expert's to the next's, of gate and of up */
  TG_ADDRESS(uint32_t) experts;               /* out: [R,k] */
  TG_ADDRESS(float) weights;                  /* out: [R,k] */
  TG_ADDRESS(void) routing;                   /* as skinny/choice.cuh has them */
  TG_ADDRESS(const float) bias;               /* [E] or null */
  TG_ADDRESS(const tg_step) step;
  uint32_t outputs;                           /* N */
  uint32_t hidden;
  uint32_t expert_count;
  uint32_t k;
  uint32_t normalize;                         /* weights of a row add up to `scaling` */
  float scaling;
  uint32_t layer;                             /* whose experts were predicted */
  uint32_t bucket;                            /* rows */
  uint32_t stages;                            /* of the pipeline */
  float eps;
  TG_ADDRESS(const void) down;                /* [H,N] of each expert, packed; this and what follows: of tg_skinny_experts_* */
  uint64_t down_stride;                       /* elements from one expert's to the next's */
  TG_ADDRESS(const float) gate_scale;         /* [N] of each expert, of weights in 8 bits; so are these */
  TG_ADDRESS(const float) up_scale;           /* [N] */
  TG_ADDRESS(const float) down_scale;         /* [H] */
} tg_skinny_experts_args;

#endif
