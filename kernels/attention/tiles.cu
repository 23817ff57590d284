/* tiles.cu: attention (see attention/attention.cuh) of chunks, on the tensor cores of any GPU: mixed and score steps. Decode rows of a
 * mixed step are chunks of one row.
 *
 * tg_query_tiles lists the step's query tiles: each sequence's rows in runs of at most tile_rows, or of large_rows where those make
 * large_tiles tiles or more, and no more than 4/5 of as many: attention of 192 pairs of a row and a head at a time (prompt.cu) takes about
 * 5/4 of the time for 128, so shorter sequences would leave more of a tile empty than it gains.
 *
 * A block has one query tile, the last of the list first since a sequence's last rows have the most keys, and up to TILE query heads of one kv
 * head: TILE pairs (row, head) are the rows of its matrices, 16 a warp. Keys come KEYS at a time, from position 0, into shared memory while
 * those before them are worked on; the softmax is online, in f32, in powers of two. Keys past a row's position weigh exactly 0, and whole
 * runs of them change nothing, so a row's bits follow from its position alone.
 *
 * f32 is multiplied as bf16x3: of the nine products of two values' parts the six that reach f32's last bits. The tensor cores truncate as they
 * accumulate, which a sum over thousands of keys would show. So each 16 elements' products are summed from 0, smallest first, and added to
 * the rest with rounding. Keys and values are split once for all warps, by the threads that copied them: where 16 bits have a second buffer,
 * f32 has the parts of the first. Queries' parts, too many for registers, lie in shared memory too, where each thread reads what it wrote.
 *
 * Bound: the tensor cores, 4 D FLOP for each pair (row, head) and key, in f32 six times as many, for chunks; memory for single rows. A prompt
 * of 8,192 (32 heads and 8 kv heads of 64) took 1,716 us on an H100 in bf16, 160 TFLOP/s (profiles/log/prompts.md). An f32 prompt of 2,048
 * is 17.2 GFLOP a layer, 103 as parts, 170 us on an H200 at the 610 TFLOP/s or so that mma.sync reaches there; measured 375. For 192 mma,
 * 1,230 cycles, a warp issues about 1,100 instructions, and shared memory is busy for 1,400 cycles.
 *
 * Launch: grid = (most query tiles, kv_heads, (heads / kv_heads) / TILE rounded up), block = TILE_THREADS, shared = KeyRun<T, D>::SHARED.
 */
#include "attention/attention.cuh"
#include "common/bf16x3.cuh"
#include "common/launch.cuh"
#include "common/wgmma.cuh"

constexpr int TILE = TG_TILE_PAIRS;
constexpr int TILE_WARPS = TILE / 16;
constexpr int TILE_THREADS = TILE_WARPS * WARP;
static_assert(TILE_THREADS == TG_TILE_THREADS, "as the launcher has it");

constexpr int LIST_THREADS = TG_LIST_THREADS;
static_assert(LIST_THREADS >= TG_MAX_SLOTS, "a thread a sequence");

/* Launch: one block of LIST_THREADS. */
extern "C" __global__ void __launch_bounds__(LIST_THREADS)
    tg_query_tiles(QueryTile *tiles, uint32_t *tile_count, const tg_state *state, const tg_step *step, uint32_t tile_rows,
                   uint32_t large_rows, uint32_t large_tiles) {
  __shared__ uint32_t warp_tiles[2][LIST_THREADS / WARP];
  begin_kernel();
  const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  tg_sequence sequence = {};
  if (threadIdx.x < step->sequences) sequence = table<tg_sequence>(state, step->sequence_table)[threadIdx.x];
  uint32_t before[2], all[2] = {};  /* tiles before this thread's, and in all, of either size */
#pragma unroll
  for (uint32_t size = 0; size < 2; size++) {
    const uint32_t rows = size ? large_rows : tile_rows, mine = (sequence.rows + rows - 1) / rows;
    const uint32_t until = sum_up_to_lane(mine);
    if (lane == WARP - 1) warp_tiles[size][warp] = until;
    before[size] = until - mine;
  }
  __syncthreads();
#pragma unroll
  for (uint32_t size = 0; size < 2; size++)
    for (uint32_t w = 0; w < LIST_THREADS / WARP; w++) {
      if (w == warp) before[size] += all[size];
      all[size] += warp_tiles[size][w];
    }
  const bool large = all[1] >= large_tiles && 5 * all[1] <= 4 * all[0];
  const uint32_t rows = large ? large_rows : tile_rows;
  if (threadIdx.x == 0) tile_count[0] = large ? all[1] : all[0], tile_count[1] = rows;
  uint32_t at = large ? before[1] : before[0];
  for (uint32_t first = 0; first < sequence.rows; first += rows)
    tiles[at++] = QueryTile{sequence.slot, sequence.first_row + first, sequence.first_position + first, min(rows, sequence.rows - first)};
}

/* A run of keys and their values in shared memory: of T as they arrive, and of Element as operands, which f32 has PARTS of. */
template <typename T_, int D_>
struct KeyRun {
  using T = T_;
  static constexpr int D = D_, PARTS = sizeof(T) == sizeof(float) ? TG_PARTS : 1;
  static constexpr bool SPLIT = PARTS > 1;
  using Element = std::conditional_t<SPLIT, __nv_bfloat16, T>;
  static constexpr int KEYS = SPLIT ? 2048 / D : TILE;
  static constexpr int BLOCKS = SPLIT && D == 64 ? 3 : 1;  /* of a multiprocessor, at least, in registers */
  static constexpr int PITCH = D + 8, PART = 2 * KEYS * PITCH;  /* elements of an operand's vector, and of a part: keys, then values */
  static constexpr int ARRIVED_PITCH = SPLIT ? D : PITCH, ARRIVED = 2 * KEYS * ARRIVED_PITCH;  /* the same as they arrive */
  static constexpr uint32_t RUN_BYTES = ARRIVED * sizeof(T) + PARTS * PART * sizeof(Element);  /* as it arrives and as operands; or two */
  static constexpr uint32_t SHARED = RUN_BYTES + (SPLIT ? D / 16 * PARTS * TILE_THREADS * sizeof(uint4) : 0);
  using Scores = float[KEYS / 8][4];
  using Out = float[D / 8][4];
  using Operand = uint32_t[PARTS][4];  /* A of an instruction, or B of two */
  using Queries = Operand[SPLIT ? 1 : D / 16];
};

template <typename T>
__device__ inline float2 load2(const T *p) {
  if constexpr (sizeof(T) == sizeof(float)) return *reinterpret_cast<const float2 *>(p);
  else return unpack2<T>(*reinterpret_cast<const uint32_t *>(p));
}

template <typename T>
__device__ inline void store2(T *p, float2 v) {
  if constexpr (sizeof(T) == sizeof(float)) *reinterpret_cast<float2 *>(p) = v;
  else *reinterpret_cast<uint32_t *>(p) = pack2<T>(v.x, v.y);
}

__device__ inline uint4 &as_uint4(uint32_t (&v)[4]) { return *reinterpret_cast<uint4 *>(v); }

/* Register r of an operand. */
template <class Run>
__device__ inline void put_pair(typename Run::Operand &operand, int r, float2 v) {
  if constexpr (Run::SPLIT) {
    uint32_t parts[Run::PARTS];
    bf16x3(v, parts);
#pragma unroll
    for (int p = 0; p < Run::PARTS; p++) operand[p][r] = parts[p];
  } else {
    operand[0][r] = pack2<typename Run::T>(v.x, v.y);
  }
}

/* c += a b, for two B side by side. Parts p and both - p are multiplied: the larger `both`, the smaller the product. */
template <class Run>
__device__ inline void multiply(float (&c0)[4], float (&c1)[4], const typename Run::Operand &a, const typename Run::Operand &b) {
  using Element = typename Run::Element;
  if constexpr (!Run::SPLIT) {
    mma<Element>(c0, a[0], b[0][0], b[0][1]);
    mma<Element>(c1, a[0], b[0][2], b[0][3]);
  } else {
    float sum[2][4] = {};
#pragma unroll
    for (int both = Run::PARTS - 1; both >= 0; both--)
#pragma unroll
      for (int p = 0; p <= both; p++) {
        mma<Element>(sum[0], a[p], b[both - p][0], b[both - p][1]);
        mma<Element>(sum[1], a[p], b[both - p][2], b[both - p][3]);
      }
#pragma unroll
    for (int v = 0; v < 4; v++) c0[v] += sum[0][v], c1[v] += sum[1][v];
  }
}

/* Scores of a run of keys, before the scale. */
template <class Run>
__device__ inline void score_run(typename Run::Scores &s, typename Run::Queries &q, const uint4 *q_parts, const typename Run::Element *keys) {
  const int lane = threadIdx.x % WARP;
#pragma unroll(Run::SPLIT ? Run::D / 64 : Run::D / 16)
  for (int i = 0; i < Run::D / 16; i++) {
    typename Run::Operand &query = q[Run::SPLIT ? 0 : i];
    if constexpr (Run::SPLIT)
#pragma unroll
      for (int p = 0; p < Run::PARTS; p++) as_uint4(query[p]) = q_parts[(i * Run::PARTS + p) * TILE_THREADS];
#pragma unroll
    for (int j = 0; j < Run::KEYS / 8; j += 2) {
      typename Run::Operand k;
#pragma unroll
      for (int p = 0; p < Run::PARTS; p++)
        load_matrix_x4(k[p], keys + p * Run::PART + (j * 8 + lane % 8 + lane / 16 * 8) * Run::PITCH + i * 16 + lane / 8 % 2 * 8);
      multiply<Run>(s[j], s[j + 1], query, k);
    }
  }
}

/* Scores of keys from `first_key` on become weights; the maximum m, the sum l and the sums acc of a lane's two rows go on from them. */
template <class Run>
__device__ inline void weigh_run(typename Run::Scores &s, float (&m)[2], float (&l)[2], typename Run::Out &acc, const uint32_t (&position)[2],
                                 uint32_t first_key, float scale) {
  const int lane = threadIdx.x % WARP;
  if (first_key + Run::KEYS > position[0] + 1)
#pragma unroll
    for (int j = 0; j < Run::KEYS / 8; j++)
#pragma unroll
      for (int v = 0; v < 4; v++)
        if (first_key + j * 8 + lane % 4 * 2 + v % 2 > position[v / 2]) s[j][v] = -INFINITY;
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < Run::KEYS / 8; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) top[v / 2] = fmaxf(top[v / 2], s[j][v]);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
    top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
    const float highest = fmaxf(m[half], top[half] * scale), shrink = power_of_two(m[half] - highest);
    m[half] = highest;
    l[half] *= shrink;
#pragma unroll
    for (int i = 0; i < Run::D / 8; i++) acc[i][2 * half] *= shrink, acc[i][2 * half + 1] *= shrink;
  }
  float sum[2] = {};  /* of this lane's keys: the four lanes of a row add theirs up at the end */
#pragma unroll
  for (int j = 0; j < Run::KEYS / 8; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) {
      s[j][v] = power_of_two(fmaf(s[j][v], scale, -m[v / 2]));
      sum[v / 2] += s[j][v];
    }
  l[0] += sum[0], l[1] += sum[1];
}

/* acc += the weights s times a run's values. */
template <class Run>
__device__ inline void add_values(typename Run::Out &acc, const typename Run::Scores &s, const typename Run::Element *values) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int j = 0; j < Run::KEYS / 16; j++) {
    typename Run::Operand weights;
#pragma unroll
    for (int r = 0; r < 4; r++)
      put_pair<Run>(weights, r, make_float2(s[2 * j + r / 2][r % 2 * 2], s[2 * j + r / 2][r % 2 * 2 + 1]));
#pragma unroll
    for (int i = 0; i < Run::D / 8; i += 2) {
      typename Run::Operand v;
#pragma unroll
      for (int p = 0; p < Run::PARTS; p++)
        load_matrix_x4_transposed(v[p], values + p * Run::PART + (j * 16 + lane % 16) * Run::PITCH + i * 8 + lane / 16 * 8);
      multiply<Run>(acc[i], acc[i + 1], weights, v);
    }
  }
}

/* This thread's own copies of f32, keys and values, as parts. */
template <class Run>
__device__ inline void split_run(typename Run::Element *parts, const typename Run::T *arrived) {
  constexpr int CHUNKS = Run::D / 4;  /* of 16 bytes, in a vector */
  const uint32_t vector = threadIdx.x / CHUNKS, d = threadIdx.x % CHUNKS * 4;
#pragma unroll
  for (uint32_t first = 0; first < 2 * Run::KEYS; first += TILE_THREADS / CHUNKS) {
    const float4 v = load4(arrived + (first + vector) * Run::D + d);
    uint32_t lo[Run::PARTS], hi[Run::PARTS];
    bf16x3(make_float2(v.x, v.y), lo), bf16x3(make_float2(v.z, v.w), hi);
#pragma unroll
    for (int p = 0; p < Run::PARTS; p++)
      *reinterpret_cast<uint2 *>(parts + p * Run::PART + (first + vector) * Run::PITCH + d) = make_uint2(lo[p], hi[p]);
  }
}

template <class Run>
__device__ inline void attend_tile(const tg_attention_chunks_args &a) {
  using T = typename Run::T;
  constexpr int D = Run::D, KEYS = Run::KEYS, PITCH = Run::ARRIVED_PITCH;
  extern __shared__ uint4 shared[];
  T *arrived = reinterpret_cast<T *>(shared);  /* a run of ARRIVED elements, behind it another one, or of f32 its parts */
  begin_kernel();
  const uint32_t tiles = *a.tile_count;
  if (blockIdx.x >= tiles) return;
  const QueryTile tile = a.tiles[tiles - 1 - blockIdx.x];
  const T *qkv = static_cast<const T *>(a.qkv), *k_pages = static_cast<const T *>(a.k_pages), *v_pages = static_cast<const T *>(a.v_pages);
  const uint32_t heads = a.heads, kv_heads = a.kv_heads;
  const uint32_t kv_head = blockIdx.y, group = heads / kv_heads, first_head = blockIdx.z * TILE;
  const uint32_t here = min((uint32_t)TILE, group - first_head);  /* heads */
  const Pages pages(a.state, tile.slot, kv_heads, kv_head);
  /* A single row is of warp 0 alone, which is not the same of each block, or they would share a quarter of a multiprocessor. */
  const int lane = threadIdx.x % WARP, warp = (threadIdx.x / WARP + blockIdx.x + blockIdx.y) % TILE_WARPS;
  const uint32_t pairs = tile.rows * here;
  const uint32_t last = tile.first_position + tile.rows - 1;
  const uint32_t first_pair = warp * 16 + lane / 4;  /* of this lane's two; the other is 8 further */

  auto fill = [&](T *to, uint32_t first_key) {
    constexpr int EACH = 16 / sizeof(T), CHUNKS = D / EACH;  /* of 16 bytes, in a vector */
    static_assert(TILE_THREADS % CHUNKS == 0 && KEYS % (TILE_THREADS / CHUNKS) == 0, "each thread copies as many");
#pragma unroll
    for (uint32_t first = 0; first < KEYS; first += TILE_THREADS / CHUNKS) {
      uint32_t key = first + threadIdx.x / CHUNKS, d = threadIdx.x % CHUNKS * EACH;
      bool valid = first_key + key <= last;
      size_t at = pages.at(min(first_key + key, last)) * D + d;
      copy16_async(to + key * PITCH + d, k_pages + at, valid);
      copy16_async(to + (KEYS + key) * PITCH + d, v_pages + at, valid);
    }
    copy_commit();
  };
  fill(arrived, 0);

  alignas(16) typename Run::Queries q;
  uint4 *q_parts = shared + Run::RUN_BYTES / sizeof(uint4) + threadIdx.x;
  const T *from[2];
  uint32_t position[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint32_t pair = first_pair + 8 * half;
    position[half] = tile.first_position + pair / here;
    const size_t head = (size_t)(tile.first_row + pair / here) * (heads + 2 * kv_heads) + kv_head * group + first_head + pair % here;
    from[half] = pair < pairs ? qkv + head * D + lane % 4 * 2 : nullptr;
  }
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    typename Run::Operand &query = q[Run::SPLIT ? 0 : i];
#pragma unroll
    for (int r = 0; r < 4; r++)
      put_pair<Run>(query, r, from[r % 2] ? load2(from[r % 2] + i * 16 + r / 2 * 8) : make_float2(0.0f, 0.0f));
    if constexpr (Run::SPLIT)
#pragma unroll
      for (int p = 0; p < Run::PARTS; p++) q_parts[(i * Run::PARTS + p) * TILE_THREADS] = as_uint4(query[p]);
  }
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  typename Run::Out acc = {};
  const float scale = a.scale * 1.4426950408889634f;  /* log2 e */

  const uint32_t runs = last / KEYS + 1;
  for (uint32_t run = 0; run < runs; run++) {
    copy_wait<0>();
    auto *keys = reinterpret_cast<typename Run::Element *>(arrived + (Run::SPLIT ? 1 : run % 2) * Run::ARRIVED);
    if constexpr (Run::SPLIT) {
      __syncthreads();  /* nobody reads the parts before these any more */
      split_run<Run>(keys, arrived);
    }
    __syncthreads();
    if (run + 1 < runs) fill(arrived + (Run::SPLIT ? 0 : (run + 1) % 2) * Run::ARRIVED, (run + 1) * KEYS);
    if (warp * 16 >= pairs) continue;  /* it copies only */
    typename Run::Scores s = {};
    score_run<Run>(s, q, q_parts, keys);
    weigh_run<Run>(s, m, l, acc, position, run * KEYS, scale);
    add_values<Run>(acc, s, keys + KEYS * Run::PITCH);
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    l[half] += __shfl_xor_sync(0xffffffffu, l[half], 1);
    l[half] += __shfl_xor_sync(0xffffffffu, l[half], 2);
    const uint32_t pair = kept(first_pair) + 8 * half;  /* or what follows from it is held in registers since above */
    if (pair >= pairs) continue;
    const size_t head = (size_t)(tile.first_row + pair / here) * heads + kv_head * group + first_head + pair % here;
    T *to = static_cast<T *>(a.out) + head * D + lane % 4 * 2;
    const float factor = inverse(l[half]);
#pragma unroll
    for (int i = 0; i < D / 8; i++) store2(to + i * 8, make_float2(acc[i][2 * half] * factor, acc[i][2 * half + 1] * factor));
  }
}

/* For the launcher: bytes of shared memory. */
#define ATTENTION_TILES(SUFFIX, T, D)                                                                                    \
  LAUNCH_CONSTANTS(tg_attention_tiles_##SUFFIX##_d##D##_tile, 1, KeyRun<T, D>::SHARED)                                   \
  STRUCT_KERNEL(tg_attention_tiles_##SUFFIX##_d##D, tg_attention_chunks_args, (attend_tile<KeyRun<T, D>>), TILE_THREADS, \
                KeyRun<T, D>::BLOCKS)
FOR_HEADS(ATTENTION_TILES)
