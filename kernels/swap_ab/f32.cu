// build: sm_90a
/* f32.cu: swap_ab/swap_ab.cuh for f32 rows and bf16 weights. */
#include "swap_ab/conv.cuh"
#include "swap_ab/head.cuh"

#define SWAP_AB(ROWS)                                                             \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_f32_r##ROWS, SwapAbTile<Bf16x3, ROWS, 1, 64>) \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_f32_r##ROWS, SwapAbTile<Bf16x3, ROWS, 2, 64, SWAP_AB_ALONE>)
SWAP_AB(16)
SWAP_AB(32)
SWAP_AB_PRODUCT(tg_swap_ab_alone_f32_r64, SwapAbTile<Bf16x3, 64, 2, 64, SWAP_AB_ALONE>)

SWAP_AB_CONV(tg_swap_ab_conv_f32_r16, SwapAbTile<Bf16x3, 16, 3, 32>)
SWAP_AB_CONV(tg_swap_ab_conv_f32_r32_many, SwapAbTile<Bf16x3, 32, 3, 64>)

SWAP_AB_HEAD(tg_swap_ab_head_f32_r16, SwapAbTile<Bf16x3, 16, 2, 64, SWAP_AB_ALONE>)
SWAP_AB_HEAD(tg_swap_ab_head_f32_r32, SwapAbTile<Bf16x3, 32, 2, 64, SWAP_AB_ALONE>)
SWAP_AB_HEAD(tg_swap_ab_head_f32_r64, SwapAbTile<Bf16x3, 64, 2, 64, SWAP_AB_ALONE>)
