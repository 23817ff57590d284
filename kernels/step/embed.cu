/* embed.cu: the residual stream's start.
 *
 *   h[r, :] = f32(embedding[token(r), :])
 *
 * Bound: memory. A row moves sizeof(embedding) H bytes in and 4H out. 8,192 rows of 2048 in bf16: 26.5 us on an H200, 84% of the bound
 * (profiles/results/kernels-prompts-h200-2026-11-28.txt).
 *
 * Launch: grid = rows of the bucket, block = TG_EMBED_THREADS. Blocks past the step's rows leave h alone.
 */
#include "common/base.cuh"
#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "step/args.h"

/* h[R,H], embedding[V,H] */
template <typename T>
__device__ inline void embed(float *h, const T *embedding, const tg_state *state, const tg_step *step, uint32_t hidden) {
  begin_kernel();
  uint32_t r = blockIdx.x;
  if (r >= step->rows) return;
  uint32_t token = row_token(state, step, table<tg_row>(state, step->row_table) + r);
  const T *from = embedding + (size_t)token * hidden;
  float *to = h + (size_t)r * hidden;
  for (uint32_t i = 4 * threadIdx.x; i < hidden; i += 4 * TG_EMBED_THREADS) store4(to + i, load4(from + i));
}

#define EMBED(SUFFIX, T)                                                                           \
  extern "C" __global__ void __launch_bounds__(TG_EMBED_THREADS) tg_embed_##SUFFIX(                \
      float *h, const T *embedding, const tg_state *state, const tg_step *step, uint32_t hidden) { \
    embed<T>(h, embedding, state, step, hidden);                                                   \
  }
FOR_TYPES(EMBED)
