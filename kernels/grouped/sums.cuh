/* sums.cuh: how a consumer warpgroup of grouped/grouped.cuh multiplies what lies in the ring.
 */
#ifndef TAILGRAPH_GROUPED_SUMS_CUH
#define TAILGRAPH_GROUPED_SUMS_CUH

#include "grouped/ring.cuh"

/* Tiles of so many rows leave consumers little time to spare. What saves them some is longer code, which costs a step of fewer rows
 * 0.4% (profiles/log/experts.md). */
template <class Math>
constexpr bool GROUPED_TALL = Math::MOST_ROWS > 64;

/* A consumer warpgroup's sums of up to MOST rows over all of K: element [n][r] as common/wgmma.cuh has D. Which instructions have room
 * for the rows is chosen for each chunk, of tall tiles once for all. */
template <class Math, int MOST>
__device__ inline void grouped_sums(float (&sums)[MOST / 2], GroupedRing &ring, uint32_t half, uint32_t chunks, uint32_t rows) {
  using W = typename Math::W;
  const bool first_lane = threadIdx.x % WARP == 0;
  const uint32_t first = gmma_operand(shared_address(ring.stages));
  const uint32_t full = kept(shared_address(ring.full)), empty = kept(shared_address(ring.empty));
  const uint32_t w = first + half * gmma_apart(GROUPED_WEIGHT_BYTES / 2), x = first + gmma_apart(GROUPED_WEIGHT_BYTES);
  uint32_t there, barrier;
  auto wait = [&] {
    there = ring.at * gmma_apart(ring.stage_bytes), barrier = ring.at * (uint32_t)sizeof(uint64_t);
    barrier_wait(full + barrier, ring.parity);
  };
  /* acc = the stage's products, added to what it was if `add`. */
  auto products = [&](auto &acc, bool add) {
    constexpr int COLUMNS = 2 * sizeof acc / sizeof *acc;
    gmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < GROUPED_K / 16; k++) gmma<W, COLUMNS>(acc, w + there + 2 * k, x + there + 2 * k, add || k > 0);
    gmma_commit();
    gmma_wait<0>();
    gmma_settle(acc);
  };
  auto multiply = [&](auto room, bool add) {
    constexpr int N = room.value;
    if constexpr (Math::PARTS == 1) {
      products(reinterpret_cast<float(&)[N / 2]>(sums), add);
    } else {
      float parts[N * Math::PARTS / 2];
      products(parts, false);
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[i] += parts[i] + (parts[N / 2 + i] + parts[N + i]);
    }
  };
  /* A stage is given back as soon as it is multiplied: the matrix units have time to spare, the ring has not. */
  auto give_back = [&] {
    if (first_lane) barrier_arrive(empty + barrier);
    ring.skip(1);
  };
  if constexpr (GROUPED_TALL<Math>) {
    with_room_for<MOST>(rows, [&](auto room) {
#pragma unroll 1
      for (uint32_t c = 0; c < chunks; c++) wait(), multiply(room, c > 0), give_back();
    });
  } else {
#pragma unroll
    for (int i = 0; i < MOST / 2; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t c = 0; c < chunks; c++) {
      wait();
      with_room_for<MOST>(rows, [&](auto room) { multiply(room, true); });
      give_back();
    }
  }
}

#endif
