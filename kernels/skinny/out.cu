// build: sm_90a sm_100
/* out.cu: tg_skinny_held_out_*, products that add to the residual stream, of steps of few rows (skinny/skinny.cuh), whose weights wait
 * in registers: out-projections, and the down of a narrow dense feed-forward:
 *
 *   h[r,:] += W x[r,:] + bias, K at most SKINNY_K
 *
 * With `parts` it also stores each tile's share of the router's scores (skinny/choice.cuh).
 *
 * A tile's weights are 256 bytes for each of its block's threads, so all are under way at once, before the grid dependency wait, and no
 * shared memory holds them; the launcher asks for a large first-level cache (Kernel::prefer_shared), where they stand on their
 * way. The pipeline of the next kernel, gate/up, would find room beside; its registers do not (9 warps of
 * 144 and 8 of 104 are more than an SM has), so it begins as blocks of this one end. Sums are in the order of tg_skinny_out_*
 * (skinny/add.cu), which has what K is too long for.
 *
 * Bound: memory, N K sizeof(W) bytes.
 * Measured on an H200 in bf16 at 1 row, from kernel to kernel (floor; how: profiles/README.md): 2048 x 2048 2.2 us (1.9), or
 * 1.7 behind attention, during which its weights come.
 *
 * Launch: grid = N / SKINNY_OUTPUTS blocks, block = SKINNY_CONSUMERS, shared: sums, a tile of h and of the gate, and room for
 * the rows, of which those of 16 bits go to registers.
 */
#include "skinny/add.cuh"

template <class Math, uint32_t WORDS>
__device__ inline void skinny_held_out(const tg_skinny_out_args &a) {
  using X = typename Math::X;
  using W = typename Math::W;
  extern __shared__ uint4 shared[];
  let_next_kernel_start();
  const uint32_t lane = threadIdx.x % WARP, tile = blockIdx.x;
  const uint32_t outputs = a.outputs, inner = a.inner, bucket = a.bucket;
  const SkinnyScores scores{a.gate, a.norm_weight, a.expert_count};
  const W *w = static_cast<const W *>(a.w);
  const X *x = static_cast<const X *>(a.x);
  const float *bias = a.bias;
  float *h = a.h;
  void *parts_at = a.parts;  /* read at each use, it moved the scores' loads behind those of the weights (profiles/log/arguments.md) */
  SkinnySums sums{reinterpret_cast<float *>(shared), bucket};
  char *after = reinterpret_cast<char *>(shared) + SkinnySums::bytes_of(bucket);
  const SkinnyParts<WORDS> parts(parts_at, bucket, outputs);
  SkinnyTileScores<WORDS> tile_scores(after, scores, bucket);
  /* Small loads come first: they would stand behind the weights. */
  const uint32_t step_rows = load_now(&a.step->rows);
  if (parts_at) {
    after += SkinnyTileScores<WORDS>::bytes_of(bucket, scores.expert_count);
    tile_scores.load(tile, outputs);
  }
  const uint64_t policy = read_once();
  uint4 weights[SKINNY_TILE_RUNS][SKINNY_UNITS];
#pragma unroll
  for (uint32_t run = 0; run < SKINNY_TILE_RUNS; run++) {
    const uint32_t n = tile * SKINNY_OUTPUTS + run * SKINNY_STAGE_ROWS + lane / 4;
    const W *from = w + (size_t)min(n, outputs - 1) * inner + skinny_lane_column();
#pragma unroll
    for (uint32_t u = 0; u < SKINNY_UNITS; u++)
      weights[run][u] = skinny_unit_at(u) < inner ? read_weights(from + skinny_unit_at(u), policy) : make_uint4(0, 0, 0, 0);
  }
  const uint32_t count = min(step_rows, bucket);
  const uint32_t r = threadIdx.x / SKINNY_OUTPUTS, i = threadIdx.x % SKINNY_OUTPUTS, n = tile * SKINNY_OUTPUTS + i;
  const uint32_t row = Math::lane_row(bucket);
  const bool mine = r < count && n < outputs, there = row < count;
  wait_for_earlier_kernels();
  if (parts_at && blockIdx.x == 0 && threadIdx.x < SKINNY_ROWS * WORDS) parts.clear(threadIdx.x);
  SkinnyColumns<Math> columns;
  skinny_fetch(columns, after, skinny_pitch<typename Math::S>(skinny_stage_k(inner)), x + (there ? (size_t)row * inner : 0), inner, bucket, there);
  float v = mine ? h[(size_t)r * outputs + n] : 0.0f;
  if (mine && bias) v += bias[n];
  SkinnyTileSums of[Math::SUMS], sum;
#pragma unroll
  for (uint32_t u = 0; u < SKINNY_UNITS; u++)
    Math::multiply(of[u % Math::SUMS], weights[0][u], weights[1][u], columns.piece(u, skinny_unit_at(u) < inner));
  skinny_add_up<Math>(sum, of);
  sums.put(skinny_whole<Math>(sum, bucket));
  if (mine) {
    v += sums.get(r, i);
    h[(size_t)r * outputs + n] = v;
  }
  if (parts_at) tile_scores.store(parts, tile, v, count, bucket);
}

#define SKINNY_HELD_OUT(SUFFIX, MATH, WORDS)                                                  \
  extern "C" __global__ void __launch_bounds__(SKINNY_CONSUMERS) tg_skinny_held_out_##SUFFIX( \
      const __grid_constant__ tg_skinny_out_args a) {                                         \
    skinny_held_out<MATH, WORDS>(a);                                                          \
  }

/* For up to 32 and 64 experts. */
#define SKINNY_HELD_OUT_OF(SUFFIX, MATH)  \
  SKINNY_HELD_OUT(SUFFIX, MATH, 1)        \
  SKINNY_HELD_OUT(SUFFIX##_e64, MATH, 2)
FOR_SKINNY_TYPES(SKINNY_HELD_OUT_OF)
