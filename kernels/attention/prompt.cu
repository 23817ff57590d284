// build: sm_90a
/* prompt.cu: attention (see attention/attention.cuh) of chunks, near the speed of the tensor cores: mixed and score steps in bf16
 * and f16, in the manner of FlashAttention-3 (Shah et al., 2024).
 *
 * Each SM has one persistent block. Its work tiles are a query tile (attention/tiles.cu lists them) of one kv head, longest first, back
 * and forth over the blocks, so that all end at about the same time. All pairs of a row and a query head of the group are rows of its
 * matrices, 64 of each of two or three warpgroups; so keys and values are read once for the whole group.
 *
 *   warpgroup                 does                                             waits on                       signals
 *   0, 1, 2: consumers        scores, softmax and values of 64 pairs each      q_full, full; its own          q_empty, empty; the next
 *                                                                              turn barrier                   one's turn barrier
 *   3: producer, one thread   copies queries, and KEYS keys and values at a    q_empty, empty                 q_full, full, by expect_tx
 *                             time, across work tiles without a pause
 *
 * While a warpgroup computes the weights of some keys, the tensor cores add up the values of the keys before them, and do the other
 * warpgroups' products: they issue these by turns. Three keep the tensor cores busier than two, but there are fewer, longer tiles for
 * the SMs to share; so tg_query_tiles says for each step which it is, and with two the third warpgroup ends at once.
 *
 * The softmax is online, in f32, in powers of two. Keys go up from position 0, KEYS at a time with two warpgroups as with three; keys past
 * a row's position weigh exactly 0, and rows of a matrix know nothing of each other. So a row's bits follow from its position alone.
 *
 * Bound: the tensor cores, 4 D FLOP for each pair (row, head) and key, and with D = 64 as much time for exponentials: 16 a cycle.
 * Measured on an H200 in bf16, in the model, a prompt of 8,000: 452 us a layer by three warpgroups, 580 by two. On an H100, 32 heads of 64
 * and 8 kv heads, one sequence, by two: 57 us at 2,048 tokens (302 TFLOP/s), 688 at 8,192 (400), 4,480 for 8,192 rows behind 24,000 (421).
 * profiles/log/prompts.md.
 *
 * The group divides 64, and pages of tokens and KEYS have a common divisor that is a multiple of 8. Needs sm_90a.
 */
#include "attention/attention.cuh"
#include "common/launch.cuh"
#include "wgmma/pipeline.cuh"

constexpr uint32_t PROMPT_GROUPS = TG_PROMPT_MOST_PAIRS / GMMA_M;  /* consumer warpgroups, at most */
constexpr uint32_t PROMPT_THREADS = (PROMPT_GROUPS + 1) * GMMA_GROUP;
static_assert(PROMPT_THREADS == TG_PROMPT_THREADS, "as the launcher has it");
/* A thread has 128 registers at launch. The producers give most of theirs to the consumers. */
constexpr uint32_t PROMPT_REGISTERS = 128, PROMPT_PRODUCER_REGISTERS = 32;

/* Tiles of PAIRS pairs of a row and a head. */
template <typename T_, uint32_t D_, uint32_t PAIRS>
struct PromptTile {
  using T = T_;
  static constexpr uint32_t GROUPS = PAIRS / GMMA_M, CONSUMERS = GROUPS * GMMA_GROUP;
  static constexpr uint32_t REGISTERS = PROMPT_REGISTERS + (PROMPT_REGISTERS - PROMPT_PRODUCER_REGISTERS) / GROUPS;
  static constexpr uint32_t D = D_, PARTS = D / GMMA_K;  /* of 128 bytes, in a vector */
  static constexpr uint32_t KEYS = D > 64 ? 64 : 128;
  static constexpr uint32_t Q_PART = PAIRS * GMMA_ROW_BYTES, Q_BYTES = PARTS * Q_PART;
  static constexpr uint32_t K_PART = KEYS * GMMA_ROW_BYTES, K_BYTES = PARTS * K_PART;
  static constexpr uint32_t STAGE_BYTES = 2 * K_BYTES, STAGES = 4;
  static constexpr uint32_t SHARED = GMMA_ATOM_BYTES + Q_BYTES + STAGES * STAGE_BYTES;
  using Scores = float[KEYS / 2];
  using Out = float[PARTS][GMMA_K / 2];
  using Weights = uint32_t[KEYS / 16][4];
};

/* The work tiles of a block: the i-th of them, longest first, back and forth over the blocks. */
struct PromptScheduler {
  uint32_t count, all;
  __device__ inline PromptScheduler(const tg_attention_chunks_args &a) : count(*a.tile_count), all(count * a.kv_heads) {}
  __device__ inline bool at(uint32_t i, const tg_attention_chunks_args &a, QueryTile &tile, uint32_t &kv_head) const {
    const uint32_t work = i * gridDim.x + (i % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (work >= all) return false;
    kv_head = work % a.kv_heads;
    tile = a.tiles[count - 1 - work / a.kv_heads];
    return true;
  }
};

/* Keys and values, a stage KEYS of each; and queries, of which there is one stage. */
template <class Tile>
struct PromptPipeline : Pipeline<Tile::STAGES> {
  char *q;
  uint64_t *q_full, *q_empty;
  __device__ inline char *k() const { return this->stages + this->at * Tile::STAGE_BYTES; }
  __device__ inline char *v() const { return k() + Tile::K_BYTES; }
};

/* The producer, one thread. */
template <class Tile>
__device__ inline void prompt_produce(PromptPipeline<Tile> pipeline, const TensorMap *q_map, const TensorMap *k_map, const TensorMap *v_map,
                                   const tg_attention_chunks_args &a) {
  const PromptScheduler scheduler(a);
  const uint64_t policy = cache_policy(false);
  const uint32_t group = a.heads / a.kv_heads, boxes = Tile::KEYS / a.box_keys;
  uint32_t q_parity = 1;
  QueryTile tile;
  uint32_t kv_head;
#pragma unroll 1
  for (uint32_t i = 0; scheduler.at(i, a, tile, kv_head); i++) {
    barrier_wait(pipeline.q_empty, q_parity);
    q_parity ^= 1;
    barrier_arrive_expecting(pipeline.q_full, Tile::Q_BYTES);
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
      for (uint32_t to = 0; to < Tile::GROUPS; to++) {
        const uint32_t at[5] = {part * GMMA_K, kv_head * group, tile.first_row + to * (GMMA_M / group), 0, 0};
        tensor_copy(pipeline.q + part * Tile::Q_PART + to * GMMA_M * GMMA_ROW_BYTES, q_map, at, pipeline.q_full, policy);
      }
    const Pages pages(a.state, tile.slot, a.kv_heads, kv_head);
    const uint32_t keys = tile.first_position + tile.rows;
#pragma unroll 1
    for (uint32_t first = 0; first < keys; first += Tile::KEYS, pipeline.next()) {
      const uint32_t here = min(boxes, (keys - first + a.box_keys - 1) / a.box_keys);
      pipeline.acquire();
      pipeline.expect(2 * Tile::PARTS * here * a.box_keys * GMMA_ROW_BYTES);
#pragma unroll 1
      for (uint32_t box = 0; box < here; box++) {
        const uint32_t row = pages.at(first + box * a.box_keys), offset = box * a.box_keys * GMMA_ROW_BYTES;
#pragma unroll
        for (uint32_t part = 0; part < Tile::PARTS; part++) {
          tensor_copy(pipeline.k() + part * Tile::K_PART + offset, k_map, part * GMMA_K, row, pipeline.arrivals(), policy);
          tensor_copy(pipeline.v() + part * Tile::K_PART + offset, v_map, part * GMMA_K, row, pipeline.arrivals(), policy);
        }
      }
    }
  }
}

/* A warpgroup's accumulators of a work tile: out, and for each of this thread's two rows the highest score so far, in powers of two, and
 * the sum of this thread's weights. */
template <class Tile>
struct PromptSums {
  typename Tile::Out out;
  float highest[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  /* Turns scores of keys from `first` on into weights relative to the highest so far, and sets the factor by which the sums before shrink.
   * MASKED: some keys may lie past the rows' positions. */
  template <bool MASKED>
  __device__ inline void weigh(typename Tile::Scores &s, float (&shrink)[2], float scale, uint32_t first, const uint32_t (&position)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (uint32_t i = 0; i < Tile::KEYS / 2; i++) {
      const uint32_t half = i / 2 % 2;
      if (MASKED && first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 > position[half]) s[i] = -INFINITY;
      top[half] = fmaxf(top[half], s[i]);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
      const float now = fmaxf(highest[half], top[half] * scale);
      shrink[half] = power_of_two(highest[half] - now);
      highest[half] = now;
      sum[half] *= shrink[half];
    }
#pragma unroll
    for (uint32_t i = 0; i < Tile::KEYS / 2; i++) {
      const uint32_t half = i / 2 % 2;
      s[i] = power_of_two(fmaf(s[i], scale, -highest[half]));
      sum[half] += s[i];
    }
  }

  __device__ inline void shrink_out(const float (&shrink)[2]) {
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
      for (uint32_t i = 0; i < GMMA_K / 2; i++) out[part][i] *= shrink[i / 2 % 2];
  }
};

template <class Tile>
__device__ inline void prompt_pack(typename Tile::Weights &weights, const typename Tile::Scores &s) {
#pragma unroll
  for (uint32_t i = 0; i < Tile::KEYS / 16; i++)
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) weights[i][j] = pack2<typename Tile::T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
}

/* Issues the scores of a stage. */
template <class Tile>
__device__ inline void prompt_scores(typename Tile::Scores &s, uint32_t q, uint32_t k) {
#pragma unroll
  for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
    for (uint32_t i = 0; i < GMMA_K / 16; i++)
      gmma<typename Tile::T, Tile::KEYS>(s, q + part * gmma_apart(Tile::Q_PART) + 2 * i, k + part * gmma_apart(Tile::K_PART) + 2 * i,
                                         part > 0 || i > 0);
  gmma_commit();
}

/* Issues out += weights times the values of a stage. */
template <class Tile>
__device__ inline void prompt_values(typename Tile::Out &out, const typename Tile::Weights &weights, uint32_t v, bool add) {
#pragma unroll
  for (uint32_t i = 0; i < Tile::KEYS / 16; i++)
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
      gmma_values<typename Tile::T>(out[part], weights[i], v + part * gmma_apart(Tile::K_PART) + i * gmma_apart(2 * GMMA_ATOM_BYTES),
                                    add || i > 0);
  gmma_commit();
}

/* Consumer warpgroups issue products by turns. Each has a named barrier, at which it waits and the one before it arrives. */
__device__ inline void prompt_wait_turn(uint32_t warpgroup) { threads_meet<2 * GMMA_GROUP>(2 + warpgroup); }
template <class Tile>
__device__ inline void prompt_signal_turn(uint32_t warpgroup) {
  threads_arrive<2 * GMMA_GROUP>(warpgroup + 1 < Tile::GROUPS ? 3 + warpgroup : 2);
}

/* The epilogue of a work tile: a thread's two rows of out over the sums of their weights; `pair` is the first of these. */
template <class Tile>
__device__ inline void prompt_store(const PromptSums<Tile> &sums, const QueryTile &tile, uint32_t kv_head, uint32_t pair, uint32_t group,
                                    uint32_t lane, const tg_attention_chunks_args &a) {
  using T = typename Tile::T;
#pragma unroll
  for (uint32_t half = 0; half < 2; half++) {
    float sum = sums.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const uint32_t at = pair + 8 * half;
    if (at >= tile.rows * group) continue;
    const size_t head = (size_t)(tile.first_row + at / group) * a.heads + kv_head * group + at % group;
    uint32_t *to = reinterpret_cast<uint32_t *>(static_cast<T *>(a.out) + head * Tile::D);
    const float factor = inverse(sum);
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++)
#pragma unroll
      for (uint32_t i = 0; i < GMMA_K / 8; i++)
        to[part * (GMMA_K / 2) + i * 4 + lane % 4] =
            pack2<T>(sums.out[part][4 * i + 2 * half] * factor, sums.out[part][4 * i + 2 * half + 1] * factor);
  }
}

template <class Tile>
__device__ inline void prompt_consume(PromptPipeline<Tile> pipeline, const tg_attention_chunks_args &a) {
  const uint32_t group = a.heads / a.kv_heads, warpgroup = of_warp(threadIdx.x / GMMA_GROUP);
  const uint32_t thread = threadIdx.x % GMMA_GROUP, lane = thread % WARP;
  const uint32_t pair = warpgroup * GMMA_M + thread / WARP * 16 + lane / 4;  /* and the one 8 further */
  const PromptScheduler scheduler(a);
  const float scale = a.scale * 1.44269504088896f;  /* log2 e */
  const uint32_t q = gmma_operand(shared_address(pipeline.q)) + warpgroup * gmma_apart(GMMA_M * GMMA_ROW_BYTES);
  const uint32_t k = gmma_operand(shared_address(pipeline.stages)), v = k + gmma_apart(Tile::K_BYTES);
  uint32_t q_parity = 0;
  QueryTile tile;
  uint32_t kv_head;
  if (warpgroup == Tile::GROUPS - 1) prompt_signal_turn<Tile>(warpgroup);
#pragma unroll 1
  for (uint32_t i = 0; scheduler.at(i, a, tile, kv_head); i++) {
    const uint32_t keys = tile.first_position + tile.rows, blocks = (keys + Tile::KEYS - 1) / Tile::KEYS;
    const uint32_t position[2] = {tile.first_position + pair / group, tile.first_position + (pair + 8) / group};
    /* Blocks of keys that each row of this warpgroup has whole. */
    const uint32_t whole = (tile.first_position + warpgroup * GMMA_M / group + 1) / Tile::KEYS;
    PromptSums<Tile> sums;
    typename Tile::Scores s;
    typename Tile::Weights weights;
    float shrink[2];
    barrier_wait(pipeline.q_full, q_parity);
    q_parity ^= 1;

    /* Waits for a stage. What lies behind the last key in the last one belongs to no sequence, and may be no number: weights of 0 need
     * values of 0. */
    auto arrived = [&](uint32_t block) {
      pipeline.wait();
      const uint32_t first = block * Tile::KEYS;
      if (first + Tile::KEYS <= keys) return;
      const uint32_t from = (keys - first) * GMMA_ROW_BYTES;
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++)
        for (uint32_t at = from + threadIdx.x * 16; at < Tile::K_PART; at += Tile::CONSUMERS * 16)
          *reinterpret_cast<uint4 *>(pipeline.v() + part * Tile::K_PART + at) = make_uint4(0, 0, 0, 0);
      operands_written();
      threads_meet<Tile::CONSUMERS, 1>();
    };
    auto weigh = [&](uint32_t block) {
      if (block < whole) {
        sums.template weigh<false>(s, shrink, scale, block * Tile::KEYS, position);
      } else {
        sums.template weigh<true>(s, shrink, scale, block * Tile::KEYS, position);
      }
    };
    arrived(0);
    prompt_wait_turn(warpgroup);
    gmma_fence();
    prompt_scores<Tile>(s, q, k + pipeline.at * gmma_apart(Tile::STAGE_BYTES));
    prompt_signal_turn<Tile>(warpgroup);
    gmma_wait<0>();
    gmma_settle(s);
    weigh(0);
    prompt_pack<Tile>(weights, s);
    uint32_t before = pipeline.at;
    pipeline.next();
#pragma unroll 1
    for (uint32_t block = 1; block < blocks; block++) {
      arrived(block);
      prompt_wait_turn(warpgroup);
      gmma_fence();
      prompt_scores<Tile>(s, q, k + pipeline.at * gmma_apart(Tile::STAGE_BYTES));
      prompt_values<Tile>(sums.out, weights, v + before * gmma_apart(Tile::STAGE_BYTES), block > 1);
      prompt_signal_turn<Tile>(warpgroup);
      gmma_wait<1>();
      gmma_settle(s);
      weigh(block);
      gmma_wait<0>();
#pragma unroll
      for (uint32_t part = 0; part < Tile::PARTS; part++) gmma_settle(sums.out[part]);
      if (thread == 0) pipeline.release(before);
      sums.shrink_out(shrink);
      prompt_pack<Tile>(weights, s);
      before = pipeline.at;
      pipeline.next();
    }
    if (thread == 0) barrier_arrive(pipeline.q_empty);
    gmma_fence();
    prompt_values<Tile>(sums.out, weights, v + before * gmma_apart(Tile::STAGE_BYTES), blocks > 1);
    gmma_wait<0>();
#pragma unroll
    for (uint32_t part = 0; part < Tile::PARTS; part++) gmma_settle(sums.out[part]);
    if (thread == 0) pipeline.release(before);
    prompt_store(sums, tile, kv_head, pair, group, lane, a);
  }
  if (warpgroup == 0) prompt_wait_turn(warpgroup);  /* the last one's last signal */
}

template <class Tile>
__device__ inline void attend_prompts(const TensorMap *q_map, const TensorMap *k_map, const TensorMap *v_map, const tg_attention_chunks_args &a) {
  extern __shared__ char prompt_shared[];
  __shared__ uint64_t barriers[2 + 2 * Tile::STAGES];
  PromptPipeline<Tile> pipeline;
  pipeline.q = prompt_shared + (-shared_address(prompt_shared) & (GMMA_ATOM_BYTES - 1));
  pipeline.stages = pipeline.q + Tile::Q_BYTES;
  pipeline.q_full = barriers, pipeline.q_empty = barriers + 1, pipeline.full = barriers + 2, pipeline.empty = pipeline.full + Tile::STAGES;
  if (threadIdx.x == 0) {
    barrier_init(pipeline.q_full, 1), barrier_init(pipeline.q_empty, Tile::GROUPS);
    pipeline.init(1, Tile::GROUPS);
    barriers_ready();
  }
  __syncthreads();
  const uint32_t warpgroup = of_warp(threadIdx.x / GMMA_GROUP);
  if (warpgroup == PROMPT_GROUPS) {
    give_registers<PROMPT_PRODUCER_REGISTERS>();
    if (threadIdx.x % GMMA_GROUP == 0) prompt_produce(pipeline, q_map, k_map, v_map, a);
  } else if (warpgroup < Tile::GROUPS) {
    take_registers<Tile::REGISTERS>();
    prompt_consume(pipeline, a);
  }
}

/* For the launcher: keys at a time, bytes of shared memory.
 * Maps: q of five dimensions, [R, heads + 2 kv_heads, D] in boxes of rows of a warpgroup by heads of a group by GMMA_K; k and v,
 * [pages kv_heads page_tokens, D], in boxes of box_keys by GMMA_K. Query tiles have TG_PROMPT_PAIRS / group rows at most, or in a step
 * where tg_query_tiles says so TG_PROMPT_MOST_PAIRS / group.
 * Launch: block = PROMPT_THREADS; grid = a block an SM, or a work tile where those are fewer. */
#define PROMPT_MOST(T, D) PromptTile<T, D, TG_PROMPT_MOST_PAIRS>
#define ATTENTION_PROMPT(SUFFIX, T, D)                                                                                   \
  LAUNCH_CONSTANTS(tg_attention_prompt_##SUFFIX##_d##D##_tile, 2, PROMPT_MOST(T, D)::KEYS, PROMPT_MOST(T, D)::SHARED)    \
  extern "C" __global__ void __launch_bounds__(PROMPT_THREADS, 1) tg_attention_prompt_##SUFFIX##_d##D(                   \
      const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,     \
      const __grid_constant__ tg_attention_chunks_args a) {                                                              \
    begin_kernel();                                                                                                      \
    if (a.tile_count[1] * a.heads > TG_PROMPT_PAIRS * a.kv_heads) {                                                      \
      attend_prompts<PROMPT_MOST(T, D)>(&q, &k, &v, a);                                                                  \
    } else {                                                                                                             \
      attend_prompts<PromptTile<T, D, TG_PROMPT_PAIRS>>(&q, &k, &v, a);                                                  \
    }                                                                                                                    \
  }
FOR_HALF_HEADS(ATTENTION_PROMPT)
