/* f16.cu: tiled/tiled.cuh for f16 rows and weights. */
#include "tiled/tiled.cuh"

using Math = HalfMath<__half>;
TILED_KERNEL(tg_tiled_f16_r8, TiledTile8<Math>)
TILED_KERNEL(tg_tiled_f16_r32, TiledTile32<Math>)
TILED_KERNEL(tg_tiled_f16_r64, TiledTile64<Math>)
TILED_KERNEL(tg_tiled_f16_r128, TiledTile128<Math>)
