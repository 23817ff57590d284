/* e4m3.cuh: tiles of weights in 8 bits (common/e4m3.cuh): weight rows are the M operand of wgmma, in registers (wgmma/fragments.cuh), and the
 * tile's 128 batch rows its N; of an expert's tile of up to 64 or 96 rows these alone. A warpgroup has 64 or 128 weight rows, and makes a k-block's
 * fragments of 64 while the products of those before are under way (wgmma/mainloop.cuh). Sums come transposed: a thread has two weight rows of pairs
 * of batch rows. They become rows of y in shared memory, which threads store.
 *
 * By hand, cycles of a k-block of 256 weight rows: tensor cores 1,024; shared memory 896 (each warpgroup reads all batch rows twice, 512; weights,
 * 128; copies write 256), where weights of 16 bits take 1,024. Of 64 rows tensor cores take 512, and the memory 836.
 */
#pragma once

#include "persistent/epilogue.cuh"
#include "wgmma/fragments.cuh"

/* acc = this warpgroup's sums over `steps` k-blocks, 64 of a thread for each operand of 64 weight rows, of which those of the first `rows` batch
 * rows count: the same for all of a warp. */
template <class Tile>
__device__ inline void persistent_multiply_e4m3(typename Tile::Acc &acc, PersistentPipeline<Tile> &pipe, uint32_t group, uint32_t steps,
                                                uint32_t rows) {
  constexpr uint32_t OPERAND_BYTES = GMMA_M * Tile::W_ROW_BYTES, WARP_BYTES = PERSISTENT_WARP_ROWS * Tile::W_ROW_BYTES;
  const uint32_t full = kept(shared_address(pipe.full)), x = kept(gmma_operand(shared_address(pipe.stages)));
  const uint32_t w = Tile::X_BYTES + group * Tile::OPERANDS * OPERAND_BYTES + of_warp(threadIdx.x % GMMA_GROUP / WARP) * WARP_BYTES;
  const bool first_lane = threadIdx.x % GMMA_GROUP == 0;
  auto issue = [&](auto n, float *sums, const uint32_t (&a)[4][4], uint32_t stage, uint32_t part, bool add) {
    constexpr uint32_t N = decltype(n)::value;
    const uint32_t b = x + stage * gmma_apart(Tile::STAGE_BYTES) + part * gmma_apart(Tile::PART_BYTES);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) gmma<typename Tile::W, N>(*reinterpret_cast<float (*)[N / 2]>(sums), a[k], b + 2 * k, add || k > 0);
  };
  using Half = std::integral_constant<uint32_t, TG_PERSISTENT_ROWS / 2>;
  using Most = std::integral_constant<uint32_t, TG_PERSISTENT_ROWS * 3 / 4>;
  using All = std::integral_constant<uint32_t, TG_PERSISTENT_ROWS>;
  if constexpr (Tile::PARTS == 1) {
    const uint32_t own = kept(w + E4m3Words::own_bytes());
    PersistentPipeline<Tile> released = pipe;
    released.empty = kept(pipe.empty);  /* else its address would be computed anew for each k-block */
    mainloop_fragments<Tile::OPERANDS>(
        pipe, full, steps,
        [&](uint32_t stage, uint32_t operand) {
          return E4m3Words::load_own(pipe.stages + own + stage * Tile::STAGE_BYTES + operand * OPERAND_BYTES);
        },
        [&](const uint32_t (&a)[4][4], uint32_t stage, uint32_t operand, uint32_t step) {
          auto multiply = [&](auto n) {
            gmma_fence();
            issue(n, &acc[operand * (TG_PERSISTENT_ROWS / 2)], a, stage, 0, step > 0);
            gmma_commit();
          };
          /* Branches in one loop: of two loops the fragments' registers would not be the same. */
          if (rows > Most::value) {
            multiply(All{});
          } else if (rows > Half::value) {
            multiply(Most{});
          } else {
            multiply(Half{});
          }
        },
        /* One thread releases for all: a warp's words were read before its products, and those of the warpgroup end together. */
        [&](uint32_t stage, uint32_t) {
          if (first_lane) released.release(stage);
        });
    gmma_settle(acc);
  } else {
    static_assert(Tile::OPERANDS == 1, "sums of a k-block take as many registers as those of all");
    auto multiply = [&](auto n) {
      constexpr uint32_t SUMS = decltype(n)::value / 2;
#pragma unroll
      for (uint32_t i = 0; i < SUMS; i++) acc[i] = 0.0f;
#pragma unroll 1
      for (uint32_t s = 0; s < steps; s++, pipe.next()) {
        uint32_t a[4][4];
        float sums[SUMS];
        barrier_wait(full + pipe.at * (uint32_t)sizeof(uint64_t), pipe.parity);
        e4m3_fragments(a, pipe.stages + w + pipe.at * Tile::STAGE_BYTES);
        gmma_fence();
#pragma unroll
        for (int part = Tile::PARTS - 1; part >= 0; part--) issue(n, sums, a, pipe.at, part, part + 1 < (int)Tile::PARTS);
        gmma_commit();
        gmma_wait<0>();
        gmma_settle(sums);
        if (first_lane) pipe.release(pipe.at);
#pragma unroll
        for (uint32_t i = 0; i < SUMS; i++) acc[i] += sums[i];
      }
    };
    if (rows <= Half::value) {
      multiply(Half{});
    } else {
      multiply(All{});
    }
  }
}

/* A warpgroup stores its operands' columns of `rows` batch rows, of type V, to y[0 ..][n ..], or with `adds` adds them: of every 16 weight rows HALVES
 * (1 or 2) groups of 8 columns.
 * `pair(operand, i, half)` is this thread's of batch rows 8 i + 2 q and the one behind it, of its row g or g + 8. */
template <class Tile, uint32_t HALVES, typename V, class Pair>
__device__ inline void persistent_store_transposed(char *out, V *y, uint32_t rows, uint32_t n, uint32_t n_total, bool adds, Pair pair) {
  constexpr uint32_t WARP_COLUMNS = HALVES * 8, OPERAND_COLUMNS = GMMA_GROUP / WARP * WARP_COLUMNS;
  constexpr uint32_t COLUMNS = Tile::OPERANDS * OPERAND_COLUMNS, PITCH = COLUMNS * sizeof(V) + 16, FIT = Tile::OUT_BYTES / PITCH;
  constexpr uint32_t ROWS = FIT >= 128 ? 128 : FIT >= 64 ? 64 : 32;
  static_assert(FIT >= ROWS, "rows that fit");
  const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP), warp = of_warp(threadIdx.x % GMMA_GROUP / WARP), lane = threadIdx.x % WARP;
#pragma unroll
  for (uint32_t first = 0; first < TG_PERSISTENT_ROWS; first += ROWS) {
    if (first >= rows) break;
    threads_meet<GMMA_GROUP>(1 + group);
#pragma unroll
    for (uint32_t operand = 0; operand < Tile::OPERANDS; operand++) {
      char *to = out + (operand * OPERAND_COLUMNS + warp * WARP_COLUMNS) * sizeof(V);
      if constexpr (sizeof(V) == 4) {
        to += lane % 4 * 2 * PITCH + lane / 4 * sizeof(V);
#pragma unroll
        for (uint32_t i = 0; i < ROWS / 8; i++)
#pragma unroll
          for (uint32_t half = 0; half < HALVES; half++) {
            const float2 v = pair(operand, first / 8 + i, half);
            V *at = reinterpret_cast<V *>(to + 8 * i * PITCH) + 8 * half;
            *at = v.x, at[PITCH / sizeof(V)] = v.y;
          }
      } else {
        to += (lane / 8 / HALVES * 8 + lane % 8) * PITCH + lane / 8 % HALVES * 8 * sizeof(V);
#pragma unroll
        for (uint32_t i = 0; i < ROWS / 8; i += 4 / HALVES) {
          uint32_t of[4];
#pragma unroll
          for (uint32_t j = 0; j < 4; j++) {
            const float2 v = pair(operand, first / 8 + i + j / HALVES, j % HALVES);
            of[j] = pack2<V>(v.x, v.y);
          }
          store_matrix_x4<true>(to + 8 * i * PITCH, of);
        }
      }
    }
    threads_meet<GMMA_GROUP>(1 + group);
    persistent_leave<GMMA_GROUP, ROWS, COLUMNS, PITCH>(out, y + (size_t)first * n_total, rows_from(first, rows, ROWS), n, n_total, adds);
  }
}

/* PersistentEpilogue of such tiles. A warpgroup has `out` for itself. */
template <class Tile>
struct PersistentE4m3Epilogue : PersistentEpilogue<Tile> {
  float scale[Tile::OPERANDS][2];  /* of this thread's weight rows */

  /* This thread's first weight row of an operand: of gate and up, which have 8 of 16 each, its output. */
  static __device__ inline uint32_t row(const PersistentWorkTile &tile, uint32_t operand, bool paired) {
    const uint32_t above = tile.slice * Tile::WIDTH + (of_warp(threadIdx.x / GMMA_GROUP) * Tile::OPERANDS + operand) * GMMA_M;
    const uint32_t of_warps = above + of_warp(threadIdx.x % GMMA_GROUP / WARP) * PERSISTENT_WARP_ROWS;
    return (paired ? of_warps / 2 : of_warps) + threadIdx.x % WARP / 4;
  }

  __device__ inline void begin(const PersistentProduct &product, const PersistentWorkTile &tile) {
    const bool paired = product.epilogue == TILED_SILU_MUL;
#pragma unroll
    for (uint32_t operand = 0; operand < Tile::OPERANDS; operand++)
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        const float *from = paired && (half > 0) != product.is_up_first ? product.scale_pair : product.scale;
        const uint32_t n = row(tile, operand, paired) + (paired ? 0 : half * 8);
        /* Where there is no such row any: nothing is stored of it. A choice would wait for what is loaded. */
        scale[operand][half] = from[tile.expert * product.n_total + min(n, product.n_total - 1)];
      }
  }

  __device__ inline void store(const typename Tile::Acc &acc, char *out, const PersistentProduct &product, const PersistentWorkTile &tile) const {
    const uint32_t group = of_warp(threadIdx.x / GMMA_GROUP);
    const size_t to = (size_t)tile.first * product.n_total;
    auto scaled = [&](uint32_t operand, uint32_t i, uint32_t half) {
      const float *v = acc + operand * (TG_PERSISTENT_ROWS / 2) + 4 * i + 2 * half;
      return make_float2(v[0] * scale[operand][half], v[1] * scale[operand][half]);
    };
    if (product.epilogue == TILED_SILU_MUL) {
      using W = typename Tile::W;
      const uint32_t n = (tile.slice * Tile::WIDTH + group * Tile::OPERANDS * GMMA_M) / 2;
      W *y = static_cast<W *>(product.y) + to;
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        persistent_store_transposed<Tile, 1>(out, y + (size_t)part * product.y_plane * product.n_total, tile.rows, n, product.n_total, false,
                                             [&](uint32_t operand, uint32_t i, uint32_t) {
                                               const float2 a = scaled(operand, i, 0), b = scaled(operand, i, 1);
                                               float2 v = silu_mul(product.is_up_first ? b : a, product.is_up_first ? a : b);
#pragma unroll
                                               for (uint32_t p = 0; p < part; p++) take_bf16(v);
                                               return v;
                                             });
      return;
    }
    float bias[Tile::OPERANDS][2];
#pragma unroll
    for (uint32_t operand = 0; operand < Tile::OPERANDS; operand++)
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        const uint32_t n = row(tile, operand, false) + half * 8;
        bias[operand][half] = product.bias && n < product.n_total ? product.bias[n] : 0.0f;
      }
    auto of = [&](uint32_t operand, uint32_t i, uint32_t half) {
      const float2 v = scaled(operand, i, half);
      return make_float2(v.x + bias[operand][half], v.y + bias[operand][half]);
    };
    auto store = [&](auto *y, bool adds) {
      const uint32_t n = tile.slice * Tile::WIDTH + group * Tile::OPERANDS * GMMA_M;
      persistent_store_transposed<Tile, 2>(out, y + to, tile.rows, n, product.n_total, adds, of);
    };
    if (product.epilogue == TILED_STORE) {
      store(static_cast<typename Tile::T *>(product.y), false);
    } else {
      store(static_cast<float *>(product.y), product.epilogue == TILED_ADD);
    }
  }
};

template <class Tile>
using PersistentEpilogueOf = std::conditional_t<Tile::E4M3, PersistentE4m3Epilogue<Tile>, PersistentEpilogue<Tile>>;
