// build: sm_90a
/* f16.cu: persistent/persistent.cuh for f16 rows and weights. */
#include "persistent/conv.cuh"
#include "persistent/halves.cuh"

using T = __half;
PERSISTENT_DENSE(tg_persistent_f16_w128, PersistentTile<T, 128, 6, 2>)
PERSISTENT_DENSE(tg_persistent_f16_w192, PersistentTile<T, 192, 5, 2>)
PERSISTENT_DENSE(tg_persistent_f16_w256, PersistentTile<T, 256, 4, 2>)
PERSISTENT_HALVES(tg_persistent_f16_w128_halves, PersistentTile<T, 128, 6>)
PERSISTENT_HALVES(tg_persistent_f16_w192_halves, PersistentTile<T, 192, 4>)
PERSISTENT_CONV(tg_persistent_conv_f16, PersistentConvTile<T>)
PERSISTENT_GATE_UP(tg_persistent_gate_up_f16, PersistentTile<T, 256, 4, 2, true>)
PERSISTENT_DOWN(tg_persistent_down_f16, PersistentTile<T, 256, 4, 2>)
