/* f16.cu: persistent/persistent.cuh for f16 rows and weights. */
#include "persistent/persistent.cuh"

using T = __half;
PERSISTENT_DENSE(tg_persistent_f16_w128, PersistentTile<T, 128, 6>)
PERSISTENT_DENSE(tg_persistent_f16_w256, PersistentTile<T, 256, 4, 2>)
PERSISTENT_GATE_UP(tg_persistent_gate_up_f16, PersistentTile<T, 256, 4, 2, true>)
PERSISTENT_DOWN(tg_persistent_down_f16, PersistentTile<T, 256, 4, 2>)
