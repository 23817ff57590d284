/* fused.cuh: down of one row's experts in the kernel of their gate and up (skinny/experts.cu): how blocks hand y, the result of gate
 * and up, to each other while they run, and what each does with it.
 *
 * Why. Between two kernels no weights are loaded: a gap of 2.2 us of 23 on an H200; fused it is 21.6, as some of it comes back in waits for y.
 * Here a block's pipeline goes on from its last tile of gate and up to its tile of down, whose weights need no y:
 *
 * - A word of y shows by its value whether it is there. The blocks that predict, in the layer's first kernel, store SKINNY_MISSING in
 *   each. No product is that: conversions to X give NaN as 0x7fff (f32: 0x7fffffff). A type whose words can be all ones cannot be handed
 *   over so. A warp reads a word until it is there. A fence or a counter would wait behind the weights that are under way.
 * - A warp of down needs only its own columns, and loads those of the next expert while it multiplies this one's. Experts come in the
 *   order of gate and up, so as a rule no warp waits. The sums of each expert are kept apart, and added in ascending order, as
 *   tg_skinny_down_* does: the bits are the same.
 *
 * What if a block does not run. All run at once where nothing else wants the SMs. Where something does, a warp that has looked
 * SKINNY_PATIENCE times makes what is missing itself (skinny_make_missing), from its block's own rows. Then a block may start late, when
 * others have already added down to h, and what it would make of that h is wrong. So no block stores a word that is there already. That
 * is enough: h is new only where the eight warps of one block have seen all of y between them and met for sums.get(), so a block that read
 * a new h and then loads a word of y finds it there. No fence orders this: it holds since y and h have one L2, and since the loads of h
 * are used before the barrier ahead of the look at y, which is past the first-level cache. That cache may serve h: an old h is right.
 */
#pragma once

#include "skinny/norm.cuh"

constexpr uint32_t SKINNY_PATIENCE = 512;  /* looks at an expert's y, some 0.4 us each; after it has made one, a warp looks once */

/* ---- words that show by their value whether they are there ------------------------------------ */

/* Reads the word that holds this value of y. */
template <typename X>
__device__ inline uint32_t skinny_word(const X *at) {
  return load_relaxed(reinterpret_cast<const uint32_t *>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t(3)));
}

/* A whole warp publishes this lane's value, if it is `mine`. Two values of 16 bits are a word, which must be stored at once: the lane with
 * the even one stores both. The lane with the odd one is APART lanes further. */
template <uint32_t APART, typename X>
__device__ inline void skinny_publish(X *to, X value, bool mine) {
  uint32_t word;
  bool stores = mine;
  if constexpr (sizeof(X) == 2) {
    const uint32_t bits = *reinterpret_cast<const uint16_t *>(&value);
    word = bits | __shfl_down_sync(0xffffffffu, bits, APART) << 16;
    stores = mine && threadIdx.x % WARP / APART % 2 == 0;
  } else {
    word = __float_as_uint(value);
  }
  if (stores) store_relaxed(reinterpret_cast<uint32_t *>(to), word);
}

/* A lane's 8 values of y, as other blocks hand them over. */
template <class Math>
struct SkinnyWords {
  using X = typename Math::X;
  static constexpr uint32_t PIECES = sizeof(X) / 2;
  uint4 pieces[PIECES];

  /* Loads them. Values that do not exist (not `there`) are zeros, and so are not missing. */
  __device__ inline void load(const X *from, bool there) {
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) {
      pieces[i] = make_uint4(0, 0, 0, 0);
      if (there) pieces[i] = load_relaxed(reinterpret_cast<const uint4 *>(from) + i);
    }
  }

  __device__ inline bool missing() const {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++)
      largest = max(max(largest, max(pieces[i].x, pieces[i].y)), max(pieces[i].z, pieces[i].w));
    return largest == SKINNY_MISSING;
  }

  /* Stores them in shared memory as products want their rows: to[PARTS][WARP]. */
  __device__ inline void store(uint4 *to) const {
    uint4 *at = to + threadIdx.x % WARP;
    if constexpr (PIECES == 1 && Math::PARTS == 1) {
      *at = pieces[0];
    } else {
      using S = typename Math::S;
      const X *values = reinterpret_cast<const X *>(pieces);
      Math::store(reinterpret_cast<S *>(at), WARP * sizeof(uint4), load4(values));
      Math::store(reinterpret_cast<S *>(at) + 4, WARP * sizeof(uint4), load4(values + 4));
    }
  }
};

/* An expert's gate[N,H] and up[N,H], packed, and the scales of their rows, where they have any. */
template <class Math>
struct SkinnyExpert {
  const typename Math::W *gate, *up;
  const float *gate_scale, *up_scale;
};

/* One warp computes and publishes all words of y[N] that are missing. x is the batch row that this lane multiplies; N is a multiple of GATE_OUTPUTS, as it is in every model. The warp does what a block's eight warps do, one after
 * the other and in the same order, so the bits are the same. */
template <class Math>
__device__ inline void skinny_make_missing(typename Math::X *y, const SkinnyExpert<Math> &expert, const typename Math::S *x, uint32_t outputs,
                                           uint32_t hidden) {
  using X = typename Math::X;
  using W = typename Math::W;
  const uint32_t lane = threadIdx.x % WARP, k = skinny_stage_k(hidden), column = skinny_lane_column();
  /* warps that wait begin at different places, so that they share the work */
  uint32_t n = (blockIdx.x * SKINNY_CONSUMER_WARPS + threadIdx.x / WARP) * GATE_OUTPUTS % outputs + lane / 4;
#pragma unroll 1
  for (uint32_t left = outputs; left > 0; left -= GATE_OUTPUTS, n += GATE_OUTPUTS) {
    if (n >= outputs) n -= outputs;
    const bool missing = skinny_word(y + n) == SKINNY_MISSING;
    if (!__any_sync(0xffffffffu, missing)) continue;
    float sum[SKINNY_TILE_RUNS], scale[SKINNY_TILE_RUNS];
    if constexpr (IS_E4M3<W>) scale[0] = expert.gate_scale[n], scale[1] = expert.up_scale[n];
#pragma unroll 1
    for (uint32_t warp = 0; warp < SKINNY_CONSUMER_WARPS; warp++) {
      SkinnyTileSums acc;
#pragma unroll 1
      for (uint32_t first = 0; first < hidden; first += k) {
        SkinnyTileSums sums[Math::SUMS];
#pragma unroll 1
        for (uint32_t u = 0; u < SKINNY_UNITS; u += Math::SUMS) {
#pragma unroll
          for (uint32_t i = 0; i < Math::SUMS; i++) {
            const uint32_t unit = skinny_unit_of(warp, u + i), at = first + unit + column;
            if (unit >= min(k, hidden - first)) continue;
            auto weights = [&](const W *w) {
              const W *row = w + packed_row(n, hidden);
              if constexpr (IS_E4M3<W>) {
                const W *line = row + packed_along((first + unit) / PACKED_COLUMNS * PACKED_COLUMNS) + lane % 4 * 16;
                return *reinterpret_cast<const uint2 *>(line + (first + unit) % PACKED_COLUMNS / SKINNY_UNIT * 8);
              } else {
                return *reinterpret_cast<const uint4 *>(row + packed_along(at));
              }
            };
            Math::multiply(sums[i], weights(expert.gate), weights(expert.up), Math::piece(x + first + unit + Math::lane_column()));
          }
        }
        if constexpr (IS_E4M3<W>) skinny_add_up<Math>(acc, sums, scale);
        else skinny_add_up<Math>(acc, sums);
      }
      acc = skinny_whole<Math>(acc, 1);
#pragma unroll
      for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) sum[run] = warp == 0 ? acc.run[run].x : sum[run] + acc.run[run].x;
    }
    skinny_publish<4>(y + n, X(silu(sum[0]) * sum[1]), missing && lane % 4 == 0);
  }
}

/* ---- down -------------------------------------------------------------------------------------- */

/* A warp's own shared memory: its columns of an expert's y, [PARTS][WARP] pieces of 16 bytes; its sums for each expert, [k][WARP], of both
 * runs of the tile; and each expert's weight in the mixture, [k]. */
template <class Math>
struct SkinnyHandOver {
  uint4 *pieces;
  float2 *sums;
  float *weights;

  __device__ inline SkinnyHandOver(void *memory, uint32_t k) {
    const uint32_t warp = threadIdx.x / WARP;
    uint4 *all_pieces = static_cast<uint4 *>(memory);
    float2 *all_sums = reinterpret_cast<float2 *>(all_pieces + SKINNY_CONSUMERS * Math::PARTS);
    pieces = all_pieces + warp * Math::PARTS * WARP, sums = all_sums + warp * k * WARP;
    weights = reinterpret_cast<float *>(all_sums + SKINNY_CONSUMERS * k) + warp * k;
  }
  /* Bytes of all warps together, a multiple of 16. */
  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t k) {
    return SKINNY_CONSUMERS * (Math::PARTS * sizeof(uint4) + k * sizeof(float2)) + SKINNY_CONSUMER_WARPS * k * sizeof(float);
  }
};

/* The down product. w[H,N] of each expert is packed, with the scales[H] of its rows; an expert's begins `stride` elements after that of the
 * one before. */
template <class Math, uint32_t WORDS>
struct SkinnyDown {
  using W = typename Math::W;
  using Choice = SkinnyChoice<WORDS>;
  using Order = SkinnyExpertOrder<WORDS>;
  const W *w;
  const float *scales;
  uint64_t stride;
  uint32_t inner, outputs;

  /* The order of the experts of the one row. */
  static __device__ inline Order order_of(const Choice &choice) {
    const ExpertBits<WORDS> chosen = choice.any(1);
    return Order(chosen, choice.prediction_within(chosen));
  }

  /* Blocks of the grid. With two words of bits no register is left to keep it in, so it is read anew each time. */
  static __device__ inline uint32_t blocks() {
    if constexpr (WORDS > 1) return blocks_now();
    else return gridDim.x;
  }

  /* The producer copies the weights of all of this block's tiles, expert by expert. */
  __device__ inline void load(SkinnyPipeline<Math> &pipeline, const Choice &choice, uint64_t policy) const {
    pipeline.set_width(inner);
#pragma unroll 1
    for (uint32_t n = blockIdx.x * SKINNY_OUTPUTS; n < outputs; n += gridDim.x * SKINNY_OUTPUTS)
#pragma unroll 1
      for (Order order = order_of(choice); any(order.left); order.next()) {
        auto run = [&](uint32_t n) { return SkinnyRows<Math>::of(w + order.expert() * stride, scales + order.expert() * outputs, n, outputs, inner); };
        pipeline.load(run(n), run(n + SKINNY_STAGE_ROWS), inner, policy);
      }
  }

  /* All consumers: h[H] += the weighted sum over the chosen experts of w y. y_of(e) is where expert e's y is handed over; make(e) computes
   * what is missing of it. */
  template <class Sums, class YOf, class Make>
  __device__ inline void add(float *h, SkinnyPipeline<Math> &pipeline, Sums &sums, const SkinnyHandOver<Math> &own, const Choice &choice,
                             uint32_t count, Weighing weighing, YOf y_of, Make make) const {
    const uint32_t lane = threadIdx.x % WARP, r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS;
    const uint32_t column = skinny_unit_at(lane / 4) + skinny_lane_column();
    const bool there = count > 0 && column < inner;
    /* f32 values would take too many registers to be loaded ahead */
    constexpr bool AHEAD = SkinnyWords<Math>::PIECES == 1;
#pragma unroll 1
    for (uint32_t e = lane; e < WORDS * WARP; e += WARP) {
      const float weight = skinny_weight(choice, 0, e, weighing);
      if (choice.has(0, e)) own.weights[choice.index(0, e)] = weight;
    }
    SkinnyWords<Math> words;
    uint32_t patience = SKINNY_PATIENCE;
    auto load = [&](uint32_t e) { words.load(y_of(e) + column, there); };
    pipeline.set_width(inner);
#pragma unroll 1
    for (uint32_t first = blockIdx.x * SKINNY_OUTPUTS; first < outputs; first += blocks() * SKINNY_OUTPUTS) {
      const uint32_t n = first + i;
      const bool mine = r < count && n < outputs;
      Order order = order_of(choice);
      if (AHEAD) load(order.expert());
      const float v = mine ? h[n] : 0.0f;
#pragma unroll 1
      while (any(order.left)) {
        const uint32_t e = order.expert();
        order.next();
        if (!AHEAD) load(e);
#pragma unroll 1
        for (uint32_t looks = 1; __any_sync(0xffffffffu, words.missing()); looks++) {
          if (looks == patience) make(e), patience = 1;
          load(e);
        }
        /* lanes have read the last expert's: multiply() released a stage, which is a __syncwarp() */
        words.store(own.pieces);
        if (AHEAD && any(order.left)) load(order.expert());
        __syncwarp();
        SkinnyColumns<Math> columns;
#pragma unroll
        for (uint32_t u = 0; u < SKINNY_UNITS; u++)
          columns.pieces[u] = Math::piece(
              reinterpret_cast<const typename Math::S *>(own.pieces + Math::lane_shared_row(1, 1) * WARP + u * 4 + Math::lane_column() / 8));
        SkinnyTileSums sum;
        pipeline.multiply(sum, inner, columns);
        sum = skinny_whole<Math>(sum, 1);
        own.sums[choice.index(0, e) * WARP + lane] = make_float2(sum.run[0].x, sum.run[1].x);
      }
      __syncwarp(); /* all lanes see own.weights */
      SkinnyTileSums total;
#pragma unroll 4
      for (uint32_t index = 0; index < weighing.k; index++) {
        const float weight = own.weights[index];
        const float2 sum = own.sums[index * WARP + lane];
        total.run[0].x = fmaf(weight, sum.x, total.run[0].x), total.run[1].x = fmaf(weight, sum.y, total.run[1].x);
      }
      sums.put(total);
      if (mine) sums.wait(), h[n] = v + sums.get(0, i);
    }
  }
};
