/* sort_combine.cu: before and after the experts' matrix products: the token sort (router/sort.cuh), and the combine:
 *
 *   h[r,:] += sum over i of weights[r,i] y[place[r k + i],:], i and with it the expert ascending
 *
 * grouped/grouped.cuh leaves y by pair, and then there is no place. With norm_weight also the next layer's x[r,:] = rmsnorm(h[r,:]): the
 * block has the row. All that it reads but y may be there before the wait (`known`): the kernel of grouped/grouped.cuh lets it start only
 * when those before that one have ended.
 *
 * Bound: the sort by latency (one block, two passes over 4Rk bytes in L2), the combine by memory (4H (k + 2) bytes a row, of rounded sums
 * 2H (k + 4), and 2H for x), and for few rows by latency too. Measured on an H200 in bf16, H = 2048, k = 4 (floor; how:
 * profiles/README.md): combine 2.8 us (0.7) at 64 rows, 3.7 (2.8) at 256.
 */
#include "common/rmsnorm.cuh"
#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "router/sort.cuh"

constexpr int COMBINE_ROWS = TG_COMBINE_ROWS;

/* Launch: one block of SORT_THREADS. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    tg_sort_tokens(const tg_sort_tokens_args a) {
  __shared__ SortScratch scratch;
  let_next_kernel_start();
  const uint32_t row_count = __ldcg(&a.step->rows);
  wait_for_earlier_kernels();
  sort_pairs(scratch, a, row_count, SortAlone());
}

/* k is at most TOP. Y is f32, or X where what down made was rounded. A thread has AT_ONCE times four elements of a row under way.
 * Launch: block = NORM_THREADS for each of up to COMBINE_ROWS rows, grid = rows of the bucket / so many. */
template <typename X, uint32_t TOP, uint32_t AT_ONCE, typename Y>
__device__ inline void combine(const tg_combine_args &args) {
  constexpr uint32_t APART = 4 * NORM_THREADS, SPAN = AT_ONCE * APART;
  let_next_kernel_start();
  const uint32_t hidden = args.hidden, k = args.k;
  const bool known = args.known != 0;
  const Y *y = static_cast<const Y *>(args.y);
  const float *weights = args.weights, *norm_weight = args.norm_weight;
  const uint32_t *place = args.place;
  const uint32_t row = threadIdx.x / NORM_THREADS, r = blockIdx.x * (blockDim.x / NORM_THREADS) + row;
  const uint32_t first = 4 * (threadIdx.x % NORM_THREADS);
  const bool there = r < __ldcg(&args.step->rows);
  const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const Y *from[TOP];
  float weight[TOP];
  float4 old[AT_ONCE], norm[AT_ONCE];  /* of the first SPAN */
  float *h = args.h + (size_t)r * hidden;
  /* Past the first-level cache, which may have been filled before these were written. A padded row's are of an old step, and not used. */
  auto load_known = [&] {
#pragma unroll
    for (uint32_t i = 0; i < TOP; i++) {
      const size_t pair = (size_t)r * k + i;
      from[i] = y + (i < k ? place ? __ldcg(place + pair) : pair : 0) * hidden;
      weight[i] = i < k ? __ldcg(weights + (size_t)r * k + i) : 0.0f;
    }
#pragma unroll
    for (uint32_t a = 0; a < AT_ONCE; a++)
      old[a] = first + a * APART < hidden ? load4_past_l1(h + first + a * APART) : zeros;
  };
#pragma unroll
  for (uint32_t a = 0; a < AT_ONCE; a++)
    norm[a] = norm_weight && first + a * APART < hidden ? load4(norm_weight + first + a * APART) : zeros;
  if (known) load_known();
  wait_for_earlier_kernels();
  if (!known) load_known();
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t base = first; there && base < hidden; base += SPAN) {
    Raw4<Y> part[AT_ONCE][TOP];  /* as they lie in memory: rounded ones in half the registers */
#pragma unroll
    for (uint32_t a = 0; a < AT_ONCE; a++) {
      const uint32_t c = base + a * APART;
#pragma unroll
      for (uint32_t i = 0; i < TOP; i++) part[a][i] = i < k && c < hidden ? raw4_past_l1(from[i] + c) : Raw4<Y>{};
      if (base >= SPAN) old[a] = c < hidden ? load4(h + c) : zeros;
    }
#pragma unroll
    for (uint32_t a = 0; a < AT_ONCE; a++) {
      const uint32_t c = base + a * APART;
      float4 sum = zeros;
#pragma unroll
      for (uint32_t i = 0; i < TOP; i++) {
        if (i >= k) break;
        add_weighed(sum, weight[i], load4(part[a][i]));
      }
      old[a] = make_float4(old[a].x + sum.x, old[a].y + sum.y, old[a].z + sum.z, old[a].w + sum.w);
      if (c >= hidden) continue;
      store4(h + c, old[a]);
      squares = add_squares(squares, old[a]);
    }
  }
  if (!norm_weight) return;
  const float scale = norm_scale<COMBINE_ROWS>(squares, hidden, args.eps, row);
  if (!there) return;
  X *x = static_cast<X *>(args.x) + (size_t)r * hidden;
  if (hidden <= SPAN) {
#pragma unroll
    for (uint32_t a = 0; a < AT_ONCE; a++)
      if (first + a * APART < hidden) store4(x + first + a * APART, normed(old[a], scale, norm[a]));
    return;
  }
  /* a thread reads again what it wrote itself */
  for (uint32_t c = first; c < hidden; c += APART) store4(x + c, normed(load4(h + c), scale, load4(norm_weight + c)));
}

#define COMBINE(NAME, X, TOP, AT_ONCE, Y)                                                     \
  extern "C" __global__ void __launch_bounds__(COMBINE_ROWS *NORM_THREADS) tg_combine_##NAME( \
      const tg_combine_args args) {                                                           \
    combine<X, TOP, AT_ONCE, Y>(args);                                                        \
  }

#define COMBINES(SUFFIX, X)                                 \
  COMBINE(four_##SUFFIX, X, TG_COMBINE_FOUR, 2, float)      \
  COMBINE(experts_##SUFFIX, X, MAX_TOP_K, 1, float)
FOR_TYPES(COMBINES)

/* Down stores what it makes of many rows rounded (persistent/persistent.cuh, grouped/epilogue.cuh). With four experts a row these kernels have
 * 64 registers at most: 512 blocks then run at the same time on 128 SMs. */
#define COMBINES_ROUNDED(SUFFIX, X)                         \
  COMBINE(rounded_four_##SUFFIX, X, TG_COMBINE_FOUR, 2, X)  \
  COMBINE(rounded_experts_##SUFFIX, X, MAX_TOP_K, 1, X)
FOR_HALF_TYPES(COMBINES_ROUNDED)
