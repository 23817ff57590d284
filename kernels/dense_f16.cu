/* dense_f16.cu: dense.cuh for f16 rows and weights. */
#include "dense_conv.cuh"
#include "dense_head.cuh"

using Math = DenseHalf<__half>;

#define DENSE(ROWS) DENSE_PRODUCT(tg_dense_shared_f16_r##ROWS, DenseTile<Math, ROWS, 1, 64>)
DENSE(16)
DENSE(32)
DENSE(64)
DENSE_PRODUCT(tg_dense_shared_many_f16_r64_w128, DenseTile<Math, 64, 2, 64>)
DENSE_PRODUCT(tg_dense_shared_many_f16_r64_w192, DenseTile<Math, 64, 3, 64>)

#define DENSE_ALONE(ROWS) DENSE_PRODUCT(tg_dense_alone_f16_r##ROWS, DenseTile<Math, ROWS, 2, 64, DENSE_LONE>)
DENSE_ALONE(16)
DENSE_ALONE(32)
DENSE_ALONE(64)
DENSE_ALONE(128)
DENSE_ALONE(256)

DENSE_CONV(tg_dense_conv_f16_r16, DenseTile<Math, 16, 3, 32>)
DENSE_CONV(tg_dense_conv_f16_r32, DenseTile<Math, 32, 3, 32>)
DENSE_CONV_ROWS(tg_dense_conv_rows_f16_r64, DenseRowsTile<Math, 1, 16, 1>)
DENSE_CONV_ROWS(tg_dense_conv_rows_f16_r128, DenseRowsTile<Math, 1, 32, 2>)
DENSE_CONV_ROWS(tg_dense_conv_rows_f16_r256, DenseRowsTile<Math, 2, 32, 2>)

DENSE_HEAD(tg_dense_head_f16_r16, DenseTile<Math, 16, 2, 64, DENSE_LONE>)
DENSE_HEAD(tg_dense_head_f16_r32, DenseTile<Math, 32, 4, 64, DENSE_LONE>)
DENSE_HEAD(tg_dense_head_f16_r64, DenseTile<Math, 64, 4, 64, DENSE_LONE>)
DENSE_HEAD(tg_dense_head_mates_f16_r128, DenseTile<Math, 128, 4, 64, DENSE_MATES>)
DENSE_HEAD(tg_dense_head_mates_f16_r256, DenseTile<Math, 256, 2, 64, DENSE_MATES>)
