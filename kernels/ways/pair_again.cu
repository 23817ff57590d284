// build: rdc
/* pair_again.cu: the end of a step over two GPUs (pair.h) whose graph begins the next one by itself. The next graph waits for the
 * other GPU's part before that has been handed on: no launch stands between them.
 *
 * Launch: grid = 1, block = 1; the last node of a graph for the device.
 */
#include "ways/pair.cuh"

#include <cuda_runtime.h>

extern "C" __global__ void __launch_bounds__(1) tg_pair_end_again(tg_pair *pair) {
  if (!pair_end(pair)) return;
  const cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
  if (error != cudaSuccess) pair_fail(pair, TG_PAIR_AGAIN, error);
}
