/* wide.cu: wide.cuh for an expert's gate and up, and for its down.
 *
 *   tg_wide_gate_up_*   y[p,:] = silu(w1_e x) * w3_e x     M outputs, x[R,H] by gather
 *   tg_wide_down_*      y[p,:] = w2_e x, f32               H outputs, x[R K,M] by place
 *
 * Launch: grid = one block an SM at most, block = WIDE_THREADS,
 * shared = stages * wide_stage_bytes(tile_rows) + SWIZZLED_ALIGN_BYTES.
 * Bound: memory, the weights of the experts that have rows.
 */
#include "wide.cuh"

#define WIDE(SUFFIX, ...)                                                                                          \
  extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) tg_wide_gate_up_##SUFFIX(                          \
      const __grid_constant__ TensorMap weights, __VA_ARGS__::X *y, const __VA_ARGS__::X *x,                       \
      const ExpertTile *tiles, const uint32_t *tile_count, const uint32_t *gather, uint32_t experts,               \
      uint32_t most_tiles, uint32_t n_total, uint32_t k_total, uint32_t tile_rows, uint32_t stages,                        \
      uint32_t up_first) {                                                                                         \
    wide<__VA_ARGS__, true>(weights, y, x, tiles, tile_count, gather, experts, most_tiles, n_total, k_total,       \
                            tile_rows, stages, up_first != 0);                                                                    \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) tg_wide_down_##SUFFIX(                             \
      const __grid_constant__ TensorMap weights, float *y, const __VA_ARGS__::X *x, const ExpertTile *tiles,       \
      const uint32_t *tile_count, uint32_t most_tiles, uint32_t n_total, uint32_t k_total, uint32_t tile_rows,     \
      uint32_t stages) {                                                                                           \
    wide<__VA_ARGS__, false>(weights, y, x, tiles, tile_count, nullptr, 0, most_tiles, n_total, k_total,           \
                             tile_rows, stages, false);                                                                 \
  }

WIDE(bf16, WideHalf<__nv_bfloat16>)
WIDE(f16, WideHalf<__half>)
WIDE(f32, WideSplit)
