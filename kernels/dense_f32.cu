/* dense_f32.cu: dense.cuh for f32 rows and bf16 weights. */
#include "dense_conv.cuh"
#include "dense_head.cuh"

#define DENSE(ROWS)                                                             \
  DENSE_PRODUCT(tg_dense_shared_f32_r##ROWS, DenseTile<DenseSplit, ROWS, 1, 64>) \
  DENSE_PRODUCT(tg_dense_alone_f32_r##ROWS, DenseTile<DenseSplit, ROWS, 2, 64, DENSE_LONE>)
DENSE(16)
DENSE(32)
DENSE_PRODUCT(tg_dense_alone_f32_r64, DenseTile<DenseSplit, 64, 2, 64, DENSE_LONE>)

DENSE_CONV(tg_dense_conv_f32_r16, DenseTile<DenseSplit, 16, 3, 32>)
DENSE_CONV(tg_dense_conv_f32_r32_many, DenseTile<DenseSplit, 32, 3, 64>)

DENSE_HEAD(tg_dense_head_f32_r16, DenseTile<DenseSplit, 16, 2, 64, DENSE_LONE>)
DENSE_HEAD(tg_dense_head_f32_r32, DenseTile<DenseSplit, 32, 2, 64, DENSE_LONE>)
DENSE_HEAD(tg_dense_head_f32_r64, DenseTile<DenseSplit, 64, 2, 64, DENSE_LONE>)
