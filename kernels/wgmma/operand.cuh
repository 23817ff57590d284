/* operand.cuh: what a kernel multiplies: X, the type of rows in memory; Stored, that of weights in memory; W, that of both as they are
 * multiplied; PARTS, how many rows of W a row is multiplied as. Piece is 8 elements of a row on their way to a stage: store() stores part p
 * of them p part_bytes further.
 */
#pragma once

#include "common/bf16x3.cuh"
#include "common/e4m3.cuh"
#include "common/wgmma.cuh"
#include <type_traits>

/* Rows and weights of the same 16-bit type. */
template <typename T>
struct Direct {
  using X = T;
  using Stored = T;
  using W = T;
  static constexpr uint32_t PARTS = 1;

  struct Piece {
    uint4 v;
  };
  static __device__ inline Piece load_past_l1(const X *x) { return {__ldcg(reinterpret_cast<const uint4 *>(x))}; }
  static __device__ inline void store(char *to, uint32_t, const Piece &p) { *reinterpret_cast<uint4 *>(to) = p.v; }
};

/* f32 rows as bf16x3, bf16 weights. */
struct Bf16x3 {
  using X = float;
  using Stored = __nv_bfloat16;
  using W = __nv_bfloat16;
  static constexpr uint32_t PARTS = TG_PARTS;

  struct Piece {
    float4 lo, hi;
  };
  static __device__ inline Piece load_past_l1(const X *x) { return {load4_past_l1(x), load4_past_l1(x + 4)}; }
  static __device__ inline void store(char *to, size_t part_bytes, const Piece &p) {
    uint32_t of[4][PARTS];
    bf16x3(make_float2(p.lo.x, p.lo.y), of[0]), bf16x3(make_float2(p.lo.z, p.lo.w), of[1]);
    bf16x3(make_float2(p.hi.x, p.hi.y), of[2]), bf16x3(make_float2(p.hi.z, p.hi.w), of[3]);
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++)
      *reinterpret_cast<uint4 *>(to + part * part_bytes) = make_uint4(of[0][part], of[1][part], of[2][part], of[3][part]);
  }
};

/* An operand's rows of bf16 or f32, weights in 8 bits. */
template <class Rows>
struct WeightsE4m3 : Rows {
  using Stored = E4m3;
};

template <typename X>
using OperandOf = std::conditional_t<sizeof(X) == sizeof(float), Bf16x3, Direct<X>>;
