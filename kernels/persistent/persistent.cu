// build: sm_90a types e4m3
/* persistent.cu: the kernels of persistent/, for rows and weights of one 16-bit type and for f32 rows and bf16 weights; for weights in 8 bits. */
#include "persistent/conv.cuh"
#include "persistent/split_k.cuh"

#define PERSISTENT_HALF(TYPE, T)                                                     \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w128, PersistentTile<T, 128, 6, 2>)        \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w192, PersistentTile<T, 192, 5, 2>)        \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w256, PersistentTile<T, 256, 4, 2>)        \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w128_split_k, PersistentTile<T, 128, 6>) \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w192_split_k, PersistentTile<T, 192, 4>) \
  PERSISTENT_CONV(tg_persistent_conv_##TYPE, PersistentConvTile<T>)                  \
  PERSISTENT_GATE_UP(tg_persistent_gate_up_##TYPE, PersistentTile<T, 256, 4, 2, true>) \
  PERSISTENT_DOWN(tg_persistent_down_##TYPE, PersistentTile<T, 256, 4, 2>)
FOR_HALF_TYPES(PERSISTENT_HALF)

#define PERSISTENT_F32(TYPE, WEIGHTS)                                                                        \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w128, PersistentTile<float, 128, 3, 1, false, WEIGHTS>)         \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w128_split_k, PersistentTile<float, 128, 3, 1, false, WEIGHTS>) \
  PERSISTENT_GATE_UP(tg_persistent_gate_up_##TYPE, PersistentTile<float, 128, 3, 1, true, WEIGHTS>)       \
  PERSISTENT_DOWN(tg_persistent_down_##TYPE, PersistentTile<float, 128, 3, 1, false, WEIGHTS>)
OF_F32(PERSISTENT_F32(f32, __nv_bfloat16))
OF_F32_E4M3(PERSISTENT_F32(f32_e4m3, E4m3))

#define PERSISTENT_E4M3(TYPE, T)                                                                           \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w128, PersistentTile<T, 128, 6, 2, false, E4m3>)                 \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w192, PersistentTile<T, 192, 6, 2, false, E4m3>)                 \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w256, PersistentTile<T, 256, 5, 2, false, E4m3>)                 \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w128_split_k, PersistentTile<T, 128, 6, 1, false, E4m3>)       \
  PERSISTENT_SPLIT_K(tg_persistent_##TYPE##_w192_split_k, PersistentTile<T, 192, 6, 1, false, E4m3>)       \
  PERSISTENT_GATE_UP(tg_persistent_gate_up_##TYPE, PersistentTile<T, 256, 5, 2, true, E4m3>)               \
  PERSISTENT_DOWN(tg_persistent_down_##TYPE, PersistentTile<T, 256, 5, 2, false, E4m3>)
OF_BF16_E4M3(PERSISTENT_E4M3(bf16_e4m3, __nv_bfloat16))

/* Rows in 8 bits too. */
#define PERSISTENT_E4M3_ROWS(TYPE, T)                                                    \
  PERSISTENT_DENSE(tg_persistent_##TYPE##_w256, PersistentTile<T, 256, 4, 2, false, E4m3x2>)     \
  PERSISTENT_GATE_UP(tg_persistent_gate_up_##TYPE, PersistentTile<T, 256, 4, 2, true, E4m3x2>)   \
  PERSISTENT_DOWN(tg_persistent_down_##TYPE, PersistentTile<T, 256, 4, 2, false, E4m3x2>)
OF_BF16_E4M3(PERSISTENT_E4M3_ROWS(e4m3_rows, __nv_bfloat16))

#if !defined TG_NO_F32 && !defined TG_E4M3_ALONE
/* parts[3][plane][K], bf16, of x[R,K]: the step's rows from `base` on, at most `plane`; parts and x start there.
 * Bound: memory, 10 K bytes a row. 2,048 rows of K 2048: 10.2 us on an H200, 4.1 TB/s (profiles/results/kernels-heads-h200-2026-11-28.txt).
 * Launch: block = TG_BF16X3_THREADS, grid = rows of the bucket. */
extern "C" __global__ void __launch_bounds__(TG_BF16X3_THREADS)
    tg_bf16x3_rows(__nv_bfloat16 *parts, const float *x, const uint32_t *count, uint32_t base, uint32_t plane, uint32_t k) {
  begin_kernel();
  const uint32_t row = blockIdx.x;
  if (base + row >= *count) return;
  for (uint32_t c = 8 * threadIdx.x; c < k; c += 8 * TG_BF16X3_THREADS) {
    const float *from = x + (size_t)row * k + c;
    Bf16x3::store(reinterpret_cast<char *>(parts + (size_t)row * k + c), (size_t)plane * k * sizeof *parts, {load4(from), load4(from + 4)});
  }
}
#endif

#if !defined TG_NO_BF16 && !defined TG_NO_E4M3
/* rows[plane, K] in 8 bits, and their scales behind them, of bf16 x[R,K]: the step's rows from `base` on, at most `plane`; both start there.
 * Bound: memory, 3 K bytes a row. 8,000 rows of K 2048, 50 MB: by hand 11 us, in a step on an H200 15 to 17.
 * Launch: block = TG_E4M3_ROWS_THREADS, grid = rows of the bucket. */
extern "C" __global__ void __launch_bounds__(TG_E4M3_ROWS_THREADS)
    tg_e4m3_rows(E4m3 *rows, const __nv_bfloat16 *x, const uint32_t *count, uint32_t base, uint32_t plane, uint32_t k) {
  begin_kernel();
  constexpr uint32_t PIECE = 16, LANES = E4M3_SCALED / PIECE;  /* columns of a thread; threads of a scale */
  const uint32_t row = blockIdx.x, pitch = packed_columns(k), blocks = (k + E4M3_SCALED - 1) / E4M3_SCALED;
  if (base + row >= *count) return;
  const uint32_t q = threadIdx.x % 4;
  for (uint32_t first = 0; first < blocks * LANES; first += TG_E4M3_ROWS_THREADS) {
    const uint32_t piece = first + threadIdx.x, from = piece / 4 * PACKED_COLUMNS + 2 * q;
    float2 v[8];
    float most = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      const uint32_t c = from + 8 * i;
      /* Through L1, where the neighbours' half of a sector comes from. */
      const uint32_t pair = c < k ? *reinterpret_cast<const uint32_t *>(x + (size_t)row * k + c) : 0;
      v[i] = unpack2<__nv_bfloat16>(pair);
      most = fmaxf(most, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
    }
#pragma unroll
    for (uint32_t lane = 1; lane < LANES; lane *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
    const E4m3Scale scale = e4m3_scale(most);
    if (piece * PIECE < pitch) __stcg(reinterpret_cast<uint4 *>(rows + (size_t)row * pitch + piece * PIECE), e4m3_piece(v, scale.by));
    if (piece % LANES == 0 && piece / LANES < blocks) e4m3_scales<void>(rows, plane, pitch, row)[piece / LANES] = scale.scale;
  }
}
#endif
