/* bf16.cu: tiled/tiled.cuh for bf16 rows and weights. */
#include "tiled/tiled.cuh"

TILED_KERNELS(bf16, HalfMath<__nv_bfloat16>)
