/* busy.cu: what keeps a GPU busy as another's job does, for measuring beside it. Bound: arithmetic. Launch: grid = any, block = 256. */
#include <stdint.h>

/* out[1]: nothing that anyone reads; it keeps the compiler from leaving the work out. */
extern "C" __global__ void tg_ways_busy(float *out, uint32_t rounds) {
  float a = (float)threadIdx.x, b = (float)blockIdx.x;
  for (uint32_t round = 0; round < rounds; round++) {
    a = fmaf(a, 0.999f, 1.0f);
    b = fmaf(b, 0.998f, a);
  }
  if (a + b == -1.0f) *out = a;
}
