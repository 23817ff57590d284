// build: rdc -lcudadevrt
/* turn.cu: a scheduler kernel that launches a step's kernels itself (CUDA dynamic parallelism), and its own next turn behind them.
 * Its image has the device runtime, for which no other kernel pays, and so the step's kernels once more, under names of their own. The
 * next turn is a tail launch: it begins when this turn's grid and all that it launched have ended. Launch: grid = 1, block = 1. */
#define tg_ways_layer tg_cdp_layer
#define tg_ways_decide tg_cdp_decide
#include "ways/step.cu"

#include <cuda_runtime.h>

/* `own_stream`: in a stream that each turn makes, else in the block's own. */
extern "C" __global__ void tg_cdp_turn(tg_ways *ways, uint32_t own_stream) {
  if (ways_over(ways)) return;
  cudaStream_t stream = nullptr;
  if (own_stream != 0) {
    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return ways_fail(ways, TG_WAYS_STREAM, error, 0);
  }
  const uint32_t layers = ways->layers, blocks = ways_blocks(ways->bucket);
  for (uint32_t layer = 0; layer <= layers; layer++) {
    if (layer < layers) {
      tg_cdp_layer<<<blocks, TG_WAYS_THREADS, 0, stream>>>(ways_values(ways, layer + 1), ways_values(ways, layer), ways, layer);
    } else {
      tg_cdp_decide<<<1, TG_WAYS_THREADS, 0, stream>>>(ways);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return ways_fail(ways, TG_WAYS_KERNEL, error, layer);
  }
  /* What was launched there still runs. */
  if (own_stream != 0) cudaStreamDestroy(stream);
  tg_cdp_turn<<<1, 1, 0, cudaStreamTailLaunch>>>(ways, own_stream);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) ways_fail(ways, TG_WAYS_TURN, error, layers + 1);
}
