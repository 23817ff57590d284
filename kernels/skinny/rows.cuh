/* rows.cuh: RMSNorm at the beginning of a skinny kernel (skinny/skinny.cuh). It is done in the kernel that needs it, in every block
 * anew, since a kernel of its own would cost more. Consumer warps share the rows, and store them normed in shared memory.
 */
#pragma once

#include "skinny/skinny.cuh"
#include "common/rmsnorm.cuh"

constexpr uint32_t SKINNY_ROW_PARTS = 8;

/* How many consumer warps share a row, in a bucket of `bucket` rows: a power of two. */
__device__ inline uint32_t warps_of_row(uint32_t bucket) {
  return SKINNY_CONSUMER_WARPS >> (bucket > 1 ? 32 - __clz(bucket - 1) : 0);
}

/* A thread's part of a row h[H]: 4 neighbouring columns of every 4 * (threads of the row), a part. Up to
 * SKINNY_ROW_PARTS parts are in registers at once. For up to 4 rows of H = 2048 these are all, and the row is read once. */
struct SkinnyRow {
  const float *h;
  uint32_t hidden, step, base, thread;
  float4 v[SKINNY_ROW_PARTS];

  SkinnyRow() = default;

  /* Loads the first parts, or the last ones. */
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

  /* This warp's sum of squares, in every lane. It goes from the first parts to the last ones, which stay loaded. */
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

  /* to[H] = the row, normed. It goes from the last parts, which squares() has left loaded, back to the first. Where Math stores
   * several parts of a value, these are `apart` bytes from each other. */
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

/* All consumers begin to copy weight[H] to shared memory. No kernel of a step writes it, so this may come before the wait. After
 * copy_wait a thread's own share is there. */
__device__ inline void skinny_norm_weight(float *to, const float *weight, uint32_t hidden) {
#pragma unroll 2
  for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * SKINNY_CONSUMERS) copy16_async(to + c, weight + c, true);
  copy_commit();
}

/* All consumers: x[r,:] = rmsnorm(h[row_of(r),:]) for r < rows, in shared memory, rows `pitch` bytes from each other. How many warps
 * share a row, and so the order of its sum, follows from `bucket` alone: a row's bits are the same beside any others.
 * scratch[SKINNY_CONSUMER_WARPS]; weight[H] as skinny_norm_weight stores it. On return x is whole for all consumers. */
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
