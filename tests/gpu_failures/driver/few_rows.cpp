/* few_rows.cpp: kernels for steps of few rows that the host can run, as kernels.cpp has them. */
#include "hopper.h"
#include "known.h"

#include "common/argmax.cuh"
#include "skinny/fused.cuh"
#include "skinny/prediction.cuh"
#include "skinny/norm.cuh"

namespace skinny {
using ::count_before;
thread_local uint4 shared[simt::SHARED_BYTES / sizeof(uint4)];
#include "skinny/add.cu"
#include "skinny/conv.cu"
#include "skinny/experts.cu"
#include "skinny/norm.cu"
}

#define ONE(NAME) WITH(skinny::shared, skinny, tg_skinny_##NAME)
#define OF_WORDS(NAME) ONE(NAME), ONE(NAME##_e64)
#define OF_TYPE(TYPE)                                                                                                             \
  OF_WORDS(conv_##TYPE), OF_WORDS(project_##TYPE), ONE(gate_up_##TYPE),                                                            \
  OF_WORDS(out_##TYPE), OF_WORDS(down_##TYPE), OF_WORDS(held_out_##TYPE), OF_WORDS(expert_gate_up_##TYPE)

static const bool KNOWN = know({
  OF_TYPE(bf16), OF_TYPE(f16), OF_TYPE(f32), OF_TYPE(f32_bf16x3), OF_WORDS(experts_bf16), OF_WORDS(experts_f16), ONE(experts_f32_bf16x3),
  OF_TYPE(bf16_e4m3), OF_TYPE(f32_e4m3), OF_TYPE(f32_e4m3_bf16x3), ONE(experts_f32_e4m3_bf16x3),
  OF_WORDS(conv_bf16_e4m3_f16x2), OF_WORDS(expert_gate_up_bf16_e4m3_f16x2), OF_WORDS(project_bf16_e4m3_f16x2), ONE(gate_up_bf16_e4m3_f16x2), OF_WORDS(held_out_bf16_e4m3_f16x2), OF_WORDS(down_bf16_e4m3_f16x2),
  OF_WORDS(experts_bf16_e4m3_f16x2),
});
