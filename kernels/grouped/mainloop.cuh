/* mainloop.cuh: how a consumer warpgroup of grouped/grouped.cuh multiplies. It waits for each k-block's products and releases the stage at
 * once, where wgmma/mainloop.cuh leaves them under way: the tensor cores have time to spare, the pipeline has not.
 *
 * With weights in 8 bits and rows of 16 a stage comes every 420 cycles, and what a warp does for each, one after the other, took 611 (an H200, 32
 * rows). So one k-block's fragments become bf16 while the products of the one before run, and a stage is released a k-block later.
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
    const uint32_t lane = kept(E4m3Words::own_bytes());
    uint32_t stage, before = 0, left = k_blocks;
    E4m3Words words;
    auto take = [&] {
      stage = pipe.at;
      barrier_wait(full + stage * (uint32_t)sizeof(uint64_t), pipe.parity);
      words = E4m3Words::load_own(own + stage * pipe.stage_bytes + lane);
    };
    auto settle = [](uint32_t (&a)[GMMA_K / 16][4]) {
#pragma unroll
      for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma_settle(a[k]);
    };
    auto release_before = [&] {
      if (first_lane) barrier_arrive(empty + before * (uint32_t)sizeof(uint64_t));
    };
#pragma unroll
    for (int i = 0; i < MOST / 2; i++) sums[i] = 0.0f;
    gmma_settle(sums);
    /* A loop for each N: a choice for each k-block would be three branches, 50 cycles, and its commit a group of its own that gmma_wait
     * counts. ptxas serializes some other orders of the same statements (C7512): look at its notes after any change. */
    with_room_for<MOST>(rows, [&](auto room) {
      constexpr int N = room.value;
      auto &acc = reinterpret_cast<float(&)[N / 2]>(sums);
      uint32_t made[2][GMMA_K / 16][4] = {};
      take();
      words.fragments(made[0]), settle(made[0]);
      bool more = true;
#pragma unroll 1
      while (more) {
        /* Multiplies the k-block whose fragments are in made[at], and meanwhile makes the next one's. */
#pragma unroll
        for (uint32_t at = 0; at < 2 && more; at++) {
          const uint32_t here = stage, operand = x + here * gmma_apart(pipe.stage_bytes);
          more = --left > 0;
          pipe.next();
          if (more) take();
          gmma_fence();
#pragma unroll
          for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma<typename Tile::W, N>(acc, made[at][k], operand + 2 * k, true);
          gmma_commit();
          gmma_wait<1>();
          settle(made[1 - at]);
          if (left + 1 < k_blocks) release_before();
          before = here;
          if (more) words.fragments(made[1 - at]), settle(made[1 - at]);
        }
      }
      gmma_wait<0>();
    });
    release_before();
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
