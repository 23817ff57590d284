// A process that keeps a GPU busy: kernels of 2 ms on every SM, one behind the other, until it is killed. Prints a line
// once the first has run. tests/gpu/shared.py builds and runs it:
//
//     nvcc -std=c++17 -arch=native -o neighbour tests/gpu/neighbour.cu

#include <cstdio>
#include <cuda_runtime.h>

constexpr unsigned long long KERNEL_NS = 2000000;
constexpr int THREADS = 256, BLOCKS_PER_SM = 8;
/* Launched before the host waits: there is always one to go on with. */
constexpr int AHEAD = 16;

__device__ inline unsigned long long now_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(float *out) {
  const unsigned long long start = now_ns();
  float x = threadIdx.x;
  while (now_ns() - start < KERNEL_NS)
    for (int i = 0; i < 64; i++) x = x * 1.0001f + 0.5f;
  if (x < 0) *out = x;
}

#define CHECK(call)                                                                            \
  if (cudaError_t error = (call)) {                                                            \
    fprintf(stderr, "neighbour: %s: %s\n", #call, cudaGetErrorString(error));                  \
    return 1;                                                                                  \
  }

int main() {
  int sms = 0;
  float *out = nullptr;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaMalloc(&out, sizeof(float)));
  for (bool first = true;; first = false) {
    for (int i = 0; i < AHEAD; i++) spin<<<sms * BLOCKS_PER_SM, THREADS>>>(out);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    if (first) {
      printf("busy\n");
      fflush(stdout);
    }
  }
}
