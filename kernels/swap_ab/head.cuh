/* head.cuh: the LM head of decode steps of up to 256 rows (swap_ab/swap_ab.cuh), of 16 bits up to 512, for vocabularies that fill the GPU:
 *
 *   y[S,N] = x[S,K] w[N,K]^T    f32, of the rows of which more is read than where the best one is
 *   best[S,parts]               common/argmax.cuh's words: of the logits that a block has of a row
 *
 * A block takes tiles of OUTPUTS weight rows in a grid-stride loop, all of K; blocks that multicast have neighbouring ones. A warp has 16 of
 * a row's logits at a time, and keeps the largest and its id. So sampling a greedy row reads a word a block, and stores no logits.
 *
 * Bound: memory, N K sizeof(W) bytes for each ROWS rows; from 65 rows on L2, which gives rows to every tile: hence wide ones.
 * Measured on an H200 in bf16 in the model, 65536 outputs of 2048, all rows greedy (floor; how: profiles/README.md): 60.5 us
 * (59.1) at 32 rows, 62.2 at 64, 71.7 at 128, 114.2 (86) at 256.
 *
 * Launch: block = THREADS, grid = (parts, rows of the bucket / ROWS), MULTICAST blocks a cluster. y, best and x have as many rows as the bucket.
 */
#pragma once

#include "common/argmax.cuh"
#include "swap_ab/swap_ab.cuh"

/* The larger one, or no number where one of them is none. */
__device__ inline float max_or_nan(float a, float b) {
#ifdef __CUDACC__
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else  /* the host, for tests */
  return b > a || b != b ? b : a;
#endif
}

/* v itself where it is finite, else no number. */
__device__ inline float finite_or_nan(float v) { return fmaf(v, 0.0f, v); }

/* The best of a warp's logits so far. Batch rows are taken 32 at a time, a row a lane, or all 16 there are, two lanes each. */
template <class Tile>
struct HeadBest {
  static constexpr uint32_t FRAGMENTS = Tile::FRAGMENTS < 4 ? Tile::FRAGMENTS : 4, RUNS = Tile::FRAGMENTS / FRAGMENTS;
  static constexpr uint32_t VALUES = 2 * FRAGMENTS;  /* rows of a run that a thread has sums of: 8 j + 2 q and the next */
  static_assert(VALUES == 4 || VALUES == 8, "16 rows, or whole runs of 32");
  unsigned long long words[RUNS];

  __device__ inline HeadBest() {
#pragma unroll
    for (uint32_t run = 0; run < RUNS; run++) words[run] = BEST_NONE;
  }

  /* Which of its values a lane ends up with, and the row of a run that this is. */
  static __device__ inline uint32_t value() { return threadIdx.x % WARP / 4 * VALUES / 8; }
  static __device__ inline uint32_t row() { return value() / 2 * 8 + threadIdx.x % 4 * 2 + value() % 2; }

  /* The whole warp: `acc` has sums of weight rows n and n + 8 of y, of which there are n_total. */
  __device__ inline void take(const typename Tile::Acc &acc, uint32_t n, uint32_t n_total) {
    const uint32_t lane = threadIdx.x % WARP;
    const bool first_there = n < n_total, second_there = n + 8 < n_total;
#pragma unroll
    for (uint32_t run = 0; run < RUNS; run++) {
      float v[VALUES];
#pragma unroll
      for (uint32_t i = 0; i < VALUES; i++) {
        const float *of = acc + 4 * (run * FRAGMENTS + i / 2) + i % 2;
        v[i] = max_or_nan(first_there ? finite_or_nan(of[0]) : -INFINITY, second_there ? finite_or_nan(of[2]) : -INFINITY);
      }
      /* With the lane `bit` further: each keeps the half of the values that it ends up in. */
      uint32_t left = VALUES;
#pragma unroll
      for (uint32_t bit = WARP / 2; bit >= 4; bit /= 2) {
        const bool upper = lane & bit;
        if (left > 1) {
          left /= 2;
#pragma unroll
          for (uint32_t i = 0; i < left; i++) {
            const float sent = upper ? v[i] : v[i + left], kept = upper ? v[i + left] : v[i];
            v[i] = max_or_nan(kept, __shfl_xor_sync(0xffffffffu, sent, bit));
          }
        } else {
          v[0] = max_or_nan(v[0], __shfl_xor_sync(0xffffffffu, v[0], bit));
        }
      }
      /* Which of the lanes with the same rows has it: one of the eight with weight row n, or else with n + 8. */
      uint32_t firsts = 0, seconds = 0;
#pragma unroll
      for (uint32_t i = 0; i < VALUES; i++) {
        const float *of = acc + 4 * (run * FRAGMENTS + i / 2) + i % 2;
        const float best = __shfl_sync(0xffffffffu, v[0], i * (WARP / VALUES) + lane % 4);
        const uint32_t a = __ballot_sync(0xffffffffu, first_there && of[0] == best);
        const uint32_t b = __ballot_sync(0xffffffffu, second_there && of[2] == best);
        if (i == value()) firsts = a, seconds = b;
      }
      firsts &= 0x11111111u << lane % 4, seconds &= 0x11111111u << lane % 4;
      const uint32_t id = n - lane / 4 + (firsts ? (__ffs(firsts) - 1) / 4 : 8 + (__ffs(seconds) - 1) / 4);
      const unsigned long long word = v[0] == v[0] ? ranked(v[0], id) : BEST_BROKEN;
      words[run] = word > words[run] ? word : words[run];
    }
  }

  /* All consumers, when no warp reads the stages, which are `shared` now: best[r * parts] of the first `rows` rows. */
  __device__ inline void store(void *shared, unsigned long long *best, uint32_t parts, uint32_t rows) const {
    unsigned long long *of_warps = static_cast<unsigned long long *>(shared);  /* [warps, ROWS] */
#pragma unroll
    for (uint32_t run = 0; run < RUNS; run++)
      if (threadIdx.x % WARP / 4 * VALUES % 8 == 0) of_warps[threadIdx.x / WARP * Tile::ROWS + run * WARP + row()] = words[run];
    SwapAbBlock<Tile>::consumers_meet();
    for (uint32_t r = threadIdx.x; r < rows; r += Tile::CONSUMERS) {
      unsigned long long word = of_warps[r];
#pragma unroll
      for (uint32_t w = 1; w < Tile::CONSUMERS / WARP; w++) word = max(word, of_warps[w * Tile::ROWS + r]);
      best[(size_t)r * parts] = word;
    }
  }
};

/* Maps of x[S,K] and w[N,K], whose boxes are GMMA_K by ROWS / MULTICAST and by OUTPUTS. */
template <class Tile>
__device__ inline void swap_ab_head(const TensorMap *x_map, const TensorMap *w_map, const tg_swap_ab_head_args &a) {
  constexpr uint32_t SHARE = Tile::ROWS / Tile::MULTICAST;  /* rows that a block issues */
  static_assert(!Tile::SPLITS_K && Tile::WIDTH == GMMA_M, "every warp has weight rows, and sums over all of K");
  static_assert(SHARE % 8 == 0, "a block issues whole atoms");
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[SWAP_AB_BARRIERS];
  __shared__ uint32_t wanted[(Tile::ROWS + WARP - 1) / WARP];  /* a bit for each row whose logits are stored */
  let_next_kernel_start();
  const uint32_t n_total = a.n_total, inner = a.k_total;
  SwapAbBlock<Tile> block(shared, barriers, a.stages);
  const uint32_t part = blockIdx.x, parts = gridDim.x, rank = part % Tile::MULTICAST, first_row = blockIdx.y * Tile::ROWS;
  /* Tiles of this block: as many as the others of its cluster have, of which the last may lie past the weights. */
  const uint32_t tiles = (n_total + Tile::OUTPUTS - 1) / Tile::OUTPUTS, first = part - rank;
  const uint32_t mine = first < tiles ? (tiles - first - 1) / parts + 1 : 0;
  const uint32_t steps = SwapAbRun(inner, 0, 1).steps;
  if (!block.consumes()) {
    const uint64_t policy = cache_policy(gridDim.y == 1), stays = cache_policy(false);
    block.produce(
        mine * steps,
        [&](uint32_t s, char *to, uint64_t *barrier) {
          tensor_copy(to, w_map, s % steps * GMMA_K, (part + s / steps * parts) * Tile::OUTPUTS, barrier, policy);
        },
        [&](uint32_t s, char *to, uint64_t *barrier) {
          const uint32_t column = s % steps * GMMA_K;
          if constexpr (Tile::MULTICAST == 1)
            tensor_copy(to, x_map, column, first_row, barrier, stays);
          else
            tensor_multicast(to + rank * SHARE * GMMA_ROW_BYTES, x_map, column, first_row + rank * SHARE, barrier,
                                  (1u << Tile::MULTICAST) - 1, stays);
        },
        [] {});
    return;
  }
  const uint32_t rows = rows_from(first_row, __ldcg(&a.step->sample_rows), Tile::ROWS);
  static_assert(Tile::ROWS <= Tile::CONSUMERS, "a thread a row");
  if (threadIdx.x < (Tile::ROWS + WARP - 1) / WARP * WARP) {
    const uint32_t those =
        __ballot_sync(0xffffffffu, threadIdx.x < rows && !needs_best_only(a.state, a.step, first_row + threadIdx.x));
    if (threadIdx.x % WARP == 0) wanted[threadIdx.x / WARP] = those;
  }
  SwapAbBlock<Tile>::consumers_meet();
  wait_for_earlier_kernels();
  float *to = a.y + (size_t)first_row * n_total;
  const uint32_t q = threadIdx.x % 4 * 2;
  typename Tile::Acc acc;
  HeadBest<Tile> found;
#pragma unroll 1
  for (uint32_t t = 0; t < mine; t++) {
    const uint32_t n = (part + t * parts) * Tile::OUTPUTS + SwapAbBlock<Tile>::output();
    block.multiply(acc, steps, (mine - t - 1) * steps);
    found.take(acc, n, n_total);
#pragma unroll
    for (uint32_t j = 0; j < Tile::FRAGMENTS; j++) {
      const uint32_t those = wanted[j / 4] >> j % 4 * 8 & 0xff;
      if (those == 0) continue;
#pragma unroll
      for (uint32_t v = 0; v < 4; v++) {
        const uint32_t r = q + v % 2, at = n + v / 2 * 8;
        if (those >> r & 1 && at < n_total) to[(size_t)(j * 8 + r) * n_total + at] = acc[4 * j + v];
      }
    }
  }
  SwapAbBlock<Tile>::consumers_meet();
  /* loaded once more: there is no register for them until here */
  found.store(block.pipe.stages, a.best + (size_t)first_row * parts + part, parts,
              rows_from(first_row, __ldcg(&a.step->sample_rows), Tile::ROWS));
}

#define SWAP_AB_HEAD(NAME, ...)                                                      \
  SWAP_AB_TILE(NAME, __VA_ARGS__)                                                    \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1)              \
      NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, \
           const __grid_constant__ tg_swap_ab_head_args a) {                         \
    swap_ab_head<__VA_ARGS__>(&x, &w, a);                                            \
  }
