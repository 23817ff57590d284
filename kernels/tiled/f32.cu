/* f32.cu: tiled/tiled.cuh for f32 rows; weights in the checkpoint's own type. */
#include "tiled/tiled.cuh"

TILED_KERNELS(f32_bf16, Bf16x3Math)

/* Without matrix instructions two heights of tiles are enough. */
#define TILED_PLAIN(SUFFIX, W)                                              \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r8, TiledTile8<PlainMath<W>>)        \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r64, TiledTile64<PlainMath<W>>)
TILED_PLAIN(f16, __half)
TILED_PLAIN(f32, float)
