/* linear_f16.cu: linear.cuh for f16 rows and weights. */
#include "linear.cuh"

using Math = HalfMath<__half>;
LINEAR_KERNEL(tg_linear_f16_r8, LinearTile8<Math>)
LINEAR_KERNEL(tg_linear_f16_r32, LinearTile32<Math>)
LINEAR_KERNEL(tg_linear_f16_r64, LinearTile64<Math>)
LINEAR_KERNEL(tg_linear_f16_r128, LinearTile128<Math>)
