/* add.cuh: what the kernels share that add a product to the residual stream h: how a warp loads its columns of the batch rows, and
 * what a tile of the new h contributes to the router's scores. A kernel that had to read all of h for the router would cost more than
 * these shares, which the next kernel adds up.
 */
#pragma once

#include "skinny/args.h"
#include "skinny/choice.cuh"
#include "skinny/skinny.cuh"

/* The router's gate[E,H], and the weight of the norm before it, norm_weight[H]. */
struct SkinnyScores {
  const float *gate, *norm_weight;
  uint32_t expert_count;
};

constexpr uint32_t SCORE_PITCH = TG_SKINNY_SCORE_PITCH;
static_assert(SCORE_PITCH % 2 == 1, "lanes with a row each meet in no bank");

/* A tile's share of the router's scores. All consumers use it: thread (r, i), r = thread / SKINNY_OUTPUTS and i the rest, has channel i
 * of the tile for batch row r. */
template <uint32_t WORDS>
struct SkinnyTileScores {
  static constexpr uint32_t EXPERTS = WORDS * WARP, GATES = EXPERTS * SKINNY_OUTPUTS / SKINNY_CONSUMERS;

  const SkinnyScores scores;
  float *tile_h, *tile_gate;  /* in shared memory: a tile of h[bucket, SCORE_PITCH], and of gate times norm [E, SCORE_PITCH] */
  float gate[GATES], norm;

  __device__ inline SkinnyTileScores(void *memory, const SkinnyScores &scores_, uint32_t bucket)
      : scores(scores_), tile_h(static_cast<float *>(memory)), tile_gate(tile_h + bucket * SCORE_PITCH) {}

  static __device__ inline uint32_t bytes_of(uint32_t bucket, uint32_t expert_count) {
    return ((bucket + expert_count) * SCORE_PITCH * sizeof(float) + 15) / 16 * 16;
  }

  /* Loads gate and norm of a tile's channels to registers, long before store() uses them. */
  __device__ inline void load(uint32_t tile, uint32_t outputs) {
    const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, n = tile * SKINNY_OUTPUTS + threadIdx.x % SKINNY_OUTPUTS;
    norm = scores.norm_weight[n];
#pragma unroll
    for (uint32_t g = 0; g < GATES; g++) {
      const uint32_t e = g * (SKINNY_CONSUMERS / SKINNY_OUTPUTS) + r;
      gate[g] = e < scores.expert_count ? scores.gate[(size_t)e * outputs + n] : 0.0f;
    }
  }

  /* Stores the tile's share of the scores, and of the sum of squares that the norm divides by. `v` is this thread's new value of h. */
  __device__ inline void store(const SkinnyParts<WORDS> &parts, uint32_t tile, float v, uint32_t count, uint32_t bucket) {
    const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (r < bucket) tile_h[r * SCORE_PITCH + i] = v;
#pragma unroll
    for (uint32_t g = 0; g < GATES; g++) {
      const uint32_t e = g * (SKINNY_CONSUMERS / SKINNY_OUTPUTS) + r;
      if (e < scores.expert_count) tile_gate[e * SCORE_PITCH + i] = gate[g] * norm;
    }
    consumers_meet();
    if (warp >= count) return;
    /* each warp has a row from here on, and each lane one expert of every WARP */
    const float *of_h = tile_h + warp * SCORE_PITCH;
    float score[WORDS] = {}, squares = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++) {
      const float *with = tile_gate + min(lane + w * WARP, scores.expert_count - 1) * SCORE_PITCH;
#pragma unroll
      for (uint32_t c = 0; c < SKINNY_OUTPUTS; c++) {
        score[w] = fmaf(of_h[c], with[c], score[w]);
        if (w == 0) squares = fmaf(of_h[c], of_h[c], squares);
      }
    }
    const size_t at = (size_t)warp * parts.tiles + tile;
#pragma unroll
    for (uint32_t w = 0; w < WORDS; w++) parts.scores[at * EXPERTS + lane + w * WARP] = score[w];
    if (lane == 0) parts.squares[at] = squares;
  }
};

/* A consumer warp loads its share of a stage's `k_here` columns of this lane's batch row. They begin at `from` in global memory; a row
 * that is not `there` is zeros. 16-bit rows go to registers. f32 rows go through `x`, [PARTS, bucket, pitch bytes] in shared memory. */
template <class Math>
__device__ inline void skinny_fetch(SkinnyColumns<Math> &columns, char *x, uint32_t pitch, const typename Math::X *from,
                                 uint32_t k_here, uint32_t bucket, bool there) {
  using X = typename Math::X;
  using S = typename Math::S;
  const uint32_t lane = threadIdx.x % WARP, column = skinny_lane_column();
  if constexpr (Math::HELD && Math::PARTS == 1) {
    columns.load(from, k_here, there);
    return;
  } else if constexpr (Math::HELD) {
    /* lanes share the work of a row, and have read what was there before */
    __syncwarp();
    S *to = reinterpret_cast<S *>(x + Math::lane_row(bucket) * pitch);
    float4 v[SKINNY_BF16X3_ROWS][2] = {};
    uint32_t at[SKINNY_BF16X3_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_BF16X3_ROWS; i++) {
      at[i] = skinny_unit_at(Math::lane_part(bucket) + i * (SKINNY_UNITS / 2));
      if (i >= bucket || at[i] >= k_here) at[i] = k_here;
      else if (there) v[i][0] = load4(from + column + at[i]), v[i][1] = load4(from + column + at[i] + 4);
    }
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_BF16X3_ROWS; i++) {
      if (at[i] == k_here) continue;
      Math::store(to + column + at[i], bucket * pitch, v[i][0]);
      Math::store(to + column + at[i] + 4, bucket * pitch, v[i][1]);
    }
  } else {
    __syncwarp();  /* lanes have read what was there before */
    X *to = reinterpret_cast<X *>(x + lane / 4 * pitch) + column;
    if (lane / 4 < bucket) {
#pragma unroll 2
      for (uint32_t u = 0; u < SKINNY_UNITS && skinny_unit_at(u) < k_here; u++) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i += 16 / sizeof(X))
          copy16_async(to + skinny_unit_at(u) + i, from + (there ? column + skinny_unit_at(u) + i : 0), there);
      }
    }
    copy_commit();
    copy_wait<0>();
  }
  __syncwarp();
  columns.load(reinterpret_cast<const S *>(x + Math::lane_place(bucket, bucket) * pitch), k_here, true);
}
