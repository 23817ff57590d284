// build: types e4m3
/* tiled.cu: the kernels of tiled/, for rows and weights of one 16-bit type, for f32 rows and weights in the checkpoint's own type, and for
 * bf16 and f32 rows and weights in 8 bits. */
#include "tiled/tiled.cuh"

/* By rows of the bucket (or expected rows of an expert): few, so that blocks split N finely and warps split K; up to large square tiles. */
template <class Math> using TiledTile8 = TiledTile<Math, 16, 8, 256, 1, 1, 4>;
template <class Math> using TiledTile32 = TiledTile<Math, 32, 32, 128, 2, 1, 2>;
template <class Math> using TiledTile64 = TiledTile<Math, 64, 64, 64, 2, 2, 1>;
template <class Math> using TiledTile128 = TiledTile<Math, 128, 128, sizeof(typename Math::W) == 1 ? 64 : 32, 2, 4, 1>;

/* The kernels of rows and weights that take matrix instructions. */
#define TILED_LOW_KERNELS(SUFFIX, ...)                           \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r8, TiledTile8<__VA_ARGS__>)   \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r32, TiledTile32<__VA_ARGS__>) \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r64, TiledTile64<__VA_ARGS__>)
#define TILED_KERNELS(SUFFIX, ...)       \
  TILED_LOW_KERNELS(SUFFIX, __VA_ARGS__) \
  TILED_KERNEL(tg_tiled_##SUFFIX##_r128, TiledTile128<__VA_ARGS__>)
#define TILED_HALF(SUFFIX, T) TILED_KERNELS(SUFFIX, HalfMath<T>)
FOR_HALF_TYPES(TILED_HALF)
OF_F32(TILED_KERNELS(f32_bf16, Bf16x3Math<__nv_bfloat16>))
using Bf16E4m3Math = HalfMath<__nv_bfloat16, E4m3>;
OF_BF16_E4M3(TILED_KERNELS(bf16_e4m3, Bf16E4m3Math))
OF_F32_E4M3(TILED_LOW_KERNELS(f32_e4m3, Bf16x3Math<E4m3>))

/* Without matrix instructions two heights of tiles are enough. */
#define TILED_PLAIN(SUFFIX, W)                                              \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r8, TiledTile8<PlainMath<W>>)        \
  TILED_KERNEL(tg_tiled_f32_##SUFFIX##_r64, TiledTile64<PlainMath<W>>)
OF_F32(TILED_PLAIN(f16, __half) TILED_PLAIN(f32, float))
