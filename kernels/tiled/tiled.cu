// build: types
/* tiled.cu: the kernels of tiled/, for rows and weights of one 16-bit type and for f32 rows and weights in the checkpoint's own type. */
#include "tiled/tiled.cuh"

/* By rows of the bucket (or expected rows of an expert): few, so that blocks split N finely and warps split K; up to large square tiles. */
template <class Math> using TiledTile8 = TiledTile<Math, 16, 8, 256, 1, 1, 4>;
template <class Math> using TiledTile32 = TiledTile<Math, 32, 32, 128, 2, 1, 2>;
template <class Math> using TiledTile64 = TiledTile<Math, 64, 64, 64, 2, 2, 1>;
template <class Math> using TiledTile128 = TiledTile<Math, 128, 128, 32, 2, 4, 1>;

/* The kernels of rows and weights that take matrix instructions. */
#define TILED_KERNELS(SUFFIX, ...)                               \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r8, TiledTile8<__VA_ARGS__>)   \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r32, TiledTile32<__VA_ARGS__>) \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r64, TiledTile64<__VA_ARGS__>) \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r128, TiledTile128<__VA_ARGS__>)
#define TILED_HALF(SUFFIX, T) TILED_KERNELS(SUFFIX, HalfMath<T>)
FOR_HALF_TYPES(TILED_HALF)
OF_F32(TILED_KERNELS(f32_bf16, Bf16x3Math))

/* Without matrix instructions two heights of tiles are enough. */
#define TILED_PLAIN(SUFFIX, W)                                              \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r8, TiledTile8<PlainMath<W>>)        \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r64, TiledTile64<PlainMath<W>>)
OF_F32(TILED_PLAIN(f16, __half) TILED_PLAIN(f32, float))
