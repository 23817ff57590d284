/* ring.cuh: the ring in shared memory through which a block of grouped/grouped.cuh gets what it multiplies, and how rows of each type lie
 * in it.
 */
#ifndef TAILGRAPH_GROUPED_RING_CUH
#define TAILGRAPH_GROUPED_RING_CUH

#include "common/barrier.cuh"
#include "common/packed.cuh"
#include "common/wgmma.cuh"
#include "grouped/args.h"
#include <type_traits>

constexpr uint32_t GROUPED_OUTPUTS = TG_GROUPED_OUTPUTS;
constexpr uint32_t GROUPED_GROUP_ROWS = TG_GROUPED_GROUP_ROWS;
constexpr uint32_t GROUPED_K = GMMA_K;
constexpr uint32_t GROUPED_WEIGHT_BYTES = GROUPED_OUTPUTS * GMMA_ROW_BYTES;  /* of a stage */
constexpr uint32_t GROUPED_CONSUMERS = 8;    /* warps; then come the loaders, a counter and the producer */
constexpr uint32_t GROUPED_MOST_STAGES = TG_GROUPED_MOST_STAGES;

/* ---- types ----------------------------------------------------------------------------------- */

/* Rows and weights of the same 16-bit type, in tiles of up to MOST rows. S: what down's sums are stored as. */
template <typename T, int MOST, typename S = float>
struct GroupedHalf {
  using X = T;
  using W = T;
  using Sum = S;
  static constexpr int PARTS = 1, MOST_ROWS = MOST;
  static constexpr bool ROUNDS = std::is_same<S, T>::value;
  static_assert(ROUNDS || std::is_same<S, float>::value, "sums are f32, or rounded to the rows' type");

  struct Piece {
    uint4 v;
  };
  static __device__ inline Piece load(const X *x) { return {__ldcg(reinterpret_cast<const uint4 *>(x))}; }
  /* To its place of a stage's N rows. */
  template <int N>
  static __device__ inline void store(char *to, const Piece &p) {
    *reinterpret_cast<uint4 *>(to) = p.v;
  }
};

/* f32 rows, bf16 weights. A row is the sum of three bf16 parts, exactly but for its lowest bits: three rows of B. The
 * matrix units truncate as they accumulate, so a stage has accumulators of its own that are then added with rounding,
 * the smallest parts' first: without that the error grows with K. */
struct GroupedSplit {
  using X = float;
  using W = __nv_bfloat16;
  using Sum = float;
  static constexpr int PARTS = TG_PARTS, MOST_ROWS = TG_GROUPED_SPLIT_ROWS;
  static constexpr bool ROUNDS = false;

  struct Piece {
    float4 lo, hi;
  };
  static __device__ inline Piece load(const X *x) {
    const float4 *from = reinterpret_cast<const float4 *>(x);
    return {__ldcg(from), __ldcg(from + 1)};
  }
  static __device__ inline uint32_t take_part(float2 &v) {
    __nv_bfloat162 rounded = __float22bfloat162_rn(v);
    float2 back = __bfloat1622float2(rounded);
    v = make_float2(v.x - back.x, v.y - back.y);
    return *reinterpret_cast<uint32_t *>(&rounded);
  }
  template <int N>
  static __device__ inline void store(char *to, const Piece &p) {
    float2 left[4] = {{p.lo.x, p.lo.y}, {p.lo.z, p.lo.w}, {p.hi.x, p.hi.y}, {p.hi.z, p.hi.w}};
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      uint4 v;
      v.x = take_part(left[0]), v.y = take_part(left[1]), v.z = take_part(left[2]), v.w = take_part(left[3]);
      *reinterpret_cast<uint4 *>(to + part * N * GMMA_ROW_BYTES) = v;
    }
  }
};

/* Shared memory of a stage whose tiles have up to `tile_rows` rows. */
template <class Math>
__host__ __device__ constexpr uint32_t grouped_stage_bytes(uint32_t tile_rows) {
  return GROUPED_WEIGHT_BYTES + tile_rows * Math::PARTS * GMMA_ROW_BYTES;
}

/* ---- the ring -------------------------------------------------------------------------------- */

struct GroupedRing {
  char *stages;
  uint64_t *full, *empty;  /* [GROUPED_MOST_STAGES] each */
  uint32_t stage_bytes, count;
  uint32_t at, parity;

  __device__ inline void skip(uint32_t stages_) {
    at += stages_;
    if (at >= count) at -= count, parity ^= 1;
  }
  __device__ inline char *weights() const { return stages + at * stage_bytes; }
  __device__ inline char *rows() const { return weights() + GROUPED_WEIGHT_BYTES; }
  __device__ inline void wait_empty() const { barrier_wait(empty + at, parity ^ 1); }
};

/* Calls with(N) with the smallest multiple N of 8 that has room for `rows`, as a constant: LEAST to MOST. */
template <int MOST, int LEAST = 8, class Do>
__device__ inline void with_room_for(uint32_t rows, Do with) {
  if constexpr (LEAST == MOST) {
    with(std::integral_constant<int, MOST>());
  } else {
    constexpr int MIDDLE = (LEAST + MOST) / 16 * 8;
    if (rows <= MIDDLE) {
      with_room_for<MIDDLE, LEAST>(rows, with);
    } else {
      with_room_for<MOST, MIDDLE + 8>(rows, with);
    }
  }
}

/* Where chunk `chunk` of a slice of an expert's weights begins: a column of blocks (common/packed.cuh). */
struct GroupedBox {
  uint32_t at[5];
  __device__ inline GroupedBox(uint32_t expert, uint32_t slice, uint32_t chunk)
      : at{0, chunk * PACKED_ROWS, 0, slice * (GROUPED_OUTPUTS / GROUPED_GROUP_ROWS), expert} {}
};
static_assert(GROUPED_K == PACKED_COLUMNS && GROUPED_GROUP_ROWS == 2 * PACKED_ROWS, "a chunk is a column of blocks, a group two of its");

/* One lane: asks for a chunk of a slice of an expert's weights. */
__device__ inline void grouped_ask(GroupedRing &ring, const TensorMap &weights, uint32_t expert, uint32_t slice, uint32_t chunk,
                                uint64_t policy) {
  ring.wait_empty();
  barrier_arrive_expecting(ring.full + ring.at, GROUPED_WEIGHT_BYTES);
  tensor_copy(ring.weights(), &weights, GroupedBox(expert, slice, chunk).at, ring.full + ring.at, policy);
  ring.skip(1);
}

#endif
