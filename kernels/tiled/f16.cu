/* f16.cu: tiled/tiled.cuh for f16 rows and weights. */
#include "tiled/tiled.cuh"

TILED_KERNELS(f16, HalfMath<__half>)
