/* rows.cu: attention (see attention/attention.cuh) of chunks in f32, each row by itself.
 *
 * A block has one row and up to HEADS query heads of one kv head, so that a key is read once for all of them. Its warps take runs of 32
 * keys in turn; within one a lane first has a key (the dot products), then a piece of D (the weighted values). The warps' sums are merged
 * in their order, so a row's bits follow from its position alone.
 *
 * Bound: memory, 2 D sizeof(T) bytes a key and kv head; of chunks 4 D FLOP for each row, head and key, without tensor cores. An f32 prompt
 * of 2,048 (32 heads and 8 kv heads of 64) takes 2,269 us a layer on an H200, 7.6 TFLOP/s of some 50
 * (profiles/results/kernels-heads-h200-2026-11-28.txt).
 *
 * Launch: grid = (rows of the bucket, kv_heads, (heads / kv_heads) / HEADS rounded up), block = ROW_THREADS.
 */
#include "attention/attention.cuh"
#include "common/launch.cuh"

constexpr int ROW_WARPS = TG_ROW_THREADS / WARP;
constexpr int ROW_THREADS = TG_ROW_THREADS;
constexpr int HEADS = TG_ROW_HEADS;

/* Eight consecutive elements. */
__device__ inline void load8(float (&v)[8], const float *p) {
  float4 a = load4(p), b = load4(p + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* A block's shared memory, for up to HEADS heads of one kv head. */
template <int D>
struct alignas(16) RowBlock {
  float q[HEADS][D];  /* scaled */
  float maximum[ROW_WARPS][HEADS], total[ROW_WARPS][HEADS], partial[ROW_WARPS][HEADS][D];
};

/* Writes out[here, D]: of the row and the `here` heads whose q lie in `block`. */
template <int D>
__device__ inline void attend_row(RowBlock<D> &block, float *out, const float *k_pages, const float *v_pages, const Pages &pages,
                                  uint32_t position, uint32_t here) {
  constexpr int PER_LANE = D / WARP;
  auto &[q, maximum, total, partial] = block;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  float m[HEADS], l[HEADS], acc[HEADS][PER_LANE];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    m[h] = -INFINITY, l[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) acc[h][i] = 0.0f;
  }
  const uint32_t keys = position + 1;
  for (uint32_t base = warp * WARP; base < keys; base += ROW_WARPS * WARP) {
    const uint32_t here_keys = min((uint32_t)WARP, keys - base);
    const bool mine = lane < here_keys;
    const uint32_t at_position = base + (mine ? lane : 0);
    const size_t at = pages.at(at_position) * D;
    float p[HEADS] = {};
    const float *key = k_pages + at, *own_value = v_pages + at;
#pragma unroll 4
    for (int d = 0; d < D; d += 8) {
      float k[8];
      load8(k, key + d);
#pragma unroll
      for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) p[h] = fmaf(q[h][d + i], k[i], p[h]);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      const float highest = fmaxf(highest_over_lanes(mine ? p[h] : -INFINITY), m[h]);
      p[h] = mine ? expf(p[h] - highest) : 0.0f;
      const float shrink = expf(m[h] - highest);
      m[h] = highest;
      const float sum = sum_over_lanes(p[h]);
      l[h] = l[h] * shrink + sum;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) acc[h][i] *= shrink;
    }
#pragma unroll 4
    for (int t = 0; t < here_keys; t++) {
      const float *value = reinterpret_cast<const float *>(__shfl_sync(0xffffffffu, (unsigned long long)own_value, t));
      float v[PER_LANE];
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) v[i] = value[lane + i * WARP];
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        const float weight = __shfl_sync(0xffffffffu, p[h], t);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) acc[h][i] = fmaf(weight, v[i], acc[h][i]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (lane == 0) maximum[warp][h] = m[h], total[warp][h] = l[h];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) partial[warp][h][lane + i * WARP] = acc[h][i];
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < here * D; i += ROW_THREADS) {
    uint32_t h = i / D, d = i % D;
    float highest = maximum[0][h];  /* warp 0 always has a key */
#pragma unroll
    for (int w = 1; w < ROW_WARPS; w++) highest = fmaxf(highest, maximum[w][h]);
    float above = 0.0f, below = 0.0f;
#pragma unroll
    for (int w = 0; w < ROW_WARPS; w++) {
      float part = expf(maximum[w][h] - highest);  /* 0 for a warp without keys */
      above = fmaf(part, partial[w][h][d], above);
      below = fmaf(part, total[w][h], below);
    }
    out[i] = above / below;
  }
}

template <int D>
__device__ inline void attend_rows(const tg_attention_chunks_args &a) {
  __shared__ RowBlock<D> block;
  begin_kernel();
  const uint32_t heads = a.heads, kv_heads = a.kv_heads;
  const float *qkv = static_cast<const float *>(a.qkv);
  const uint32_t r = blockIdx.x, kv_head = blockIdx.y, group = heads / kv_heads, first = blockIdx.z * HEADS;
  if (r >= a.step->rows) return;
  const tg_row row = table<tg_row>(a.state, a.step->row_table)[r];
  const Pages pages(a.state, row.slot, kv_heads, kv_head);
  const uint32_t here = min((uint32_t)HEADS, group - first), first_head = kv_head * group + first;
  for (uint32_t i = threadIdx.x; i < HEADS * D; i += ROW_THREADS) {
    uint32_t head = i / D;
    block.q[head][i % D] = head < here ? qkv[((size_t)r * (heads + 2 * kv_heads) + first_head) * D + i] * a.scale : 0.0f;
  }
  __syncthreads();
  attend_row(block, static_cast<float *>(a.out) + ((size_t)r * heads + first_head) * D, static_cast<const float *>(a.k_pages),
             static_cast<const float *>(a.v_pages), pages, row.position, here);
}

#define ATTENTION_ROWS(SUFFIX, T, D) \
  STRUCT_KERNEL(tg_attention_rows_##SUFFIX##_d##D, tg_attention_chunks_args, attend_rows<D>, ROW_THREADS)
FOR_F32_HEADS(ATTENTION_ROWS)
