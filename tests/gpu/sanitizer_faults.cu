// Deliberate faults in kernels that run from graphs, so that a clean report of compute-sanitizer means something: it
// must name each of these. tests/gpu/check.py builds and runs it:
//
//     nvcc -std=c++17 -rdc=true -arch=native -lineinfo -o sanitizer_faults tests/gpu/sanitizer_faults.cu
//     compute-sanitizer --tool memcheck ./sanitizer_faults memcheck tail
//
// FAULT is the tool that must see it, or `none` for kernels in order. LAUNCH is who launches the graph with the kernel:
//   host    the host
//   tail    a kernel of another graph, when that graph has ended (what the dispatcher does)
//   forget  a kernel of another graph, at once
//   kept    the host, though the graph is instantiated for device launch and uploaded
// Exits with 0 where every CUDA call succeeded.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudaError_t error = (call);                                                                                        \
    if (error != cudaSuccess) {                                                                                        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                                              \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

/* in order: each thread reads what another wrote to shared memory, behind a barrier */
__global__ void none(int *out, const int *) {
  __shared__ int tile[THREADS];
  tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

/* writes one element past the end of `out` */
__global__ void memcheck(int *out, const int *) {
  out[threadIdx.x + 1] = threadIdx.x;
}

/* no barrier between the write and another warp's read */
__global__ void racecheck(int *out, const int *) {
  __shared__ int tile[THREADS];
  tile[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

/* reads what nobody wrote */
__global__ void initcheck(int *out, const int *unwritten) {
  out[threadIdx.x] = unwritten[threadIdx.x];
}

/* half a warp waits at a barrier that the other half does not reach */
__global__ void synccheck(int *out, const int *) {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  }
  out[threadIdx.x] = 0;
}

__global__ void launch_tail(cudaGraphExec_t graph) {
  cudaGraphLaunch(graph, cudaStreamGraphTailLaunch);
}

__global__ void launch_forget(cudaGraphExec_t graph) {
  cudaGraphLaunch(graph, cudaStreamGraphFireAndForget);
}

template <typename Launch> cudaGraphExec_t captured(cudaStream_t stream, bool for_device, Launch launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, for_device ? cudaGraphInstantiateFlagDeviceLaunch : 0));
  if (for_device) {
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
  return exec;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: sanitizer_faults none|memcheck|racecheck|initcheck|synccheck host|tail|forget|kept\n");
    return 2;
  }
  const char *fault = argv[1], *way = argv[2];
  void (*kernel)(int *, const int *) = none;
  if (!std::strcmp(fault, "memcheck")) kernel = memcheck;
  if (!std::strcmp(fault, "racecheck")) kernel = racecheck;
  if (!std::strcmp(fault, "initcheck")) kernel = initcheck;
  if (!std::strcmp(fault, "synccheck")) kernel = synccheck;
  bool from_device = !std::strcmp(way, "tail") || !std::strcmp(way, "forget");

  cudaStream_t stream;
  int *out, *unwritten;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&out, THREADS * sizeof(int)));
  CHECK(cudaMalloc(&unwritten, THREADS * sizeof(int)));
  cudaGraphExec_t work = captured(stream, std::strcmp(way, "host") != 0, [&] {
    kernel<<<1, THREADS, 0, stream>>>(out, unwritten);
  });
  cudaGraphExec_t first = work;
  if (from_device) {
    first = captured(stream, true, [&] {
      if (!std::strcmp(way, "tail")) launch_tail<<<1, 1, 0, stream>>>(work);
      else launch_forget<<<1, 1, 0, stream>>>(work);
    });
  }
  CHECK(cudaGraphLaunch(first, stream));
  CHECK(cudaStreamSynchronize(stream));
  int found[THREADS];
  CHECK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
  if (kernel == none) {
    for (int i = 0; i < THREADS; i++) {
      if (found[i] != THREADS - 1 - i) {
        std::fprintf(stderr, "element %d is %d: the graph did not run\n", i, found[i]);
        return 1;
      }
    }
  }
  return 0;
}
