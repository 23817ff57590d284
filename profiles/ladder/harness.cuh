/* harness.cuh: what a row of the tables takes: a kernel's time, its registers, spills, shared memory and occupancy, and how far
 * its result is from the plain one. */
#ifndef TAILGRAPH_LADDER_HARNESS_CUH
#define TAILGRAPH_LADDER_HARNESS_CUH

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <vector>

inline void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "ladder: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T *device_array(size_t count) {
  void *at = nullptr;
  check(cudaMalloc(&at, count * sizeof(T)), "allocating device memory");
  return static_cast<T *>(at);
}

/* Values from -1 to 1 that bf16 holds exactly, so that all kernels are given the same numbers. */
__global__ void fill(float *wide, __nv_bfloat16 *half, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    uint32_t bits = uint32_t(i) * 0x9e3779b9u + seed;
    bits = (bits ^ bits >> 16) * 0x7feb352du;
    bits = (bits ^ bits >> 15) * 0x846ca68bu;
    const float value = float(int(bits >> 24) - 128) / 128.0f;
    wide[i] = value;
    if (half) half[i] = __float2bfloat16(value);
  }
}

/* The largest difference of all; the bits of floats that are not negative are in their order. A value that is no number counts as
 * infinite. */
__global__ void largest_difference(const float *found, const float *expected, size_t count, unsigned *largest) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    const float difference = fabsf(found[i] - expected[i]);
    atomicMax(largest, __float_as_uint(difference <= 3e38f ? difference : INFINITY));
  }
}

struct Machine {
  cudaDeviceProp properties;
  double clock_hz;
  cudaEvent_t begin, end;
  unsigned *largest;

  Machine() {
    check(cudaGetDeviceProperties(&properties, 0), "looking for a GPU");
    int khz = 0;
    check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "asking for the clock");
    clock_hz = khz * 1e3;
    check(cudaEventCreate(&begin), "making an event");
    check(cudaEventCreate(&end), "making an event");
    largest = device_array<unsigned>(1);
  }

  double f32_flops() const { return properties.multiProcessorCount * 128.0 * 2.0 * clock_hz; }

  /* bf16 operands, f32 sums, dense; 0 where this file does not know the tensor cores. */
  double tensor_flops() const {
    const double per_clock = properties.major == 9 ? 4096.0 : properties.major == 8 && properties.minor == 0 ? 2048.0 : 0.0;
    return properties.multiProcessorCount * per_clock * clock_hz;
  }

  float difference(const float *found, const float *expected, size_t count) const {
    check(cudaMemset(largest, 0, sizeof *largest), "clearing");
    largest_difference<<<1024, 256>>>(found, expected, count, largest);
    unsigned bits = 0;
    check(cudaMemcpy(&bits, largest, sizeof bits, cudaMemcpyDeviceToHost), "comparing");
    float value;
    static_assert(sizeof value == sizeof bits, "");
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  /* One launch in ms: the best of five times of as many in a row as take some 20 ms. */
  template <typename Launch>
  double best_ms(Launch launch) const {
    auto timed = [&](int launches) {
      check(cudaEventRecord(begin), "timing");
      for (int i = 0; i < launches; i++) launch();
      check(cudaEventRecord(end), "timing");
      check(cudaEventSynchronize(end), "running a kernel");
      float ms = 0.0f;
      check(cudaEventElapsedTime(&ms, begin, end), "timing");
      return double(ms) / launches;
    };
    launch();
    const double once = timed(1);
    const int launches = once > 20.0 ? 1 : int(20.0 / (once + 1e-3)) + 1;
    double best = timed(launches);
    for (int i = 0; i < 4; i++) {
      const double again = timed(launches);
      best = again < best ? again : best;
    }
    return best;
  }
};

/* What the compiler made of a kernel, and how much of an SM its blocks fill. */
struct Made {
  cudaFuncAttributes attributes;
  size_t shared_bytes;
  int blocks;
  double occupancy;

  Made(const Machine &machine, const void *kernel, int threads, size_t dynamic_bytes) {
    if (dynamic_bytes > 48 * 1024) {
      const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
      check(cudaFuncSetAttribute(kernel, most, int(dynamic_bytes)), "asking for shared memory");
    }
    check(cudaFuncGetAttributes(&attributes, kernel), "asking what the compiler made");
    const cudaError_t asked = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, dynamic_bytes);
    check(asked, "asking for the occupancy");
    shared_bytes = attributes.sharedSizeBytes + dynamic_bytes;
    occupancy = double(blocks) * threads / machine.properties.maxThreadsPerMultiProcessor;
  }
};

#endif
