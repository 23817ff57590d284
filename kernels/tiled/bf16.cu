/* bf16.cu: tiled/tiled.cuh for bf16 rows and weights. */
#include "tiled/tiled.cuh"

using Math = HalfMath<__nv_bfloat16>;
TILED_KERNEL(tg_tiled_bf16_r8, TiledTile8<Math>)
TILED_KERNEL(tg_tiled_bf16_r32, TiledTile32<Math>)
TILED_KERNEL(tg_tiled_bf16_r64, TiledTile64<Math>)
TILED_KERNEL(tg_tiled_bf16_r128, TiledTile128<Math>)
