/* rows.cuh: the rows of skinny kernels (skinny/skinny.cuh) that norm them first: how consumer warps share a row, load it and
 * leave it normed in shared memory.
 */
#ifndef TAILGRAPH_SKINNY_ROWS_CUH
#define TAILGRAPH_SKINNY_ROWS_CUH

#include "skinny/skinny.cuh"
#include "common/rmsnorm.cuh"

constexpr uint32_t SKINNY_ROW_PARTS = 8;

/* Consumer warps that share one of `bucket` rows: a power of two. */
__device__ inline uint32_t warps_of_row(uint32_t bucket) {
  return SKINNY_CONSUMER_WARPS >> (bucket > 1 ? 32 - __clz(bucket - 1) : 0);
}

/* A row of h[H] as the warps of it see it: a thread has 4 columns in every 4 * (threads of the row), SKINNY_ROW_PARTS of
 * them loaded at once: all there are, up to 4 rows of H = 2048. */
struct SkinnyRow {
  const float *h;
  uint32_t hidden, step, base, thread;
  float4 v[SKINNY_ROW_PARTS];

  SkinnyRow() = default;

  /* Loaded: the first columns, or the last. */
  __device__ inline SkinnyRow(const float *h_, uint32_t hidden_, uint32_t bucket, bool last) : h(h_), hidden(hidden_) {
    const uint32_t threads = warps_of_row(bucket) * WARP;
    thread = 4 * (threadIdx.x & (threads - 1)), step = 4 * threads;
    base = last ? (hidden - 1) & ~(SKINNY_ROW_PARTS * step - 1) : 0;
    load();
  }

  __device__ inline void load() {
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_ROW_PARTS; i++) {
      if (base + i * step >= hidden) break;
      const uint32_t c = base + i * step + thread;
      v[i] = c < hidden ? load4(h + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  /* This warp's sum of squares, in every lane, from the first columns on; the last stay loaded. */
  __device__ inline float squares() {
    float sum = 0.0f;
    while (true) {
#pragma unroll
      for (uint32_t i = 0; i < SKINNY_ROW_PARTS; i++) {
        if (base + i * step >= hidden) break;
        sum = add_squares(sum, v[i]);
      }
      if (base + SKINNY_ROW_PARTS * step >= hidden) break;
      base += SKINNY_ROW_PARTS * step;
      load();
    }
    return sum_over_lanes(sum);
  }

  /* to[H] = the row, normed, from the last columns back; its parts are `apart` bytes from each other. */
  template <class Math>
  __device__ inline void store(char *to, uint32_t apart, float scale, const float *weight) {
    while (true) {
#pragma unroll
      for (uint32_t i = 0; i < SKINNY_ROW_PARTS; i++) {
        if (base + i * step >= hidden) break;
        const uint32_t c = base + i * step + thread;
        if (c < hidden) Math::store(reinterpret_cast<typename Math::S *>(to) + c, apart, normed(v[i], scale, load4(weight + c)));
      }
      if (base == 0) break;
      base -= SKINNY_ROW_PARTS * step;
      load();
    }
  }
};

/* All consumers: weight[H] to shared memory, which nobody writes while a step runs. Each has its share there after
 * copy_wait. */
__device__ inline void skinny_norm_weight(float *to, const float *weight, uint32_t hidden) {
#pragma unroll 2
  for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * SKINNY_CONSUMERS) copy16_async(to + c, weight + c, true);
  copy_commit();
}

/* All consumers: x[r,:] = rmsnorm(h[row_of(r),:]) at `pitch` bytes in shared memory, for r < rows of a bucket of
 * `bucket`, by which alone the sums are ordered. scratch[SKINNY_CONSUMER_WARPS]; weight[H] as skinny_norm_weight leaves it. x is
 * whole when they have met. */
template <class Math, class RowOf>
__device__ inline void skinny_norm(char *x, uint32_t pitch, const float *h, const float *weight, float *scratch, uint32_t rows,
                                uint32_t bucket, uint32_t hidden, float eps, RowOf row_of) {
  const uint32_t warps = warps_of_row(bucket), warp = threadIdx.x / WARP, r = warp / warps;
  SkinnyRow row(h + (size_t)(r < rows ? row_of(r) : 0) * hidden, hidden, bucket, false);
  const float mine = row.squares();
  if (threadIdx.x % WARP == 0) scratch[warp] = mine;
  copy_wait<0>();
  consumers_meet();
  if (r < rows) {
    float squares = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < SKINNY_CONSUMER_WARPS; w++)
      if (w < warps) squares += scratch[r * warps + w];
    row.store<Math>(x + r * pitch, bucket * pitch, 1.0f / sqrtf(squares / hidden + eps), weight);
  }
  consumers_meet();
}

#endif
