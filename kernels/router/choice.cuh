/* choice.cuh: how a warp of the router's kernels chooses a row's experts, and their entries. A lane has experts lane + 32 w. */
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

/* A lane's values of a row's experts, one for each word. */
template <uint32_t WORDS>
struct RouteLane {
  float of[WORDS];
};

/* Chooses among experts whose products with the row as it is are `sums`; `scale` norms it. It is no inline function: its registers would
 * add to the kernel's, and code that has run before is fetched faster, so that it may be called once where there is time. */
template <uint32_t WORDS>
[[maybe_unused]] static __device__ __noinline__ RouteChoice<WORDS> choose_route(RouteLane<WORDS> sums, RouteLane<WORDS> bias, float scale,
                                                                                 uint32_t expert_count, Weighing weighing) {
  RouteChoice<WORDS> choice;
  float all = 0.0f;
  choose_best(choice.chosen, sums.of, scale, bias.of, expert_count, weighing.k);
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++)
#pragma unroll 1
    for (uint32_t those = choice.chosen[w]; those; those = without_lowest(those)) all += __shfl_sync(0xffffffffu, sums.of[w], lowest(those));
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++)
    choice.weight[w] = (weighing.normalize ? sums.of[w] / (all + 1e-6f) : sums.of[w]) * weighing.scaling;
  return choice;
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

/* A kernel NAME: BODY, with what bounds its registers. */
#define ROUTER_KERNEL(NAME, BODY, ...)                                                                             \
  extern "C" __global__ void __VA_ARGS__ NAME(const tg_choosing_args arrays, const tg_route_args args,             \
                                              uint32_t hidden, uint32_t expert_count, uint32_t k,                  \
                                              uint32_t normalize, float scaling) {                                 \
    BODY(arrays, args, hidden, expert_count, Weighing{k, normalize != 0, scaling});                                \
  }

/* Kernels of clusters, for up to 32 and 64 experts. */
#define ROUTES(NAME, X, STEP, REGISTERS)                                          \
  ROUTER_KERNEL(tg_route_##NAME, (STEP<X, 1>), __maxnreg__(REGISTERS))            \
  ROUTER_KERNEL(tg_route_##NAME##_e64, (STEP<X, 2>), __maxnreg__(REGISTERS))
