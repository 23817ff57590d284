/* half.cuh: the kernels of persistent/ for rows and weights of one 16-bit type. */
#pragma once

#include "persistent/conv.cuh"
#include "persistent/split_k.cuh"

#define PERSISTENT_HALF(TYPE, T)                                                     \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w128, PersistentTile<T, 128, 6, 2>)        \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w192, PersistentTile<T, 192, 5, 2>)        \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w256, PersistentTile<T, 256, 4, 2>)        \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w128_split_k, PersistentTile<T, 128, 6>) \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w192_split_k, PersistentTile<T, 192, 4>) \
  PERSISTENT_CONV(tg_persistent_conv_##TYPE, PersistentConvTile<T>)                  \
  PERSISTENT_GATE_UP(tg_persistent_gate_up_##TYPE, PersistentTile<T, 256, 4, 2, true>) \
  PERSISTENT_DOWN(tg_persistent_down_##TYPE, PersistentTile<T, 256, 4, 2>)
