// build: sm_90a types e4m3
/* swap_ab.cu: the kernels of swap_ab/, for rows and weights of one 16-bit type, for f32 rows and bf16 weights, and for rows of bf16 and f32 with
 * weights in 8 bits, which the LM head has not. */
#include "swap_ab/conv.cuh"
#include "swap_ab/head.cuh"

#define SWAP_AB_HALF(TYPE, T)                                                                             \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_##TYPE##_r16, SwapAbTile<Direct<T>, 16, 1, 64>)                           \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_##TYPE##_r32, SwapAbTile<Direct<T>, 32, 1, 64>)                           \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_##TYPE##_r64, SwapAbTile<Direct<T>, 64, 1, 64>)                           \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_many_##TYPE##_r64_w128, SwapAbTile<Direct<T>, 64, 2, 64>)                 \
  SWAP_AB_PRODUCT(tg_swap_ab_shared_many_##TYPE##_r64_w192, SwapAbTile<Direct<T>, 64, 3, 64>)                 \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_##TYPE##_r16, SwapAbTile<Direct<T>, 16, 2, 64, SWAP_AB_ALONE>)             \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_##TYPE##_r32, SwapAbTile<Direct<T>, 32, 2, 64, SWAP_AB_ALONE>)             \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_##TYPE##_r64, SwapAbTile<Direct<T>, 64, 2, 64, SWAP_AB_ALONE>)             \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_##TYPE##_r128, SwapAbTile<Direct<T>, 128, 2, 64, SWAP_AB_ALONE>)           \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_##TYPE##_r256, SwapAbTile<Direct<T>, 256, 2, 64, SWAP_AB_ALONE>)           \
  SWAP_AB_CONV(tg_swap_ab_conv_##TYPE##_r16, SwapAbTile<Direct<T>, 16, 3, 32>)                                \
  SWAP_AB_CONV(tg_swap_ab_conv_##TYPE##_r32, SwapAbTile<Direct<T>, 32, 3, 32>)                                \
  SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_##TYPE##_r64, SwapAbTile<Direct<T>, 64, 1, 16, SWAP_AB_ALONE, true>)       \
  SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_##TYPE##_r128, SwapAbTile<Direct<T>, 64, 1, 32, SWAP_AB_MULTICAST, true>)  \
  SWAP_AB_CONV_ROWS(tg_swap_ab_conv_rows_##TYPE##_r256, SwapAbTile<Direct<T>, 128, 2, 32, SWAP_AB_MULTICAST, true>) \
  SWAP_AB_HEAD(tg_swap_ab_head_##TYPE##_r16, SwapAbTile<Direct<T>, 16, 2, 64, SWAP_AB_ALONE>)                 \
  SWAP_AB_HEAD(tg_swap_ab_head_##TYPE##_r32, SwapAbTile<Direct<T>, 32, 4, 64, SWAP_AB_ALONE>)                 \
  SWAP_AB_HEAD(tg_swap_ab_head_##TYPE##_r64, SwapAbTile<Direct<T>, 64, 4, 64, SWAP_AB_ALONE>)                 \
  SWAP_AB_HEAD(tg_swap_ab_head_multicast_##TYPE##_r128, SwapAbTile<Direct<T>, 128, 4, 64, SWAP_AB_MULTICAST>) \
  SWAP_AB_HEAD(tg_swap_ab_head_multicast_##TYPE##_r256, SwapAbTile<Direct<T>, 256, 2, 64, SWAP_AB_MULTICAST>)
FOR_HALF_TYPES(SWAP_AB_HALF)

/* An in-projection's tile of weights in 8 bits: six warps have the weight rows. */
template <class Rows, int ROWS>
using SwapAbConvE4m3 = SwapAbTile<WeightsE4m3<Rows>, ROWS, 2, 32, SWAP_AB_SPLIT_K, false, 3>;
using RowsE4m3 = WeightsE4m3<Direct<__nv_bfloat16>>;
OF_BF16_E4M3(
  SWAP_AB_PRODUCT(tg_swap_ab_shared_bf16_e4m3_r16, SwapAbTile<RowsE4m3, 16, 1, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_shared_bf16_e4m3_r32, SwapAbTile<RowsE4m3, 32, 1, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_shared_bf16_e4m3_r64, SwapAbTile<RowsE4m3, 64, 1, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_shared_many_bf16_e4m3_r64_w128, SwapAbTile<RowsE4m3, 64, 2, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_shared_many_bf16_e4m3_r64_w192, SwapAbTile<RowsE4m3, 64, 3, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_e4m3_r16, SwapAbTile<RowsE4m3, 16, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_e4m3_r32, SwapAbTile<RowsE4m3, 32, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_e4m3_r64, SwapAbTile<RowsE4m3, 64, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_e4m3_r128, SwapAbTile<RowsE4m3, 128, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_bf16_e4m3_r256, SwapAbTile<RowsE4m3, 256, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_CONV(tg_swap_ab_conv_bf16_e4m3_r16, SwapAbConvE4m3<Direct<__nv_bfloat16>, 16>)
  SWAP_AB_CONV(tg_swap_ab_conv_bf16_e4m3_r32, SwapAbConvE4m3<Direct<__nv_bfloat16>, 32>)
  SWAP_AB_CONV(tg_swap_ab_conv_bf16_e4m3_r64, SwapAbConvE4m3<Direct<__nv_bfloat16>, 64>)
  SWAP_AB_CONV(tg_swap_ab_conv_bf16_e4m3_r128, SwapAbConvE4m3<Direct<__nv_bfloat16>, 128>))
OF_F32_E4M3(
  SWAP_AB_PRODUCT(tg_swap_ab_shared_f32_e4m3_r16, SwapAbTile<WeightsE4m3<Bf16x3>, 16, 1, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_shared_f32_e4m3_r32, SwapAbTile<WeightsE4m3<Bf16x3>, 32, 1, 64>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_f32_e4m3_r16, SwapAbTile<WeightsE4m3<Bf16x3>, 16, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_PRODUCT(tg_swap_ab_alone_f32_e4m3_r32, SwapAbTile<WeightsE4m3<Bf16x3>, 32, 2, 64, SWAP_AB_ALONE>)
  SWAP_AB_CONV(tg_swap_ab_conv_f32_e4m3_r16, SwapAbConvE4m3<Bf16x3, 16>)
  SWAP_AB_CONV(tg_swap_ab_conv_f32_e4m3_r32, SwapAbConvE4m3<Bf16x3, 32>))

#if !defined TG_NO_F32 && !defined TG_E4M3_ALONE
SWAP_AB_PRODUCT(tg_swap_ab_shared_f32_r16, SwapAbTile<Bf16x3, 16, 1, 64>)
SWAP_AB_PRODUCT(tg_swap_ab_shared_f32_r32, SwapAbTile<Bf16x3, 32, 1, 64>)
SWAP_AB_CONV(tg_swap_ab_conv_f32_r16, SwapAbTile<Bf16x3, 16, 3, 32>)
SWAP_AB_CONV(tg_swap_ab_conv_f32_r32_many, SwapAbTile<Bf16x3, 32, 3, 64>)
#define SWAP_AB_F32(ROWS)                                                                       \
  SWAP_AB_PRODUCT(tg_swap_ab_alone_f32_r##ROWS, SwapAbTile<Bf16x3, ROWS, 2, 64, SWAP_AB_ALONE>) \
  SWAP_AB_HEAD(tg_swap_ab_head_f32_r##ROWS, SwapAbTile<Bf16x3, ROWS, 2, 64, SWAP_AB_ALONE>)
SWAP_AB_F32(16)
SWAP_AB_F32(32)
SWAP_AB_F32(64)
#endif
