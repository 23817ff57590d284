/* mainloop.cuh: how a consumer warpgroup of grouped/grouped.cuh multiplies. It waits for each k-block's products and releases the stage at
 * once, where wgmma/mainloop.cuh leaves them under way: the tensor cores have time to spare, the pipeline has not. With
 * weights in 8 bits and rows of 16 conversion would leave the tensor cores idle, so it overlaps with products.
 */
#pragma once

#include "grouped/tile.cuh"
#include "wgmma/mainloop.cuh"

/* A consumer warpgroup's sums of up to MOST_ROWS rows over all of K: element [n][r] as common/wgmma.cuh has D. Which instructions have
 * room for the rows is chosen for each k-block, of tall tiles once for all. */
template <class Tile>
__device__ inline void grouped_multiply(float (&sums)[Tile::MOST_ROWS / 2], GroupedPipeline<Tile> &pipe, uint32_t half, uint32_t k_blocks,
                                        uint32_t rows) {
  constexpr int MOST = Tile::MOST_ROWS;
  const bool first_lane = threadIdx.x % WARP == 0;
  const uint32_t first = gmma_operand(shared_address(pipe.stages));
  const uint32_t full = kept(shared_address(pipe.full)), empty = kept(shared_address(pipe.empty));
  const uint32_t w = first + half * gmma_apart(Tile::WEIGHT_BYTES / 2), x = first + gmma_apart(Tile::WEIGHT_BYTES);
  [[maybe_unused]] const char *own = pipe.stages + threadIdx.x / WARP * 2 * E4M3_BLOCK_BYTES;  /* this warp's blocks of weights in 8 bits */
  [[maybe_unused]] uint32_t held[GMMA_K / 16][4];
  uint32_t stage_apart, barrier;
  auto wait = [&] {
    stage_apart = pipe.at * gmma_apart(pipe.stage_bytes), barrier = pipe.at * (uint32_t)sizeof(uint64_t);
    barrier_wait(full + barrier, pipe.parity);
  };
  /* acc = the stage's products, added to what it was if `add`. */
  auto products = [&](auto &acc, bool add) {
    gmma_fence();
    constexpr int N = 2 * sizeof acc / sizeof *acc;
    if constexpr (Tile::IN_8_BITS)
#pragma unroll
      for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma<typename Tile::W, N>(acc, held[k], x + stage_apart + 2 * k, add || k > 0);
    else
      multiply_k_block<typename Tile::W, N>(acc, w + stage_apart, x + stage_apart, add);
    gmma_commit();
    gmma_wait<0>();
    gmma_settle(acc);
  };
  auto multiply = [&](auto room, bool add) {
    constexpr int N = room.value;
    auto &acc = reinterpret_cast<float(&)[N / 2]>(sums);
    if constexpr (Tile::PARTS == 1) {
      products(acc, add);
    } else {
      float parts[N * Tile::PARTS / 2];
      products(parts, false);
      add_bf16x3(acc, parts);
    }
  };
  auto release = [&] {
    if (first_lane) barrier_arrive(empty + barrier);
    pipe.advance(1);
  };
  if constexpr (Tile::IN_8_BITS && Tile::PARTS == 1) {
#pragma unroll
    for (int i = 0; i < MOST / 2; i++) sums[i] = 0.0f;
    gmma_settle(sums);
    mainloop_e4m3<false>(
        pipe, full, k_blocks, [&](uint32_t stage) { return own + stage * pipe.stage_bytes; },
        [&](uint32_t stage) { return x + stage * gmma_apart(pipe.stage_bytes); },
        [&](const uint32_t(&a)[2][4], uint32_t b, bool add) {
          with_room_for<MOST>(rows, [&](auto room) {
            constexpr int N = room.value;
            auto &acc = reinterpret_cast<float(&)[N / 2]>(sums);
            gmma_fence();
            gmma<typename Tile::W, N>(acc, a[0], b, add);
            gmma<typename Tile::W, N>(acc, a[1], b + 2, true);
          });
        },
        [&](uint32_t stage, uint32_t) {
          if (first_lane) barrier_arrive(empty + stage * (uint32_t)sizeof(uint64_t));
        });
    gmma_settle(sums);
  } else if constexpr (Tile::IS_TALL) {
    with_room_for<MOST>(rows, [&](auto room) {
#pragma unroll 1
      for (uint32_t k = 0; k < k_blocks; k++) wait(), multiply(room, k > 0), release();
    });
  } else {
#pragma unroll
    for (int i = 0; i < MOST / 2; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < k_blocks; k++) {
      wait();
      if constexpr (Tile::IN_8_BITS) e4m3_fragments(held, own + pipe.at * pipe.stage_bytes);
      with_room_for<MOST>(rows, [&](auto room) { multiply(room, true); });
      release();
    }
  }
}
