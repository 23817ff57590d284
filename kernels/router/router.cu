/* router.cu: which experts a row goes to, and with what weight. f32 throughout, from the residual stream.
 *
 *   z = rmsnorm(h[r])
 *   x[r] = z, rounded to the operand type: what the experts multiply with
 *   s = sigmoid(gate z), of z as it is        gate[E,H]
 *   chosen = the K largest of s + bias        ties to the lower index; the bias chooses, it does not weigh
 *   weight = s, over (sum of the chosen s + 1e-6) with norm_topk_prob, times routed_scaling_factor
 *
 * experts[R,k] are ascending in each row, weights[R,k] lie beside them. Where there are clusters, router/norm_router.cu and
 * norm_router_many.cu serve up to 64 experts and H up to 2048 instead.
 *
 * A warp norms a row, and chooses for it. In between each warp has EXPERTS experts at a time, for all rows of the block: for one row in
 * tg_router_1_*, which serve few rows; for MANY_ROWS in tg_router_many_*, since each block reads all of the gate from L2.
 *
 * Bound: memory, (4 + sizeof(x)) H bytes of each row. tg_router_many_* by hand, 7,296 rows, H = 2048, 32 experts, an H100: 90 MB of rows
 * 30 us, 239 MB of the gate from L2 some 45 us, 0.5 GFMA 16 us. Measured in the model 102 us at 7,189 rows, and 32 at 512: a warp has one
 * load of the gate for each of its experts under way, and waits for L2 (profiles/log/prompts.md).
 *
 * Launch: block = ROUTER_THREADS, grid = rows of the bucket / ROWS, shared = 4 ROWS (H + MAX_EXPERTS). Rows at or past the step's get no
 * experts: the token sort does not look at them.
 */
#include "common/rmsnorm.cuh"
#include "common/pdl.cuh"
#include "router/choice.cuh"

constexpr int ROUTER_THREADS = NORM_THREADS, ROUTER_WARPS = ROUTER_THREADS / WARP;
constexpr int MANY_ROWS = TG_ROUTER_MANY_ROWS, EXPERTS = 4;
constexpr int MANY_BLOCKS = 2;  /* of MANY_ROWS on an SM, so that one norms while the other multiplies; three would spill */

/* One warp: z[H] and x[H] unless null, from h[H], to the bits that the threads of a block of NORM_THREADS make of it. */
template <typename X>
__device__ inline void norm_row(float *z, X *x, const float *h, const float *weight, uint32_t hidden, float eps) {
  const uint32_t lane = threadIdx.x % WARP;
  constexpr int PARTS = NORM_THREADS / WARP;
  float squares[PARTS] = {}, sum = 0.0f;
  for (uint32_t first = 4 * lane; first < hidden; first += 4 * NORM_THREADS) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const uint32_t c = first + part * 4 * WARP;
      if (c < hidden) squares[part] = add_squares(squares[part], load4(h + c));
    }
  }
#pragma unroll
  for (int part = 0; part < PARTS; part++) sum += sum_over_lanes(squares[part]);
  const float scale = 1.0f / sqrtf(sum / hidden + eps);
#pragma unroll 4
  for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
    const float4 v = normed(load4(h + c), scale, load4(weight + c));
    store4(z + c, v);
    if (x) store4(x + c, v);
  }
}

template <int ROWS, typename X>
__device__ inline void route(const tg_choosing_args &arrays, const tg_route_args &args, uint32_t hidden, uint32_t expert_count,
                             Weighing weighing) {
  static_assert(ROWS <= ROUTER_WARPS, "a warp a row");
  constexpr uint32_t WORDS = MAX_EXPERTS / WARP;
  const float *h = arrays.h, *gate = arrays.gate, *bias = arrays.bias;
  const tg_step *step = arrays.step;
  X *x = static_cast<X *>(arrays.x);
  extern __shared__ float4 shared[];
  float *z = reinterpret_cast<float *>(shared);  /* [ROWS, H] */
  float *products = z + ROWS * hidden;           /* [ROWS, MAX_EXPERTS] */
  begin_kernel();
  if (blockIdx.x == 0) clear_counts(args.counts);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t first = blockIdx.x * ROWS;
  if (first >= step->rows) return;
  const uint32_t rows = min((uint32_t)ROWS, step->rows - first), row = min((uint32_t)warp, rows - 1);
  if (ROWS == ROUTER_WARPS || warp < ROWS)
    norm_row(z + warp * hidden, warp < rows ? x + (size_t)(first + row) * hidden : nullptr, h + (size_t)(first + row) * hidden,
             arrays.norm_weight, hidden, args.eps);
  __syncthreads();
  for (uint32_t e = warp * EXPERTS; e < expert_count; e += ROUTER_WARPS * EXPERTS) {
    float sums[EXPERTS][ROWS] = {};
    const float *of[EXPERTS];
#pragma unroll
    for (int k = 0; k < EXPERTS; k++) of[k] = gate + (size_t)min(e + k, expert_count - 1) * hidden;
#pragma unroll(ROWS == 1 ? 4 : 1)
    for (uint32_t c = 4 * lane; c < hidden; c += 4 * WARP) {
      float4 g[EXPERTS];
#pragma unroll
      for (int k = 0; k < EXPERTS; k++) g[k] = load4(of[k] + c);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const float4 v = load4(z + i * hidden + c);
#pragma unroll
        for (int k = 0; k < EXPERTS; k++)
          sums[k][i] = fmaf(g[k].w, v.w, fmaf(g[k].z, v.z, fmaf(g[k].y, v.y, fmaf(g[k].x, v.x, sums[k][i]))));
      }
    }
#pragma unroll
    for (int k = 0; k < EXPERTS; k++)
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const float sum = sum_over_lanes(sums[k][i]);
        if (lane == i && e + k < expert_count) products[i * MAX_EXPERTS + e + k] = sum;
      }
  }
  __syncthreads();
  if (warp >= rows) return;
  RouteLane<WORDS> sums, biases;
#pragma unroll
  for (uint32_t w = 0; w < WORDS; w++) {
    const uint32_t e = lane + w * WARP;
    const bool there = e < expert_count;
    sums.of[w] = there ? products[warp * MAX_EXPERTS + e] : 0.0f, biases.of[w] = there && bias ? bias[e] : 0.0f;
  }
  store_choice(arrays, first, warp, weighing.k, choose_route(sums, biases, 1.0f, expert_count, weighing));
}

#define ROUTERS(SUFFIX, X)                                                                        \
  ROUTER_KERNEL(tg_router_1_##SUFFIX, (route<1, X>), __launch_bounds__(ROUTER_THREADS))           \
  ROUTER_KERNEL(tg_router_many_##SUFFIX, (route<MANY_ROWS, X>), __launch_bounds__(ROUTER_THREADS, MANY_BLOCKS))
FOR_TYPES(ROUTERS)
