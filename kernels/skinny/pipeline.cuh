/* pipeline.cuh: the pipeline of weights that a block of a skinny kernel (skinny/skinny.cuh) has in shared memory. The memory must never
 * stand idle, whatever the multiplying warps wait for. So one warp, the producer, issues copies into the pipeline's stages. Unlike
 * wgmma/pipeline.cuh it bounds how many stages are under way, and its stages change their width.
 *
 *   warp       does                                   waits on                                            signals
 *   producer   copies weight rows into a stage        the stage's empty barrier, and the full barrier of   the stage's full barrier, by
 *                                                     the stage SKINNY_AHEAD before                        expect_tx
 *   consumers  multiply their units of the stage      the stage's full barrier                             its empty barrier, one a warp
 */
#pragma once

#include "skinny/skinny.cuh"
#include "common/bulk.cuh"
#include "common/packed.cuh"

/* Unit u of a row's pieces of 16 bytes, which hold one unit of 16-bit weights, or two of 8-bit ones. */
template <typename W>
__device__ inline auto skinny_unit(const uint4 *pieces, uint32_t u) {
  if constexpr (IS_E4M3<W>) return u % 2 ? make_uint2(pieces[u / 2].z, pieces[u / 2].w) : make_uint2(pieces[u / 2].x, pieces[u / 2].y);
  else return pieces[u];
}

/* A lane's part of some of its warp's units of a stage: 16 bytes each of one weight row, g = lane / 4. */
template <uint32_t UNITS, typename W>
struct SkinnyRun {
  uint4 units[UNITS];

  /* Reads the units from `first` on. A stage's rows begin `pitch` bytes from each other, and a row's lines `apart` bytes. The stage has
   * `k_here` columns; a line past them is read as zeros. Shared memory serves 8 lanes at a time, of two rows. Both rows begin in the same
   * bank. So the lanes of every other row read a line's second half first: then no two of the 8 lanes want the same bank. */
  __device__ inline void take(const char *rows, uint32_t pitch, uint32_t apart, uint32_t first, uint32_t k_here) {
    static_assert(SKINNY_LINE_UNITS * SKINNY_UNIT * sizeof(W) == SKINNY_LINE && SKINNY_LINE_UNITS == 2, "a unit is half a line");
    const uint32_t lane = threadIdx.x % WARP, turned = lane / 4 % 2;
    const char *row = rows + lane / 4 * pitch + skinny_lane_column() * sizeof(W);
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u++) {
      const uint32_t line = skinny_unit_at((first + u) / 2 * 2);
      const char *at = row + line / (SKINNY_LINE_UNITS * SKINNY_UNIT) * apart + (u % 2 ^ turned) * SKINNY_UNIT * sizeof(W);
      units[u] = line < k_here ? *reinterpret_cast<const uint4 *>(at) : make_uint4(0, 0, 0, 0);
    }
  }

  /* The u-th unit in the order of columns; zeros unless it is `there`. */
  __device__ inline uint4 unit(uint32_t u, bool there) const {
    const uint4 unit = threadIdx.x / 4 % 2 ? units[u ^ 1] : units[u];
    return there ? unit : make_uint4(0, 0, 0, 0);
  }
};

/* In 8 bits a lane's 16 bytes are two units, a packed block's columns. Rows lie packed: 8 lanes read what lies side by side. In place of a line
 * past the stage's columns the row's last one is read again. Batch rows are zeros there, no 8 bits are infinite, and bits that are not a number have
 * made the row's sums so already. */
template <uint32_t UNITS>
struct SkinnyRun<UNITS, E4m3> {
  uint4 lines[UNITS / SKINNY_LINE_UNITS];

  __device__ inline void take(const char *rows, uint32_t, uint32_t, uint32_t first, uint32_t k_here) {
    const uint32_t lane = threadIdx.x % WARP;
    const char *row = rows + lane / 4 * PACKED_COLUMNS + lane % 4 * 16;
    const uint32_t last = (k_here - 1) / PACKED_COLUMNS * PACKED_BLOCK;
#pragma unroll
    for (uint32_t i = 0; i < UNITS / SKINNY_LINE_UNITS; i++)
      lines[i] = *reinterpret_cast<const uint4 *>(row + min(skinny_unit_at(first + SKINNY_LINE_UNITS * i) * PACKED_ROWS, last));
  }

  __device__ inline uint2 unit(uint32_t u, bool) const { return skinny_unit<E4m3>(lines, u); }
};

/* Up to SKINNY_STAGE_ROWS consecutive weight rows, and in 8 bits their scales: what fills one stage. */
template <class Math>
struct SkinnyRows {
  using W = typename Math::W;
  const W *at;
  uint32_t count;
  const float *scales;

  /* The rows of w[outputs,inner], whose scales[outputs] are, from row n on. n is a multiple of SKINNY_STAGE_ROWS. */
  static __device__ inline SkinnyRows of(const W *w, const float *scales, uint32_t n, uint32_t outputs, uint32_t inner) {
    const uint32_t row = Math::PACKED ? packed_columns(inner) : inner;
    return {w + (size_t)n * row, n < outputs ? min(outputs - n, SKINNY_STAGE_ROWS) : 0, IS_E4M3<W> ? scales + n : nullptr};
  }
};
static_assert(SKINNY_STAGE_ROWS == PACKED_ROWS && SKINNY_LINE_UNITS * SKINNY_UNIT == PACKED_COLUMNS, "a stage has whole blocks");

/* A stage holds SKINNY_STAGE_ROWS weight rows, `k` of their K columns each. Rows begin `pitch` bytes from each other, but
 * packed ones lie as they do in memory. Stages begin `room` bytes from each other, the first at the first line of `memory`. A stage's last
 * line has the scales of weights in 8 bits: loaded by consumers they would stand behind all that is under way, a tile's time. */
template <class Math>
struct SkinnyPipeline {
  using W = typename Math::W;
  using S = typename Math::S;

  static constexpr uint32_t SMALLER = 2 / sizeof(W);  /* stages of as many bytes as one of 16-bit weights */

  char *stages;
  uint64_t *full, *empty;  /* [TG_SKINNY_MOST_STAGES] each */
  uint32_t k, pitch, room, count;
  uint32_t at = 0, parity = 0;
  /* The producer's own: how many stages are under way, the oldest of them, and for how many of the next ones it waits until all before
   * have come. */
  uint32_t under_way = 0, oldest = 0, oldest_parity = 0, one_by_one = 0;

  static constexpr bool SCALED = IS_E4M3<W>;

  static __host__ __device__ constexpr uint32_t stage_bytes(uint32_t inner) {
    return SKINNY_STAGE_ROWS * skinny_stage_pitch(skinny_stage_k(inner) * sizeof(W)) + SCALED * SKINNY_LINE;
  }

  /* For rows of `inner` columns. With `later`, its stages also have room for rows of so many columns (set_width). */
  __device__ inline SkinnyPipeline(void *memory, uint64_t *barriers, uint32_t inner, uint32_t stages_, uint32_t later = 0)
      : stages(static_cast<char *>(memory) + (SKINNY_LINE - shared_address(memory) % SKINNY_LINE) % SKINNY_LINE), full(barriers),
        empty(barriers + TG_SKINNY_MOST_STAGES), k(skinny_stage_k(inner)), pitch(skinny_stage_pitch(k * sizeof(W))),
        room(later ? max(stage_bytes(inner), stage_bytes(later)) : stage_bytes(inner)), count(stages_) {}

  /* From the next stage on, rows have `inner` columns. */
  __device__ inline void set_width(uint32_t inner) { k = skinny_stage_k(inner), pitch = skinny_stage_pitch(k * sizeof(W)); }

  /* By one thread, before any other uses the pipeline. */
  __device__ inline void init() {
    for (uint32_t s = 0; s < count; s++) barrier_init(full + s, 1), barrier_init(empty + s, SKINNY_CONSUMER_WARPS);
    barriers_ready();
  }

  __device__ inline char *stage() const { return stages + at * room; }
  __device__ inline float *scales() const { return reinterpret_cast<float *>(stage() + room - SKINNY_LINE); }

  __device__ inline void next() {
    if (++at == count) at = 0, parity ^= 1;
  }

  __device__ inline uint32_t stages_of_tile(uint32_t inner) const { return SKINNY_TILE_RUNS * ((inner + k - 1) / k); }

  /* Where a stage's weights are in memory: `count` rows of `bytes` bytes each, the first at `at`. Packed rows lie together. */
  struct Source {
    const W *at;
    uint32_t count, bytes;
    const float *scales;
  };
  /* The source of stage `stage_of_tile` of a tile, whose two runs of rows come by turns. Rows have `inner` columns. */
  __device__ inline Source source(const SkinnyRows<Math> &first, const SkinnyRows<Math> &second, uint32_t inner, uint32_t stage_of_tile) const {
    const bool even = stage_of_tile % SKINNY_TILE_RUNS == 0;
    const uint32_t from = stage_of_tile / SKINNY_TILE_RUNS * k, columns = min(k, inner - from);
    return {(even ? first.at : second.at) + (Math::PACKED ? packed_along(from) : from), even ? first.count : second.count,
            (Math::PACKED ? packed_columns(columns) : columns) * uint32_t(sizeof(W)), even ? first.scales : second.scales};
  }

  /* The producer's first stages come one by one, as many bytes at a time as one of 16-bit weights has. */
  __device__ inline void begin_one_by_one() { one_by_one = SKINNY_ONE_BY_ONE * SMALLER; }

  /* The producer copies stages `begin` to `end` of a tile, each as soon as a stage is empty. At most SKINNY_AHEAD are under way at once,
   * since whatever else is read of memory stands behind all of them. */
  __device__ inline void load(const SkinnyRows<Math> &first, const SkinnyRows<Math> &second, uint32_t inner, uint64_t policy,
                              uint32_t begin, uint32_t end) {
    const uint32_t lane = threadIdx.x % WARP;
    const bool together = Math::PACKED || inner * sizeof(W) == pitch;  /* rows lie as they do in memory: one copy */
#pragma unroll 1
    for (uint32_t stage_of_tile = begin; stage_of_tile < end; stage_of_tile++, next()) {
      const Source from = source(first, second, inner, stage_of_tile);
      barrier_wait(empty + at, parity ^ 1);
      const uint32_t most = (one_by_one > 0 ? 1 : SKINNY_AHEAD) * SMALLER;
      if (one_by_one > 0) one_by_one--;
#pragma unroll 1
      for (; under_way >= most; under_way--) {
        barrier_wait(full + oldest, oldest_parity);
        if (++oldest == count) oldest = 0, oldest_parity ^= 1;
      }
      under_way++;
      __syncwarp();  /* a lane that is behind would wait for a later phase, once consumers had released this stage */
      if (lane == 0) {
        const uint32_t scale_bytes = SCALED ? from.count * sizeof(float) : 0;
        barrier_arrive_expecting(full + at, from.count * from.bytes + scale_bytes);
        if (together && from.count > 0) bulk_copy(stage(), from.at, from.count * from.bytes, full + at, policy);
        if (SCALED && from.count > 0) bulk_copy(scales(), from.scales, scale_bytes, full + at, policy);
      }
      __syncwarp();
      if (!together && lane < from.count)
        bulk_copy(stage() + lane * pitch, from.at + (size_t)lane * inner, from.bytes, full + at, policy);
    }
  }

  __device__ inline void load(const SkinnyRows<Math> &first, const SkinnyRows<Math> &second, uint32_t inner, uint64_t policy) {
    load(first, second, inner, policy, 0, stages_of_tile(inner));
  }

  /* The producer prefetches a stage of a tile into L2, where the pipeline has no room for it yet. */
  __device__ inline void prefetch(const SkinnyRows<Math> &first, const SkinnyRows<Math> &second, uint32_t inner, uint64_t policy,
                                    uint32_t stage_of_tile) const {
    const Source from = source(first, second, inner, stage_of_tile);
    const uint32_t lane = threadIdx.x % WARP, row = Math::PACKED ? from.bytes / sizeof(W) : inner;
    if (lane < from.count) bulk_prefetch(from.at + (size_t)lane * row, from.bytes, policy);
  }

  /* A consumer warp releases a stage and goes on to the next; of it which all its lanes have read what they need. */
  __device__ inline void release_and_next() {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(empty + at);
    next();
  }

  /* A consumer warp releases two stages that it has gone on from. */
  __device__ inline void release(uint32_t first, uint32_t second) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(empty + first), barrier_arrive(empty + second);
  }

  /* A consumer warp discards a stage that is not needed. */
  __device__ inline void discard() {
    barrier_wait(full + at, parity);
    release_and_next();
  }

  /* A consumer warp: acc += its products over the next two stages, one of each run, of `k_here` columns. In 8 bits it releases both
   * at once, so that it waits for its reads once. */
  __device__ inline void multiply(SkinnyTileSums &acc, uint32_t k_here, const SkinnyColumns<Math> &columns) {
    constexpr uint32_t AT_ONCE = Math::AT_ONCE;
    SkinnyTileSums sums[Math::SUMS];
    static_assert(SKINNY_UNITS % AT_ONCE == 0 && AT_ONCE % Math::SUMS == 0, "the same units in each sum, however many at once");
    const uint32_t first_at = at, first_parity = parity;  /* the two stages are read in several rounds */
    uint32_t last_at;
    float scale[SKINNY_TILE_RUNS];
#pragma unroll 1
    for (uint32_t first = 0; first < SKINNY_UNITS; first += AT_ONCE) {
      SkinnyRun<AT_ONCE, W> runs[SKINNY_TILE_RUNS];
      if (AT_ONCE < SKINNY_UNITS) at = first_at, parity = first_parity;
#pragma unroll
      for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
        if (first == 0) {
          barrier_wait(full + at, parity);
          if constexpr (SCALED) scale[run] = scales()[threadIdx.x % WARP / 4];
        }
        runs[run].take(stage(), Math::PACKED ? SKINNY_LINE : pitch, Math::PACKED ? PACKED_ROWS * SKINNY_LINE : SKINNY_LINE, first, k_here);
        last_at = at;
        if (!SCALED && first + AT_ONCE == SKINNY_UNITS) release_and_next();
        else next();
      }
      if (SCALED && first + AT_ONCE == SKINNY_UNITS) release(first_at, last_at);
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++) {
        const bool there = skinny_unit_at(first + i) < k_here;
        Math::multiply(sums[i % Math::SUMS], runs[0].unit(i, there), runs[1].unit(i, there), columns.piece(first + i, there));
      }
    }
    if constexpr (SCALED) skinny_add_up<Math>(acc, sums, scale);
    else skinny_add_up<Math>(acc, sums);
  }

  /* A consumer warp's sums of a tile. Where a row fits one stage, `columns` are loaded already, unless EACH; else load(first, k_here) loads those of
   * each stage in turn. */
  template <bool EACH = false, class Load>
  __device__ inline SkinnyTileSums consume(const SkinnyColumns<Math> &columns, uint32_t inner, Load load) {
    SkinnyTileSums acc;
#pragma unroll 1
    for (uint32_t first = 0; first < inner; first += k) {
      const uint32_t k_here = min(k, inner - first);
      if (EACH || inner > k) load(first, k_here);
      multiply(acc, k_here, columns);
    }
    return acc;
  }
};
