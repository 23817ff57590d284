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

/* What a unit has for one type of rows, and for these with weights in 8 bits. A unit whose first line says `types` is compiled once for each
 * type without the others (kernels/build/nvcc.rs), so that a run loads the kernels of its own types alone. */
#if defined TG_NO_BF16 || defined TG_E4M3_ALONE
#define OF_BF16(...)
#else
#define OF_BF16(...) __VA_ARGS__
#endif
#if defined TG_NO_F16 || defined TG_E4M3_ALONE
#define OF_F16(...)
#else
#define OF_F16(...) __VA_ARGS__
#endif
#if defined TG_NO_F32 || defined TG_E4M3_ALONE
#define OF_F32(...)
#else
#define OF_F32(...) __VA_ARGS__
#endif
#if defined TG_NO_BF16 || defined TG_NO_E4M3
#define OF_BF16_E4M3(...)
#else
#define OF_BF16_E4M3(...) __VA_ARGS__
#endif
#if defined TG_NO_F32 || defined TG_NO_E4M3
#define OF_F32_E4M3(...)
#else
#define OF_F32_E4M3(...) __VA_ARGS__
#endif

/* ENTRY(suffix of the name, type) for each operand type, or for those of 16 bits alone. */
#define FOR_HALF_TYPES(ENTRY) OF_BF16(ENTRY(bf16, __nv_bfloat16)) OF_F16(ENTRY(f16, __half))
#define FOR_TYPES(ENTRY) FOR_HALF_TYPES(ENTRY) OF_F32(ENTRY(f32, float))

/* ENTRY(suffix of the name, type, size of a head) for each operand type and size, or for types of 16 bits alone. */
#define FOR_F32_HEADS(ENTRY) OF_F32(ENTRY(f32, float, 64) ENTRY(f32, float, 128))
#define FOR_HALF_HEADS(ENTRY)                                                      \
  OF_BF16(ENTRY(bf16, __nv_bfloat16, 64) ENTRY(bf16, __nv_bfloat16, 128)) \
  OF_F16(ENTRY(f16, __half, 64) ENTRY(f16, __half, 128))
#define FOR_HEADS(ENTRY) FOR_HALF_HEADS(ENTRY) FOR_F32_HEADS(ENTRY)
