// build: sm_90a
/* bf16.cu: swap_ab/swap_ab.cuh for bf16 rows and weights. */
#include "swap_ab/conv.cuh"
#include "swap_ab/head.cuh"

using Math = SwapAbHalf<__nv_bfloat16>;

#define SWAP_AB(ROWS) SWAP_AB_PRODUCT(tg_swap_ab_shared_bf16_r##ROWS, SwapAbTile<Math, ROWS, 1, 64>)
SWAP_AB(16)
SWAP_AB(32)
SWAP_AB(64)
SWAP_AB_PRODUCT(tg_swap_ab_shared_many_bf16_r64_w128, SwapAbTile<Math, 64, 2, 64>)
SWAP_AB_PRODUCT(tg_swap_ab_shared_many_bf16_r64_w192, SwapAbTile<Math, 64, 3, 64>)

#define SWAP_AB_ALONE(ROWS) SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_r##ROWS, SwapAbTile<Math, ROWS, 2, 64, SWAP_AB_LONE>)
SWAP_AB_ALONE(16)
SWAP_AB_ALONE(32)
SWAP_AB_ALONE(64)
SWAP_AB_ALONE(128)
SWAP_AB_ALONE(256)

SWAP_AB_CONV(tg_swap_ab_conv_bf16_r16, SwapAbTile<Math, 16, 3, 32>)
SWAP_AB_CONV(tg_swap_ab_conv_bf16_r32, SwapAbTile<Math, 32, 3, 32>)
SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_bf16_r64, SwapAbRowsTile<Math, 1, 16, 1>)
SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_bf16_r128, SwapAbRowsTile<Math, 1, 32, 2>)
SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_bf16_r256, SwapAbRowsTile<Math, 2, 32, 2>)

SWAP_AB_HEAD(tg_swap_ab_head_bf16_r16, SwapAbTile<Math, 16, 2, 64, SWAP_AB_LONE>)
SWAP_AB_HEAD(tg_swap_ab_head_bf16_r32, SwapAbTile<Math, 32, 4, 64, SWAP_AB_LONE>)
SWAP_AB_HEAD(tg_swap_ab_head_bf16_r64, SwapAbTile<Math, 64, 4, 64, SWAP_AB_LONE>)
SWAP_AB_HEAD(tg_swap_ab_head_mates_bf16_r128, SwapAbTile<Math, 128, 4, 64, SWAP_AB_MATES>)
SWAP_AB_HEAD(tg_swap_ab_head_mates_bf16_r256, SwapAbTile<Math, 256, 2, 64, SWAP_AB_MATES>)
