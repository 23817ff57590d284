/* choice.cuh: how a warp of router/norm_router.cu and router/norm_router_many.cu chooses a row's experts, as choose_experts
 * (common/experts.cuh) does, and stores them; and their kernels. A lane has expert `lane`, or with more than 32 experts lane + 32 w.
 */
#pragma once

#include "common/base.cuh"
#include "common/bits.cuh"
#include "common/experts.cuh"
#include "common/launch.cuh"
#include "router/args.h"

/* Bits of the experts that a row chose, a word for each 32, and in the lane of each its weight. */
template <uint32_t WORDS>
struct RouteChoice {
  uint32_t chosen[WORDS];
  float weight[WORDS];
};

/* Chooses among experts whose products with the normed row are `sum`. It is no inline function, so that it can be called once where there
 * is time: code that has run before is fetched faster. */
[[maybe_unused]] static __device__ __noinline__ RouteChoice<1> choose_of_32(float sum, float bias, uint32_t expert_count,
                                                                        Weighing weighing) {
  const uint32_t lane = threadIdx.x % WARP;
  const float score = 1.0f / (1.0f + expf(-sum));
  const uint32_t key = sortable(score + bias);
  bool left = lane < expert_count;
#pragma unroll 1
  for (uint32_t i = 0; i < weighing.k; i++) {  /* the best that is left, of several the lowest */
    const uint32_t best = __reduce_max_sync(0xffffffffu, left ? key : 0);
    if (lane == __ffs(__ballot_sync(0xffffffffu, left && key == best)) - 1) left = false;
  }
  const uint32_t chosen = __ballot_sync(0xffffffffu, lane < expert_count && !left);
  float all = 0.0f;
#pragma unroll 1
  for (uint32_t those = chosen; those; those &= those - 1) all += __shfl_sync(0xffffffffu, score, __ffs(those) - 1);
  return {{chosen}, {(weighing.normalize ? score / (all + 1e-6f) : score) * weighing.scaling}};
}

/* The same for more experts; score[w]: the products with the row as it is, which `scale` norms. */
template <uint32_t WORDS>
__device__ inline RouteChoice<WORDS> choose_of_words(float (&score)[WORDS], const float (&bias)[WORDS], float scale,
                                                      uint32_t expert_count, Weighing weighing) {
  RouteChoice<WORDS> choices;
  float all = 0.0f;
  choose_best(choices.chosen, score, scale, bias, expert_count, weighing.k);
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++)
#pragma unroll 1
    for (uint32_t those = choices.chosen[w]; those; those = without_lowest(those)) all += __shfl_sync(0xffffffffu, score[w], lowest(those));
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++)
    choices.weight[w] = (weighing.normalize ? score[w] / (all + 1e-6f) : score[w]) * weighing.scaling;
  return choices;
}

/* experts[first + r,:] and weights[first + r,:], k of each. */
template <uint32_t WORDS>
__device__ inline void store_choice(const tg_choosing_args &to, uint32_t first, uint32_t r, uint32_t k,
                                    const RouteChoice<WORDS> &choices) {
  const uint32_t lane = threadIdx.x % WARP;
  size_t at = (size_t)(first + r) * k;
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) {
    if (choices.chosen[w] >> lane & 1) {
      const size_t place = at + count_before(choices.chosen[w], lane);
      to.experts[place] = lane + w * WARP;
      to.weights[place] = choices.weight[w];
    }
    at += count(choices.chosen[w]);
  }
}

/* A kernel of STEP<X, WORDS>. */
#define ROUTE(NAME, X, WORDS, STEP, REGISTERS)                                                                     \
  extern "C" __global__ void __maxnreg__(REGISTERS) tg_route_##NAME(                                               \
      const tg_choosing_args arrays, const tg_route_args args, uint32_t hidden, uint32_t expert_count, uint32_t k, \
      uint32_t normalize, float scaling) {                                                                         \
    STEP<X, WORDS>(arrays, args, hidden, expert_count, Weighing{k, normalize != 0, scaling});                      \
  }

/* For up to 32 and 64 experts. */
#define ROUTES(NAME, X, ...)       \
  ROUTE(NAME, X, 1, __VA_ARGS__)   \
  ROUTE(NAME##_e64, X, 2, __VA_ARGS__)
