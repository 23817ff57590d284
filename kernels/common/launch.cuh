/* launch.cuh: how the entries of kernels are written, and which numbers their launchers read. */
#pragma once

#include <stdint.h>

/* COUNT numbers under a name, for the host alone: the build reads them from the cubin (kernels/build/cubin.rs), so a
 * launch can be sized without a GPU, and no number stands in two places. */
#define LAUNCH_CONSTANTS(NAME, COUNT, ...) extern "C" __device__ const uint32_t NAME[COUNT] = {__VA_ARGS__};

/* A kernel that takes one struct by value: NAME(a) is BODY(a). The arguments of __launch_bounds__ come last. */
#define STRUCT_KERNEL(NAME, ARGS, BODY, ...)                                                            \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) NAME(const __grid_constant__ ARGS a) {      \
    BODY(a);                                                                                            \
  }

/* ENTRY(suffix of the name, type) for each operand type, or for those of 16 bits alone. */
#define FOR_HALF_TYPES(ENTRY) ENTRY(bf16, __nv_bfloat16) ENTRY(f16, __half)
#define FOR_TYPES(ENTRY) FOR_HALF_TYPES(ENTRY) ENTRY(f32, float)

/* ENTRY(suffix of the name, type, size of a head) for each operand type and size, or for types of 16 bits alone. */
#define FOR_F32_HEADS(ENTRY) ENTRY(f32, float, 64) ENTRY(f32, float, 128)
#define FOR_HALF_HEADS(ENTRY) \
  ENTRY(bf16, __nv_bfloat16, 64) ENTRY(bf16, __nv_bfloat16, 128) ENTRY(f16, __half, 64) ENTRY(f16, __half, 128)
#define FOR_HEADS(ENTRY) FOR_HALF_HEADS(ENTRY) FOR_F32_HEADS(ENTRY)
