/* warp_keys.cuh: the keys of a row that one warp takes, for all query heads of a block (attention/decode.cu).
 *
 * WarpKeys<T, D> loads keys and values a tile of KEYS at a time from the pages to registers, and keeps each head's maximum, total
 * and weighted values of those so far. Scores are in units of log2. The next tile's keys may be loaded once score() is through with
 * this one's, its values once weigh() is.
 */
#pragma once

#include "attention/args.h"
#include "common/base.cuh"
#include "common/global.cuh"
#include "common/mma.cuh"
#include <float.h>

/* Whether a tile is loaded before the grid dependency wait, and while the one before it is weighed. GPUs before sm_90 have no such wait,
 * and there the compiler needs more registers for it than there are. (Without nvcc the host runs it, for tests.) */
#if __CUDA_ARCH__ >= 900 || !defined(__CUDACC__)
constexpr bool LOADS_AHEAD = true;
#else
constexpr bool LOADS_AHEAD = false;
#endif

__device__ inline uint32_t word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* `token` is the index of key lane % KEYS of a tile in `pages`, a vector each. q is in shared memory, [HEADS, D]. g is lane / 4, and t lane
 * % 4. */
template <typename T, int D>
struct WarpKeys {
  static constexpr int ROWS = 2;  /* that may share keys, of half of the heads each */
  static constexpr int HEADS = TG_DECODE_HEADS, KEYS = 16, LINES = KEYS / 8, PARTS = D / 32, SPANS = D / 64;
  uint4 k[LINES * PARTS];       /* of key 8 line + g, elements 32 part + 8t .. */
  uint4 v[4 * SPANS];          /* of keys 2t + 0, 1, 8, 9, elements 64 span + 8g .. */
  uint4 q[PARTS];               /* of head g, as k */
  float highest, total;         /* of head g; this lane's part */
  float sums[4 * SPANS][4];    /* of elements 64 span + 8g + 2j and .. + 1, each of heads 2t and 2t + 1 */

  __device__ inline void load_keys(const T *pages, uint32_t token) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      const T *from = pages + (size_t)__shfl_sync(0xffffffffu, token, 8 * line + g) * D + 8 * t;
#pragma unroll
      for (int part = 0; part < PARTS; part++) k[line * PARTS + part] = load16(from + 32 * part);
    }
  }

  __device__ inline void load_values(const T *pages, uint32_t token) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const T *from = pages + (size_t)__shfl_sync(0xffffffffu, token, 2 * t + i / 2 * 8 + i % 2) * D + 8 * g;
#pragma unroll
      for (int span = 0; span < SPANS; span++) v[i * SPANS + span] = load16(from + 64 * span);
    }
  }

  __device__ inline void begin(const T *queries) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      q[part] = *reinterpret_cast<const uint4 *>(queries + g * D + 32 * part + 8 * t);
    highest = -FLT_MAX, total = 0.0f; /* not infinity: a tile may have no keys of this head yet */
#pragma unroll
    for (int j = 0; j < 4 * SPANS; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[j][i] = 0.0f;
  }

  struct Scores {
    float of[LINES][2];  /* of keys 8 line + 2t, + 1 */
  };

  __device__ inline Scores score() const {
    Scores scores;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      float c[4] = {};
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const uint4 &a = q[part], &b = k[line * PARTS + part];
        mma<T>(c, {a.x, 0, a.y, 0}, b.x, b.y);
        mma<T>(c, {a.z, 0, a.w, 0}, b.z, b.w);
      }
      scores.of[line][0] = c[0], scores.of[line][1] = c[1];
    }
    return scores;
  }

  /* Weighs the values of `there` keys. ALONE: they are of row `row` of two; the other one's sums stay as they are, since even 0 times
   * infinity would be seen. */
  template <bool ALONE = false>
  __device__ inline void weigh(Scores &scores, float scale, uint32_t there, uint32_t row = 0) {
    if (ALONE && threadIdx.x % WARP / 16 != row) there = 0;
    const int t = threadIdx.x % 4;
    float top = highest;
#pragma unroll
    for (int line = 0; line < LINES; line++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float &score = scores.of[line][i];
        score = 8 * line + 2 * t + i < there ? score * scale : -INFINITY;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (__any_sync(0xffffffffu, top > highest)) {
      const float shrink = exp2f(highest - top);
      highest = top, total *= shrink;
      const float of_heads[2] = {__shfl_sync(0xffffffffu, shrink, 8 * t), __shfl_sync(0xffffffffu, shrink, 8 * t + 4)};
#pragma unroll
      for (int j = 0; j < 4 * SPANS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[j][i] *= of_heads[i % 2];
    }
    uint32_t first_bits[LINES], rest[LINES];
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      const float lo = exp2f(scores.of[line][0] - top), hi = exp2f(scores.of[line][1] - top);
      total += lo + hi;
      first_bits[line] = pack2<T>(lo, hi);
      rest[line] = pack2<T>(lo - float(T(lo)), hi - float(T(hi)));
    }
#pragma unroll
    for (int span = 0; span < SPANS; span++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const auto pair = [&](int key, int choice) {
          return __byte_perm(word(v[key * SPANS + span], j), word(v[(key + 1) * SPANS + span], j), choice);
        };
        const uint32_t elements[4] = {pair(0, 0x5410), pair(0, 0x7632), pair(2, 0x5410), pair(2, 0x7632)};
        float(&sum)[4] = sums[4 * span + j];
        const float before[4] = {sum[0], sum[1], sum[2], sum[3]};
        mma<T>(sum, elements, first_bits[0], first_bits[1]);
        mma<T>(sum, elements, rest[0], rest[1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (ALONE && t / 2 != row) sum[i] = before[i];
      }
  }

  /* maximum[HEADS], sum[HEADS], weighted[HEADS, D]; of the second half of the heads those that lie so many warps' arrays further. */
  __device__ inline void end(float *maximum, float *sum, float *weighted, int further = 0) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int at = g + g / 4 * further * HEADS;
    if (t == 0) maximum[at] = highest, sum[at] = total;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 4 * SPANS; j++)
        *reinterpret_cast<float2 *>(weighted + (2 * t + i + t / 2 * further * HEADS) * D + j / 4 * 64 + 8 * g + j % 4 * 2) =
            make_float2(sums[j][i], sums[j][i + 2]);
  }
};

/* A key is 16 bytes in each of LANES lanes. */
template <int D>
struct WarpKeys<float, D> {
  static constexpr int ROWS = 1;
  static constexpr int HEADS = TG_DECODE_HEADS_F32, KEYS = (LOADS_AHEAD ? 1024 : 512) / D, LANES = D / 4, AT_ONCE = WARP / LANES, SLOTS = KEYS / AT_ONCE;
  float4 k[SLOTS], v[SLOTS];  /* of key AT_ONCE slot + lane / LANES, elements 4 (lane % LANES) .. */
  float4 q[HEADS];
  float highest[HEADS], total[HEADS];
  float4 sums[HEADS];

  __device__ static inline void load(float4 (&to)[SLOTS], const float *pages, uint32_t token) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
      const uint32_t at = __shfl_sync(0xffffffffu, token, AT_ONCE * slot + lane / LANES);
      const uint4 raw = load16(pages + (size_t)at * D + lane % LANES * 4);
      to[slot] = make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w));
    }
  }

  __device__ inline void load_keys(const float *pages, uint32_t token) { load(k, pages, token); }

  __device__ inline void load_values(const float *pages, uint32_t token) { load(v, pages, token); }

  __device__ inline void begin(const float *queries) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      q[h] = load4(queries + h * D + threadIdx.x % LANES * 4);
      highest[h] = -INFINITY, total[h] = 0.0f, sums[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  struct Scores {
    float of[SLOTS][HEADS];
  };

  __device__ inline Scores score() const {
    Scores scores;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++)
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float dot = q[h].x * k[slot].x;
        dot = fmaf(q[h].y, k[slot].y, dot), dot = fmaf(q[h].z, k[slot].z, dot), dot = fmaf(q[h].w, k[slot].w, dot);
        scores.of[slot][h] = sum_over_lanes<LANES>(dot);
      }
    return scores;
  }

  __device__ inline void weigh(Scores &scores, float scale, uint32_t there) {
    const int first = threadIdx.x % WARP / LANES;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float top = highest[h];
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot++) {
        float &score = scores.of[slot][h];
        score = AT_ONCE * slot + first < there ? score * scale : -INFINITY;
        top = fmaxf(top, score);
      }
#pragma unroll
      for (int offset = LANES; offset < WARP; offset *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      const float shrink = exp2f(highest[h] - top);
      highest[h] = top, total[h] *= shrink;
      float4 &sum = sums[h];
      sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink;
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot++) {
        const float weight = exp2f(scores.of[slot][h] - top);
        total[h] += weight;
        add_weighed(sum, weight, v[slot]);
      }
    }
  }

  __device__ inline void end(float *maximum, float *sum, float *weighted) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float4 &all = sums[h];
#pragma unroll
      for (int offset = LANES; offset < WARP; offset *= 2) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], offset);
        all.x += __shfl_xor_sync(0xffffffffu, all.x, offset), all.y += __shfl_xor_sync(0xffffffffu, all.y, offset);
        all.z += __shfl_xor_sync(0xffffffffu, all.z, offset), all.w += __shfl_xor_sync(0xffffffffu, all.w, offset);
      }
      if (lane == 0) maximum[h] = highest[h], sum[h] = total[h];
      if (lane < LANES) store4(weighted + h * D + 4 * lane, all);
    }
  }
};
