/* few_choice.cuh: which experts the rows of a small step go to, found by every block for itself.
 *
 * The product before the router's norm (few_add.cu) leaves, for each of its tiles of FEW_OUTPUTS channels, what they add
 * to every expert's score and to the row's sum of squares: scores are linear in h but for the row's one scale. So no
 * kernel stands between: the blocks of gate/up and of down add up partial[R, H / FEW_OUTPUTS, score_columns(E)], in an
 * order that the bucket alone fixes, and choose (experts.cuh).
 */
#ifndef TAILGRAPH_FEW_CHOICE_CUH
#define TAILGRAPH_FEW_CHOICE_CUH

#include "experts.cuh"
#include "few.cuh"

constexpr uint32_t NOT_CHOSEN = 0xff;

/* Of one (row, tile): the experts' parts, then the squares, up to a multiple of 4. At most MAX_EXPERTS, so that a warp
 * reads one in one go: few-row kernels take fewer than MAX_EXPERTS experts. */
__host__ __device__ constexpr uint32_t score_columns(uint32_t experts) { return (experts + 4) / 4 * 4; }

struct alignas(16) FewChoice {
  float weight[FEW_ROWS][MAX_TOP_K];
  float scale[FEW_ROWS];                   /* of the norm */
  uint8_t index[FEW_ROWS][MAX_EXPERTS];    /* which of the row's experts that is, or NOT_CHOSEN */
  uint8_t list[MAX_EXPERTS];               /* experts that any row has, ascending */
  uint32_t count;
};

struct FewChoiceScratch {
  float sums[FEW_CONSUMER_WARPS][MAX_EXPERTS];
  float scores[FEW_ROWS][MAX_EXPERTS];
  uint32_t keys[FEW_ROWS][MAX_EXPERTS];
};

/* What lay in the ring's memory until now is overwritten by copies that go another way than stores do. */
__device__ inline void scratch_becomes_ring() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* All consumers; `scratch` may lie where the ring will; `choice` is whole at the block's next barrier. `rows` of a bucket of `bucket`. */
__device__ inline void few_choose(FewChoice &choice, FewChoiceScratch &scratch, const float *partial, const float *bias,
                                  uint32_t rows, uint32_t bucket, uint32_t hidden, uint32_t expert_count, Weighing weighing,
                                  float eps) {
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t warps = warps_of_row(bucket), r = warp / warps, tiles = hidden / FEW_OUTPUTS;
  const uint32_t columns = score_columns(expert_count), quads = columns / 4, at_once = WARP / quads;
  for (uint32_t i = threadIdx.x; i < FEW_ROWS * MAX_EXPERTS / 4; i += FEW_CONSUMERS)
    reinterpret_cast<uint32_t *>(choice.index)[i] = 0xffffffffu;
  if (r < rows && lane / quads < at_once) {
    /* from L2: a block may read this before the kernel that wrote it is this one's predecessor's predecessor */
    const float4 *from = reinterpret_cast<const float4 *>(partial) + (size_t)r * tiles * quads + lane % quads;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    constexpr uint32_t AT_ONCE = 8;
    const uint32_t step = warps * at_once;
    for (uint32_t tile = warp % warps * at_once + lane / quads; tile < tiles; tile += AT_ONCE * step) {
      float4 v[AT_ONCE];
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
        v[i] = tile + i * step < tiles ? __ldcg(from + (tile + i * step) * quads) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (uint32_t i = 0; i < AT_ONCE; i++)
        sum = make_float4(sum.x + v[i].x, sum.y + v[i].y, sum.z + v[i].z, sum.w + v[i].w);
    }
    store4(scratch.sums[warp] + lane * 4, sum);
  }
  consumers_meet();
  auto total = [&](uint32_t row, uint32_t column) {
    float sum = 0.0f;
    for (uint32_t w = row * warps; w < (row + 1) * warps; w++)
      for (uint32_t part = 0; part < at_once; part++) sum += scratch.sums[w][part * columns + column];
    return sum;
  };
  for (uint32_t i = threadIdx.x; i < rows * expert_count; i += FEW_CONSUMERS) {
    const uint32_t row = i / expert_count, e = i % expert_count;
    const float scale = 1.0f / sqrtf(total(row, expert_count) / hidden + eps);
    if (e == 0) choice.scale[row] = scale;
    scratch.scores[row][e] = 1.0f / (1.0f + expf(-(scale * total(row, e))));
  }
  consumers_meet();
  if (warp < rows)
    choose_experts(scratch.scores[warp], bias, expert_count, weighing, scratch.keys[warp], lane,
                   [&](uint32_t index, uint32_t expert, float weight) {
                     choice.index[warp][expert] = index;
                     choice.weight[warp][index] = weight;
                   });
  scratch_becomes_ring();
  consumers_meet();
  if (warp > 0) return;
  uint32_t before = 0;
  for (uint32_t first = 0; first < expert_count; first += WARP) {
    bool any = false;
    for (uint32_t row = 0; row < rows; row++) any |= choice.index[row][first + lane] != NOT_CHOSEN;
    const uint32_t those = __ballot_sync(0xffffffffu, any);
    if (any) choice.list[before + __popc(those & ((1u << lane) - 1))] = first + lane;
    before += __popc(those);
  }
  if (lane == 0) choice.count = before;
}

#endif
