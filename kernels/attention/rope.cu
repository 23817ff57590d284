/* rope.cu: from projections to queries, keys and values in place.
 *
 * Of a row of qkv[R,(heads + 2 kv_heads) D], each head of q and k:
 *
 *   v = v / sqrt(mean(v^2) + eps) * weight                      weight[D], one for q and one for k
 *   (v[i], v[i+D/2]) = (v[i] cos - v[i+D/2] sin, v[i+D/2] cos + v[i] sin)
 *   angle = inverse_frequency[i] * position                     f32, sin and cos with full range reduction
 *
 * q stays in qkv; k and v go to their page, [pages, kv_heads, page_tokens, D] of each.
 *
 * Bound: memory, 2 (heads + 2 kv_heads) D sizeof(T) bytes a row.
 *
 * Launch: grid = (rows of the bucket, (heads + 2 kv_heads) / ROPE_HEADS rounded up), HEAD_LANES lanes a head. Rows past
 * the step's write nothing.
 */
#include "attention/attention.cuh"
#include "attention/rope.cuh"

constexpr int ROPE_THREADS = 128;
constexpr int ROPE_HEADS = ROPE_THREADS / HEAD_LANES;

template <typename T, int D>
__device__ inline void qk_norm_rope(T *qkv, T *k_pages, T *v_pages, const float *q_weight, const float *k_weight,
                                    const float *inverse_frequencies, const tg_state *state, const tg_step *step,
                                    uint32_t heads, uint32_t kv_heads, float eps) {
  begin_kernel();
  const uint32_t r = blockIdx.x, all = heads + 2 * kv_heads, head = blockIdx.y * ROPE_HEADS + threadIdx.x / HEAD_LANES;
  if (r >= step->rows) return;
  const tg_row row = table<tg_row>(state, step->row_table)[r];
  T *from = qkv + ((size_t)r * all + min(head, all - 1)) * D;
  RawHeadPart<T, D> raw;
  HeadPart<D> weight;
  raw.load(from), weight.load(head < heads ? q_weight : k_weight);
  const HeadRotation<D> rotation(inverse_frequencies, row.position);
  HeadPart<D> x = raw.value();
  rotation.apply(x, weight, eps);
  if (head >= all) return;
  if (head < heads) {
    store_head(from, x);
    return;
  }
  const size_t at = Pages(state, row.slot, kv_heads, (head - heads) % kv_heads).at(row.position) * D;
  if (head < heads + kv_heads) {
    store_head(k_pages + at, x);
  } else {
    store_head(v_pages + at, raw.value());
  }
}

#define ROPE(SUFFIX, T, D)                                                                                        \
  extern "C" __global__ void __launch_bounds__(ROPE_THREADS) tg_qk_norm_rope_##SUFFIX##_d##D(                     \
      T *qkv, T *k_pages, T *v_pages, const float *q_weight, const float *k_weight,                               \
      const float *inverse_frequencies, const tg_state *state, const tg_step *step, uint32_t heads,               \
      uint32_t kv_heads, float eps) {                                                                             \
    qk_norm_rope<T, D>(qkv, k_pages, v_pages, q_weight, k_weight, inverse_frequencies, state, step, heads,        \
                       kv_heads, eps);                                                                            \
  }

ROPE(bf16, __nv_bfloat16, 64)
ROPE(bf16, __nv_bfloat16, 128)
ROPE(f16, __half, 64)
ROPE(f16, __half, 128)
ROPE(f32, float, 64)
ROPE(f32, float, 128)
