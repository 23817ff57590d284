// build: sm_90a
/* bf16.cu: persistent/persistent.cuh for bf16 rows and weights. */
#include "persistent/conv.cuh"
#include "persistent/halves.cuh"

using T = __nv_bfloat16;
PERSISTENT_DENSE(tg_persistent_bf16_w128, PersistentTile<T, 128, 6, 2>)
PERSISTENT_DENSE(tg_persistent_bf16_w192, PersistentTile<T, 192, 5, 2>)
PERSISTENT_DENSE(tg_persistent_bf16_w256, PersistentTile<T, 256, 4, 2>)
PERSISTENT_HALVES(tg_persistent_bf16_w128_halves, PersistentTile<T, 128, 6>)
PERSISTENT_HALVES(tg_persistent_bf16_w192_halves, PersistentTile<T, 192, 4>)
PERSISTENT_CONV(tg_persistent_conv_bf16, PersistentConvTile<T>)
PERSISTENT_GATE_UP(tg_persistent_gate_up_bf16, PersistentTile<T, 256, 4, 2, true>)
PERSISTENT_DOWN(tg_persistent_down_bf16, PersistentTile<T, 256, 4, 2>)
