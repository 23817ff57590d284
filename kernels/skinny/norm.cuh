/* norm.cuh: what the kernels share that norm their rows and multiply them: RMSNorm, which every block does anew, since a kernel of its own would
 * cost more; a block's shared memory; tiles of gate and up, which are 8 rows of W1 and the same 8 of W3, so that one thread has both sums.
 */
#pragma once

#include "common/rmsnorm.cuh"
#include "skinny/choice.cuh"
#include "skinny/pipeline.cuh"

constexpr uint32_t SKINNY_ROW_QUADS = 8;

/* A thread's share of a row h[H]: 4 neighbouring columns, a quad, of every 4 * (threads of the row). Up to
 * SKINNY_ROW_QUADS quads are in registers at once. For up to 4 rows of H = 2048 these are all, and the row is read once. */
struct SkinnyRow {
  const float *h;
  uint32_t hidden, step, base, thread;
  float4 v[SKINNY_ROW_QUADS];

  SkinnyRow() = default;

  /* Loads the first quads, or the last ones. */
  __device__ inline SkinnyRow(const float *h_, uint32_t hidden_, uint32_t bucket, bool last) : h(h_), hidden(hidden_) {
    const uint32_t threads = warps_of_row(bucket) * WARP;
    thread = 4 * (threadIdx.x & (threads - 1)), step = 4 * threads;
    base = last ? (hidden - 1) & ~(SKINNY_ROW_QUADS * step - 1) : 0;
    load();
  }

  __device__ inline void load() {
#pragma unroll
    for (uint32_t i = 0; i < SKINNY_ROW_QUADS; i++) {
      if (base + i * step >= hidden) break;
      const uint32_t c = base + i * step + thread;
      v[i] = c < hidden ? load4(h + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  /* This warp's sum of squares, in every lane. It goes from the first quads to the last ones, which stay loaded. */
  __device__ inline float squares() {
    float sum = 0.0f;
    while (true) {
#pragma unroll
      for (uint32_t i = 0; i < SKINNY_ROW_QUADS; i++) {
        if (base + i * step >= hidden) break;
        sum = add_squares(sum, v[i]);
      }
      if (base + SKINNY_ROW_QUADS * step >= hidden) break;
      base += SKINNY_ROW_QUADS * step;
      load();
    }
    return sum_over_lanes(sum);
  }

  /* to[H] = the row, normed. It goes from the last quads, which squares() has left loaded, back to the first. Where Math stores
   * several parts of a value, these are `apart` bytes from each other. */
  template <class Math>
  __device__ inline void store(char *to, uint32_t apart, float scale, const float *weight) {
    while (true) {
#pragma unroll
      for (uint32_t i = 0; i < SKINNY_ROW_QUADS; i++) {
        if (base + i * step >= hidden) break;
        const uint32_t c = base + i * step + thread;
        if (c < hidden) Math::store(reinterpret_cast<typename Math::S *>(to) + c, apart, normed(v[i], scale, load4(weight + c)));
      }
      if (base == 0) break;
      base -= SKINNY_ROW_QUADS * step;
      load();
    }
  }
};

constexpr uint32_t GATE_OUTPUTS = SKINNY_STAGE_ROWS;
static_assert(2 * GATE_OUTPUTS == SKINNY_OUTPUTS, "a run of each matrix");

/* Shared memory, in this order: sums, the norm's weight, normed rows, choice, `beside` bytes for the caller, pipeline. */
template <class Math, uint32_t WORDS = 1>
struct SkinnyNormBlock {
  using Choice = SkinnyChoice<WORDS>;
  using S = typename Math::S;
  using Sums = SkinnySums<IS_E4M3<typename Math::W>>;
  Sums sums;
  float *norm;
  char *x;
  uint32_t x_pitch;
  Choice *choice;
  SkinnyPipeline<Math> pipeline;

  __device__ inline SkinnyNormBlock(uint4 *shared, uint64_t *barriers, uint32_t bucket, uint32_t hidden, bool choose,
                                 uint32_t stages, uint32_t beside = 0, uint32_t later = 0)
      : sums{reinterpret_cast<float *>(shared), bucket},
        norm(reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + Sums::bytes_of(bucket))),
        x(reinterpret_cast<char *>(norm + hidden)),
        x_pitch(skinny_pitch<Math>(hidden)), choice(reinterpret_cast<Choice *>(x + Math::PARTS * bucket * x_pitch)),
        pipeline(reinterpret_cast<char *>(choice) + (choose ? sizeof(Choice) : 0) + beside, barriers, hidden, stages, later) {
    if constexpr (IS_E4M3<typename Math::W>) {
      __shared__ uint64_t barrier;
      sums.barrier = &barrier;
    }
    if (threadIdx.x == 0) sums.init(), pipeline.init();
  }

  /* All consumers begin to copy weight[H]. No kernel of a step writes it, so this may come before the wait. After copy_wait a thread's own
   * share is there. */
  __device__ inline void load_weight(const float *weight, uint32_t hidden) {
#pragma unroll 2
    for (uint32_t c = 4 * threadIdx.x; c < hidden; c += 4 * SKINNY_CONSUMERS) copy16_async(norm + c, weight + c, true);
    copy_commit();
  }

  /* All consumers: x[r,:] = rmsnorm(h[row_of(r),:]) for r < rows. How many warps share a row, and so the order of its sum, follows from the
   * bucket alone: a row's bits are the same beside any others. On return x is whole for all consumers. `rows` is at
   * least 1: a step without rows norms row 0, of which nothing is stored. */
  template <class RowOf>
  __device__ inline void norm_rows(const float *h, uint32_t rows, uint32_t hidden, float eps, RowOf row_of) {
    __shared__ float scratch[SKINNY_CONSUMER_WARPS];
    const uint32_t bucket = sums.rows, warps = warps_of_row(bucket), warp = threadIdx.x / WARP, r = warp / warps;
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
      row.store<Math>(x + r * x_pitch, bucket * x_pitch, 1.0f / sqrtf(squares / hidden + eps), norm);
    }
    consumers_meet();
  }

  /* All consumers: a tile's sums, for sums.wait() and sums.get(). */
  __device__ inline void consume(SkinnyColumns<Math> &columns, const S *row, uint32_t inner) {
    const auto load = [&](uint32_t first, uint32_t k_here) { columns.load(row + first, k_here, true); };
    sums.put(skinny_whole<Math>(pipeline.consume(columns, inner, load), sums.rows));
  }

  /* Output i of the last tile of gate and up for row r, or with LOOSE sums of the tile `before` it. */
  __device__ inline float gated(uint32_t r, uint32_t i, bool before = false) const {
    return silu(sums.get(r, i, before)) * sums.get(r, i + GATE_OUTPUTS, before);
  }

  /* All consumers multiply this block's tiles of gate and up, with LOOSE sums. take(r) goes on to the next tile, and returns whether there is one
   * (`more`), whether this thread has an output of it, of row r (`mine`), and where that goes. give(to, value) stores the output a tile later: a
   * whole warp calls it, first of no tile, and the threads whose output it is call value(). */
  template <class Take, class Give>
  __device__ inline void gate_up_tiles(SkinnyColumns<Math> &columns, const S *row, uint32_t inner, Take take, Give give) {
    static_assert(IS_E4M3<typename Math::W>, "others' sums are read at once");
    decltype(take(0u)) last{};
    uint32_t last_row = 0;
    bool more;
    do {
      const uint32_t r = sums.reader() / GATE_OUTPUTS;
      const auto to = take(r);
      more = to.more;
      if (more) consume(columns, row, inner);
      else sums.wait();
      give(last, [&] { return gated(last_row, threadIdx.x % GATE_OUTPUTS, more); });
      last = to, last_row = r;
    } while (more);
  }

  /* The row of `x` that this lane multiplies. */
  __device__ inline const S *row(uint32_t rows) const {
    return reinterpret_cast<const S *>(x + Math::lane_shared_row(rows, sums.rows) * x_pitch);
  }
};
