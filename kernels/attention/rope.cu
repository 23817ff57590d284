/* rope.cu: from projections to queries, keys and values in place.
 *
 * For each head of q and k of a row of qkv[R,(heads + 2 kv_heads) D]:
 *
 *   v = v / sqrt(mean(v^2) + eps) * weight                      weight[D], one for q and one for k
 *   (v[i], v[i+D/2]) = (v[i] cos - v[i+D/2] sin, v[i+D/2] cos + v[i] sin)
 *   angle = inverse_frequency[i] * position                     f32, sin and cos with full range reduction
 *
 * q stays in qkv; k and v go to their page, [pages, kv_heads, page_tokens, D] of each.
 *
 * Bound: memory, 2 (heads + 2 kv_heads) D sizeof(T) bytes a row. 8,192 rows of 32 heads and 8 kv heads of 64 take 36.8 us on an H200, where
 * the bound says 22.2 (profiles/results/kernels-prompts-h200-2026-11-28.txt).
 *
 * Launch: grid = (rows of the bucket, (heads + 2 kv_heads) / ROPE_HEADS rounded up), HEAD_LANES lanes a head. Rows past the step's write nothing.
 */
#include "attention/attention.cuh"
#include "attention/rope.cuh"
#include "common/launch.cuh"

constexpr int ROPE_THREADS = TG_ROPE_THREADS;
constexpr int ROPE_HEADS = ROPE_THREADS / HEAD_LANES;
static_assert(ROPE_HEADS == TG_ROPE_HEADS, "as the launcher has it");

template <typename T, int D>
__device__ inline void qk_norm_rope(const tg_qk_norm_rope_args &a) {
  begin_kernel();
  const uint32_t heads = a.heads, kv_heads = a.kv_heads;
  const uint32_t r = blockIdx.x, all = heads + 2 * kv_heads, head = blockIdx.y * ROPE_HEADS + threadIdx.x / HEAD_LANES;
  if (r >= a.step->rows) return;
  const tg_row row = table<tg_row>(a.state, a.step->row_table)[r];
  T *from = static_cast<T *>(a.qkv) + ((size_t)r * all + min(head, all - 1)) * D;
  RawHeadPart<T, D> raw;
  HeadPart<D> weight;
  raw.load(from), weight.load(head < heads ? a.q_weight : a.k_weight);
  const HeadRotation<D> rotation(a.inverse_frequencies, row.position);
  HeadPart<D> x = raw.value();
  rotation.apply(x, weight, a.eps);
  if (head >= all) return;
  if (head < heads) {
    store_head(from, x);
    return;
  }
  const size_t at = Pages(a.state, row.slot, kv_heads, (head - heads) % kv_heads).at(row.position) * D;
  if (head < heads + kv_heads) {
    store_head(static_cast<T *>(a.k_pages) + at, x);
  } else {
    store_head(static_cast<T *>(a.v_pages) + at, raw.value());
  }
}

#define ROPE(SUFFIX, T, D) \
  STRUCT_KERNEL(tg_qk_norm_rope_##SUFFIX##_d##D, tg_qk_norm_rope_args, (qk_norm_rope<T, D>), ROPE_THREADS)
FOR_HEADS(ROPE)
