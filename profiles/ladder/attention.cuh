/* attention.cuh: attention of one prompt in f32, causal, tile by tile, and templated by its tiles: what a tile's numbers cost.
 *
 * Four heads share their keys and values (GQA) and are packed: a block's query rows are the four heads of consecutive positions,
 * so its keys are read once for all four. A tile's three numbers:
 *   Q  query rows of a block, that is Q / 4 positions of the four heads of one key-value head
 *   K  keys whose scores are worked out at once, by a tile of keys in shared memory
 *   V  keys whose values are added at once, by a tile of values in shared memory
 * A round takes the larger of K and V keys: their scores, tile by tile of K; the softmax so far; their values, tile by tile of V. */
#ifndef TAILGRAPH_LADDER_ATTENTION_CUH
#define TAILGRAPH_LADDER_ATTENTION_CUH

#include <cstdint>

constexpr uint32_t HEAD = 64;         /* values of a head */
constexpr uint32_t PACKED = 4;        /* heads that share their keys */
constexpr uint32_t HEAD_ROW = HEAD + 4; /* floats of a row in shared memory: eight rows' 16 bytes meet 32 banks */
constexpr uint32_t ATTENTION_THREADS = 128;

/* q, out [tokens, heads, HEAD]; k, v [tokens, heads / PACKED, HEAD] */
struct Prompt {
  float *out;
  const float *q, *k, *v;
  uint32_t tokens, heads;
};

constexpr float SCALE = 0.125f; /* 1 / sqrt(HEAD) */

/* What the tiled one is checked against: a block a position and head, sums in f64. Its shared memory holds a row's scores. */
__global__ void __launch_bounds__(HEAD) plain_attention(Prompt p) {
  extern __shared__ double scores[];
  __shared__ double most, total;
  const uint32_t position = blockIdx.x, head = blockIdx.y, kv_heads = p.heads / PACKED, kv = head / PACKED;
  const float *q = p.q + (size_t(position) * p.heads + head) * HEAD;
  for (uint32_t key = threadIdx.x; key <= position; key += HEAD) {
    const float *k = p.k + (size_t(key) * kv_heads + kv) * HEAD;
    double sum = 0.0;
    for (uint32_t d = 0; d < HEAD; d++) sum += double(q[d]) * double(k[d]);
    scores[key] = sum * SCALE;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    most = scores[0];
    for (uint32_t key = 1; key <= position; key++) most = fmax(most, scores[key]);
    total = 0.0;
    for (uint32_t key = 0; key <= position; key++) total += exp(scores[key] - most);
  }
  __syncthreads();
  double sum = 0.0;
  for (uint32_t key = 0; key <= position; key++)
    sum += exp(scores[key] - most) * double(p.v[(size_t(key) * kv_heads + kv) * HEAD + threadIdx.x]);
  p.out[(size_t(position) * p.heads + head) * HEAD + threadIdx.x] = float(sum / total);
}

template <uint32_t Q, uint32_t K, uint32_t V>
struct AttentionShared {
  static constexpr uint32_t SPAN = K > V ? K : V; /* keys of a round */
  float q[Q][HEAD_ROW], k[K][HEAD_ROW], v[V][HEAD_ROW], scores[Q][SPAN + 4];
  float most[Q], total[Q], keep[Q]; /* of a row so far; what its older sums are multiplied by */
};

/* Rows of HEAD floats, as many as `rows`; zeros from `there` on. */
template <uint32_t ROWS>
__device__ inline void load_rows(float (*to)[HEAD_ROW], const float *from, size_t apart, uint32_t there) {
  for (uint32_t i = threadIdx.x; i < ROWS * HEAD / 4; i += ATTENTION_THREADS) {
    const uint32_t row = i / (HEAD / 4), at = i % (HEAD / 4) * 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *(float4 *)&to[row][at] = row < there ? *(const float4 *)&from[row * apart + at] : zero;
  }
}

/* Block (tile of positions, key-value head). BLOCKS: that an SM shall hold, which caps the registers of a thread: what does not
 * fit is spilled. */
template <uint32_t Q, uint32_t K, uint32_t V, int BLOCKS>
__global__ void __launch_bounds__(ATTENTION_THREADS, BLOCKS) tiled_attention(Prompt p) {
  using Shared = AttentionShared<Q, K, V>;
  constexpr uint32_t SPAN = Shared::SPAN, ROWS = Q / 8, KEYS = K / 16, LANES = ATTENTION_THREADS / Q;
  static_assert(SPAN % K == 0 && SPAN % V == 0 && Q % PACKED == 0, "whole tiles");
  extern __shared__ __align__(16) unsigned char memory[];
  Shared &s = *(Shared *)memory;
  const uint32_t kv_heads = p.heads / PACKED, kv = blockIdx.y, first = blockIdx.x * (Q / PACKED);
  const uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const size_t apart = size_t(kv_heads) * HEAD;
  auto position_of = [&](uint32_t row) { return min(first + row / PACKED, p.tokens - 1); };
  for (uint32_t i = threadIdx.x; i < Q * HEAD / 4; i += ATTENTION_THREADS) {
    const uint32_t row = i / (HEAD / 4), at = i % (HEAD / 4) * 4;
    const size_t head = size_t(position_of(row)) * p.heads + kv * PACKED + row % PACKED;
    *(float4 *)&s.q[row][at] = *(const float4 *)&p.q[head * HEAD + at];
  }
  for (uint32_t row = threadIdx.x; row < Q; row += ATTENTION_THREADS) s.most[row] = -INFINITY, s.total[row] = 0.0f;
  float out[ROWS][4] = {};
  const uint32_t end = position_of(Q - 1) + 1; /* no row sees a key from here on */
  for (uint32_t base = 0; base < end; base += SPAN) {
#pragma unroll
    for (uint32_t part = 0; part < SPAN; part += K) {
      __syncthreads(); /* the tile of keys has been read, and in the first part all that the last round read */
      const uint32_t from = base + part, there = from < p.tokens ? p.tokens - from : 0;
      load_rows<K>(s.k, p.k + from * apart + kv * HEAD, apart, there);
      __syncthreads();
      float sum[ROWS][KEYS] = {};
#pragma unroll 4
      for (uint32_t d = 0; d < HEAD; d += 4) {
        float4 k[KEYS];
#pragma unroll
        for (uint32_t j = 0; j < KEYS; j++) k[j] = *(const float4 *)&s.k[tx + 16 * j][d];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
          const float4 q = *(const float4 *)&s.q[ty + 8 * i][d];
#pragma unroll
          for (uint32_t j = 0; j < KEYS; j++) sum[i][j] += q.x * k[j].x + q.y * k[j].y + q.z * k[j].z + q.w * k[j].w;
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < ROWS; i++)
#pragma unroll
        for (uint32_t j = 0; j < KEYS; j++) {
          const uint32_t row = ty + 8 * i, key = from + tx + 16 * j;
          s.scores[row][part + tx + 16 * j] = key <= position_of(row) ? sum[i][j] * SCALE : -INFINITY;
        }
    }
    __syncthreads();
    /* LANES neighbours have a row. Every row sees key 0, so from the first round on `most` is a number. */
    const uint32_t row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float most = s.most[row], total = 0.0f;
    const float before = most;
    for (uint32_t key = lane; key < SPAN; key += LANES) most = fmaxf(most, s.scores[row][key]);
#pragma unroll
    for (uint32_t step = 1; step < LANES; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (uint32_t key = lane; key < SPAN; key += LANES) {
      const float weight = expf(s.scores[row][key] - most);
      s.scores[row][key] = weight;
      total += weight;
    }
#pragma unroll
    for (uint32_t step = 1; step < LANES; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (lane == 0) {
      const float keep = expf(before - most);
      s.keep[row] = keep, s.most[row] = most, s.total[row] = s.total[row] * keep + total;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++)
#pragma unroll
      for (uint32_t c = 0; c < 4; c++) out[i][c] *= s.keep[ty + 8 * i];
#pragma unroll
    for (uint32_t part = 0; part < SPAN; part += V) {
      if (part > 0) __syncthreads(); /* the tile of values has been read */
      const uint32_t from = base + part, there = from < p.tokens ? p.tokens - from : 0;
      load_rows<V>(s.v, p.v + from * apart + kv * HEAD, apart, there);
      __syncthreads();
#pragma unroll 4
      for (uint32_t key = 0; key < V; key++) {
        const float4 v = *(const float4 *)&s.v[key][tx * 4];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
          const float weight = s.scores[ty + 8 * i][part + key];
          out[i][0] += weight * v.x, out[i][1] += weight * v.y, out[i][2] += weight * v.z, out[i][3] += weight * v.w;
        }
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < ROWS; i++) {
    const uint32_t row = ty + 8 * i, position = first + row / PACKED;
    if (position >= p.tokens) continue;
    const float share = 1.0f / s.total[row];
    float *to = p.out + (size_t(position) * p.heads + kv * PACKED + row % PACKED) * HEAD + tx * 4;
    *(float4 *)to = make_float4(out[i][0] * share, out[i][1] * share, out[i][2] * share, out[i][3] * share);
  }
}

#endif
