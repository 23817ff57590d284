/* dense.cpp: kernels of dense products, and of experts by tiles, that the host can run, as kernels.cpp has them. */
#include "hopper.h"
#include "known.h"

#include "swap_ab/conv.cuh"
#include "swap_ab/head.cuh"
#include "tiled/tiled.cuh"

thread_local uint4 shared[simt::SHARED_BYTES / sizeof(uint4)];

namespace dense {
#include "swap_ab/swap_ab.cu"
#include "tiled/tiled.cu"
}

#define SWAP_AB(NAME) WITH(::shared, dense, tg_swap_ab_##NAME)
#define SWAP_AB_EACH(TYPE)                                                                                                           \
  SWAP_AB(shared_##TYPE##_r16), SWAP_AB(shared_##TYPE##_r32), SWAP_AB(alone_##TYPE##_r16), SWAP_AB(alone_##TYPE##_r32),              \
  SWAP_AB(alone_##TYPE##_r64), SWAP_AB(conv_##TYPE##_r16), SWAP_AB(head_##TYPE##_r16), SWAP_AB(head_##TYPE##_r32), SWAP_AB(head_##TYPE##_r64)
#define SWAP_AB_PAIR(NAME, ROWS) SWAP_AB(NAME##_bf16_##ROWS), SWAP_AB(NAME##_f16_##ROWS)
#define TILED(NAME) WITH(::shared, dense, tg_tiled_##NAME)
#define TILED_EACH(NAME) TILED(NAME##_r8), TILED(NAME##_r32), TILED(NAME##_r64), TILED(NAME##_r128)

static const bool KNOWN = know({
  SWAP_AB_EACH(bf16), SWAP_AB_EACH(f16), SWAP_AB_EACH(f32), SWAP_AB(conv_f32_r32_many), SWAP_AB_PAIR(shared, r64),
  SWAP_AB_PAIR(shared_many, r64_w128), SWAP_AB_PAIR(shared_many, r64_w192), SWAP_AB_PAIR(alone, r128), SWAP_AB_PAIR(alone, r256),
  SWAP_AB_PAIR(conv, r32), SWAP_AB_PAIR(conv_rows, r64), SWAP_AB_PAIR(conv_rows, r128), SWAP_AB_PAIR(conv_rows, r256),
  SWAP_AB_PAIR(head_multicast, r128), SWAP_AB_PAIR(head_multicast, r256),
  SWAP_AB(shared_bf16_e4m3_r16), SWAP_AB(shared_bf16_e4m3_r32), SWAP_AB(shared_bf16_e4m3_r64), SWAP_AB(shared_many_bf16_e4m3_r64_w128),
  SWAP_AB(shared_many_bf16_e4m3_r64_w192), SWAP_AB(alone_bf16_e4m3_r16), SWAP_AB(alone_bf16_e4m3_r32), SWAP_AB(alone_bf16_e4m3_r64),
  SWAP_AB(alone_bf16_e4m3_r128), SWAP_AB(alone_bf16_e4m3_r256), SWAP_AB(conv_bf16_e4m3_r16), SWAP_AB(conv_bf16_e4m3_r32),
  SWAP_AB(conv_bf16_e4m3_r64), SWAP_AB(conv_bf16_e4m3_r128), SWAP_AB(shared_f32_e4m3_r16), SWAP_AB(shared_f32_e4m3_r32),
  SWAP_AB(alone_f32_e4m3_r16), SWAP_AB(alone_f32_e4m3_r32), SWAP_AB(conv_f32_e4m3_r16), SWAP_AB(conv_f32_e4m3_r32),
  TILED_EACH(bf16), TILED_EACH(f16), TILED_EACH(f32_bf16), TILED_EACH(bf16_e4m3), TILED(f32_e4m3_r8), TILED(f32_e4m3_r32),
  TILED(f32_e4m3_r64), TILED(f32_f16_r8), TILED(f32_f16_r64), TILED(f32_f32_r8), TILED(f32_f32_r64),
});
