/* wide.cu: wide.cuh for the experts' feed-forwards, up to what tg_combine_experts_* sums.
 *
 *   y[p,:] = silu(w1_e x) * w3_e x     p: a place of the token sort, e its expert, x its row of x[R,H]; y[R K,M]
 *   partial[p,:] = w2_e y[p,:]         f32 [R K,H]
 *
 * tiles, counts and gather are the token sort's; what it leaves as zeros in the first two is counted up. The weights are
 * boxes of WIDE_K columns by WIDE_OUTPUTS rows, one expert after the other: of gate and up 8 rows each in turns, up's
 * first where `up_first`; of down as they are. With `experts` blocks guess among so many (wide_plan.cuh), with 0 they
 * do not. `most_tiles` is how many the list has room for, at most WIDE_MOST_TILES.
 *
 * Launch: grid = a block an SM, at most WIDE_MOST_BLOCKS, block = WIDE_THREADS,
 * shared = stages * wide_stage_bytes(tile_rows) + GMMA_ATOM_BYTES.
 * Bound: memory, the weights of the experts that have rows.
 */
#include "wide.cuh"

/* Threads for which registers are shared out: more than there are, so that other kernels' blocks find some too. */
constexpr int WIDE_REGISTER_THREADS = 512;

#define WIDE(SUFFIX, ...)                                                                                          \
  extern "C" __global__ void __launch_bounds__(WIDE_REGISTER_THREADS, 1) tg_wide_experts_##SUFFIX(                \
      const __grid_constant__ TensorMap gate_up, const __grid_constant__ TensorMap down, float *partial,           \
      __VA_ARGS__::X *y, const __VA_ARGS__::X *x, ExpertTile *tiles, WideCounts *counts, const uint32_t *gather,   \
      uint32_t experts, uint32_t most_tiles, uint32_t hidden, uint32_t inner, uint32_t tile_rows, uint32_t stages, \
      uint32_t up_first) {                                                                                         \
    GMMA_BODY(const WideArrays<__VA_ARGS__> arrays =                                                               \
                  {x, y, partial, gather, tiles, counts, hidden, inner, up_first != 0};                            \
              wide<__VA_ARGS__>(gate_up, down, arrays, experts, most_tiles, tile_rows, stages);)                   \
  }

WIDE(bf16, WideHalf<__nv_bfloat16>)
WIDE(f16, WideHalf<__half>)
WIDE(f32, WideSplit)
