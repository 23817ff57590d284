/* linear_f32.cu: linear.cuh for f32 rows; weights in the checkpoint's own type. */
#include "linear.cuh"

LINEAR_KERNEL(tg_linear_f32_bf16_r8, LinearTile8<SplitMath>)
LINEAR_KERNEL(tg_linear_f32_bf16_r32, LinearTile32<SplitMath>)
LINEAR_KERNEL(tg_linear_f32_bf16_r64, LinearTile64<SplitMath>)
LINEAR_KERNEL(tg_linear_f32_bf16_r128, LinearTile128<SplitMath>)

LINEAR_KERNEL(tg_linear_f32_f16_r8, LinearTile8<PlainMath<__half>>)
LINEAR_KERNEL(tg_linear_f32_f16_r64, LinearTile64<PlainMath<__half>>)

LINEAR_KERNEL(tg_linear_f32_f32_r8, LinearTile8<PlainMath<float>>)
LINEAR_KERNEL(tg_linear_f32_f32_r64, LinearTile64<PlainMath<float>>)
