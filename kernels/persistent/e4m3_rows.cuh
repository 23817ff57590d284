/* e4m3_rows.cuh: tiles of rows in 8 bits by weights in 8 bits (common/e4m3.cuh), which the tensor cores multiply at twice the speed of bf16.
 *
 * Each 128 columns of a row have a scale, with which their largest becomes E4M3_MOST. (A power of two would be 3% less exact of a norm's rows, and 17% of
 * what gate and up leave, whose largest are most of them.) A row lies as packed weights do, in pieces of 64 columns in e4m3_at()'s order: products do
 * not show it. Behind all rows [R, K] lie their scales, f32 [R, K / 128 rounded up].
 *
 * The tensor cores keep some 14 bits of what they accumulate, so the sums of 128 columns, a k-block, are added in f32, times the row's scale, by halves
 * of the tile's weight rows: for more there are no registers. The weights' scales come last, from shared memory, where they come while the tile is
 * multiplied.
 *
 * Bound: the tensor cores, 8,192 FLOP a cycle and SM; by hand shared memory: of a k-block of 256 weight rows 96 KB are read and 48 KB copied, 1,152 cycles
 * for 1,024. Measured in a step on an H200, 8,000 rows (by its clock of 1.7 GHz a peak of 1,840 TFLOP/s): 6144 outputs of 2048 in 188 us (1,070 TFLOP/s),
 * gate and up of 2 x 7168 in 438 (1,070), experts' gate and up, 32 of 1792, in 459 (1,020), down in 231 (1,020). A product in one sum, without the addition,
 * is 20% faster. profiles/log/weights-8-bits.md.
 */
#pragma once

#include "persistent/tile.cuh"
#include <cuda_fp8.h>

constexpr uint32_t E4M3_SCALED = TG_E4M3_ROWS_SCALED;

/* The scales of row `row` of so many rows, of `pitch` bytes each. */
template <typename Rows>
__device__ inline auto e4m3_scales(Rows *rows, uint32_t count, uint32_t pitch, uint32_t row) {
  using Scale = std::conditional_t<std::is_const_v<Rows>, const float, float>;
  using Byte = std::conditional_t<std::is_const_v<Rows>, const char, char>;
  return reinterpret_cast<Scale *>(static_cast<Byte *>(rows) + (size_t)count * pitch) + (size_t)row * ((pitch + E4M3_SCALED - 1) / E4M3_SCALED);
}

/* The scale of columns whose largest size is `most`, and what they are multiplied by. From 2^126 on the scale is not a number, nor is what comes of it. */
struct E4m3Scale {
  float scale, by;
};
__device__ inline E4m3Scale e4m3_scale(float most) {
  most = fmaxf(most, 0x1p-100f);
  return {most < 0x1p126f ? most * (1.0f / E4M3_MOST) : NAN, __fdividef(E4M3_MOST, most)};
}

/* Eight pairs of columns as a piece of 16 bytes. */
__device__ inline uint4 e4m3_piece(const float2 (&v)[8], float by) {
  auto pair = [&](float2 of) -> uint32_t { return __nv_cvt_float2_to_fp8x2(make_float2(of.x * by, of.y * by), __NV_SATFINITE, __NV_E4M3); };
  auto word = [&](uint32_t t) { return pair(v[2 * t]) | pair(v[2 * t + 1]) << 16; };
  return make_uint4(word(0), word(1), word(2), word(3));
}

/* The scales of a thread's two rows, a k-block's after another's, of which the next ones are under way. Where rows are not in 8 bits there are none. */
template <class Tile>
struct PersistentRowScales {
  const float *of_row[2];
  float now[2], later[2];

  __device__ inline PersistentRowScales(const PersistentProduct &product, const PersistentWorkTile &tile, uint32_t group) {
    if constexpr (Tile::E4M3_ROWS) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = group * GMMA_M + threadIdx.x % GMMA_GROUP / WARP * PERSISTENT_WARP_ROWS + threadIdx.x % WARP / 4 + half * 8;
        const uint32_t place = tile.first + min(row, tile.rows - 1);
        of_row[half] = e4m3_scales(product.x, product.x_plane, product.k_total * sizeof(E4m3x2), Tile::GATHERS ? product.gather[place] : place);
        later[half] = *of_row[half];
      }
    }
  }
  __device__ inline void next(bool more) {
    if constexpr (Tile::E4M3_ROWS) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        now[half] = later[half];
        if (more) later[half] = *++of_row[half];
      }
    }
  }
  /* acc and a k-block's sum, which is this thread's i-th. */
  __device__ inline float add(float acc, float sum, uint32_t i) const {
    if constexpr (Tile::E4M3_ROWS) return fmaf(sum, now[i / 2 % 2], acc);
    else return acc + sum;
  }
};

/* A warp's copies of a tile's weights' scales to `out`, those of 8 weight rows after another's, as sums lie. They are there when persistent_scale() asks. */
template <class Tile>
__device__ inline void persistent_load_scales(char *out, const PersistentProduct &product, const PersistentWorkTile &tile) {
  const bool paired = product.epilogue == TILED_SILU_MUL;
  __syncwarp();  /* the rows of the tile before have left `out` */
#pragma unroll
  for (uint32_t piece = threadIdx.x % WARP; piece < Tile::WIDTH / 4; piece += WARP) {
    const uint32_t group = piece / 2;
    const float *from = paired && (group % 2 > 0) != product.is_up_first ? product.scale_pair : product.scale;
    const uint32_t n = tile.slice * (paired ? Tile::WIDTH / 2 : Tile::WIDTH) + (paired ? group / 2 : group) * 8 + piece % 2 * 4;
    const bool has = n < product.n_total;
    copy16_async(out + piece * 16, from + tile.expert * product.n_total + (has ? n : 0), has);
  }
  copy_commit();
}

/* acc times the scales that lie in `out`. */
template <class Tile>
__device__ inline void persistent_scale(typename Tile::Acc &acc, const char *out) {
  copy_wait<0>();
  __syncwarp();
  const float2 *scales = reinterpret_cast<const float2 *>(out) + threadIdx.x % 4;
#pragma unroll
  for (uint32_t i = 0; i < Tile::WIDTH / 8; i++) {
    const float2 scale = scales[4 * i];
    acc[4 * i] *= scale.x, acc[4 * i + 1] *= scale.y, acc[4 * i + 2] *= scale.x, acc[4 * i + 3] *= scale.y;
  }
}

/* A warp stores 128 outputs of its rows, from output n on, in 8 bits. `pair(i, half)` as persistent_store() has it: a thread's pairs of 64 outputs are
 * the 16 bytes of a piece. */
template <class Pair>
__device__ inline void persistent_store_e4m3(const PersistentProduct &product, uint32_t first, uint32_t rows, uint32_t n, Pair pair) {
  const uint32_t q = threadIdx.x % 4, pitch = packed_columns(product.n_total);
#pragma unroll
  for (uint32_t half = 0; half < 2; half++) {
    float2 v[2][8];
    float most = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
      const float2 of = pair(i, half);
      v[i / 8][i % 8] = of;
      most = fmaxf(most, fmaxf(fabsf(of.x), fabsf(of.y)));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const E4m3Scale scale = e4m3_scale(most);
    const uint32_t row = threadIdx.x % WARP / 4 + half * 8;
    if (row >= rows) continue;
    E4m3 *to = static_cast<E4m3 *>(product.y) + (size_t)(first + row) * pitch + n + q * 16;
#pragma unroll
    for (uint32_t block = 0; block < 2; block++)
      if (n + block * PACKED_COLUMNS < pitch) __stcg(reinterpret_cast<uint4 *>(to + block * PACKED_COLUMNS), e4m3_piece(v[block], scale.by));
    if (q == 0) __stcg(e4m3_scales(product.y, product.y_plane, pitch, first + row) + n / E4M3_SCALED, scale.scale);
  }
}
