/* linear_bf16.cu: linear.cuh for bf16 rows and weights. */
#include "linear.cuh"

using Math = HalfMath<__nv_bfloat16>;
LINEAR_KERNEL(tg_linear_bf16_r8, LinearTile8<Math>)
LINEAR_KERNEL(tg_linear_bf16_r32, LinearTile32<Math>)
LINEAR_KERNEL(tg_linear_bf16_r64, LinearTile64<Math>)
LINEAR_KERNEL(tg_linear_bf16_r128, LinearTile128<Math>)
