/* dense.cpp: kernels of dense products, and of experts by tiles, that the host can run, as kernels.cpp has them. */
#include "hopper.h"
#include "known.h"

#include "swap_ab/conv.cuh"
#include "swap_ab/head.cuh"
#include "tiled/tiled.cuh"

thread_local uint4 shared[simt::SHARED_BYTES / sizeof(uint4)];

/* Each has a type of the same name. */
namespace swap_ab_bf16 {
#include "swap_ab/bf16.cu"
}
namespace swap_ab_f16 {
#include "swap_ab/f16.cu"
}
namespace swap_ab_f32 {
#include "swap_ab/f32.cu"
}
namespace tiled_bf16 {
#include "tiled/bf16.cu"
}
namespace tiled_f16 {
#include "tiled/f16.cu"
}
namespace tiled_f32 {
#include "tiled/f32.cu"
}

#undef SWAP_AB
#define SWAP_AB(TYPE, NAME) WITH(::shared, swap_ab_##TYPE, tg_swap_ab_##NAME)
#define SWAP_AB_EACH(TYPE)                                                                                                            \
  SWAP_AB(TYPE, shared_##TYPE##_r16), SWAP_AB(TYPE, shared_##TYPE##_r32), SWAP_AB(TYPE, alone_##TYPE##_r16),                          \
  SWAP_AB(TYPE, alone_##TYPE##_r32), SWAP_AB(TYPE, alone_##TYPE##_r64), SWAP_AB(TYPE, conv_##TYPE##_r16),                             \
  SWAP_AB(TYPE, head_##TYPE##_r16), SWAP_AB(TYPE, head_##TYPE##_r32), SWAP_AB(TYPE, head_##TYPE##_r64)
#define SWAP_AB_PAIR(NAME, ROWS) SWAP_AB(bf16, NAME##_bf16_##ROWS), SWAP_AB(f16, NAME##_f16_##ROWS)
#define TILED(TYPE, NAME) WITH(::shared, tiled_##TYPE, tg_tiled_##NAME)
#define TILED_EACH(TYPE, NAME) TILED(TYPE, NAME##_r8), TILED(TYPE, NAME##_r32), TILED(TYPE, NAME##_r64), TILED(TYPE, NAME##_r128)

static const bool KNOWN = know({
  SWAP_AB_EACH(bf16), SWAP_AB_EACH(f16), SWAP_AB_EACH(f32), SWAP_AB(f32, conv_f32_r32_many), SWAP_AB_PAIR(shared, r64),
  SWAP_AB_PAIR(shared_many, r64_w128), SWAP_AB_PAIR(shared_many, r64_w192), SWAP_AB_PAIR(alone, r128), SWAP_AB_PAIR(alone, r256),
  SWAP_AB_PAIR(conv, r32), SWAP_AB_PAIR(conv_rows, r64), SWAP_AB_PAIR(conv_rows, r128), SWAP_AB_PAIR(conv_rows, r256),
  SWAP_AB_PAIR(head_multicast, r128), SWAP_AB_PAIR(head_multicast, r256),
  TILED_EACH(bf16, bf16), TILED_EACH(f16, f16), TILED_EACH(f32, f32_bf16), TILED(f32, f32_f16_r8), TILED(f32, f32_f16_r64),
  TILED(f32, f32_f32_r8), TILED(f32, f32_f32_r64),
});
