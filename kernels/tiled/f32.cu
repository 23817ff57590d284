/* f32.cu: tiled/tiled.cuh for f32 rows; weights in the checkpoint's own type. */
#include "tiled/tiled.cuh"

TILED_KERNEL(tg_tiled_f32_bf16_r8, TiledTile8<SplitMath>)
TILED_KERNEL(tg_tiled_f32_bf16_r32, TiledTile32<SplitMath>)
TILED_KERNEL(tg_tiled_f32_bf16_r64, TiledTile64<SplitMath>)
TILED_KERNEL(tg_tiled_f32_bf16_r128, TiledTile128<SplitMath>)

TILED_KERNEL(tg_tiled_f32_f16_r8, TiledTile8<PlainMath<__half>>)
TILED_KERNEL(tg_tiled_f32_f16_r64, TiledTile64<PlainMath<__half>>)

TILED_KERNEL(tg_tiled_f32_f32_r8, TiledTile8<PlainMath<float>>)
TILED_KERNEL(tg_tiled_f32_f32_r64, TiledTile64<PlainMath<float>>)
