/* tiles.cu: attention (see attention/attention.cuh) of chunks, on the tensor cores: mixed and score steps in
 * bf16 and f16. Decode rows of a mixed step are chunks of one row.
 *
 * tg_query_tiles lists the step's query tiles: each sequence's rows in runs of at most tile_rows, or of large_rows where those make
 * large_tiles tiles or more, and no more than 4/5 of as many: attention of 192 pairs of a row and a head at a time (prompt.cu) takes about
 * 5/4 of the time for 128, so shorter sequences would leave more of a tile empty than it gains.
 *
 * A block has one query tile and up to TILE query heads of one kv head: TILE pairs (row, head) are the rows of its matrices, 16 a warp.
 * Keys come 64 at a time, from position 0, through two buffers in shared memory; the softmax is online, in f32, in powers of two. Keys
 * past a row's position weigh exactly 0, and whole runs of them change nothing, so a row's bits follow from its position alone.
 *
 * Bound: the tensor cores, 4 D FLOP for each pair (row, head) and key, for chunks; memory for single rows. A prompt of 8,192 (32 heads
 * and 8 kv heads of 64) takes 1,716 us on an H100, 160 TFLOP/s (profiles/log/prompts.md).
 *
 * Launch: grid = (most query tiles, kv_heads, (heads / kv_heads) / TILE rounded up), block = TILE_THREADS, shared = ATTENTION_SHARED(D).
 */
#include "attention/attention.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"

constexpr int TILE = TG_TILE_PAIRS;
constexpr int KEYS = TG_TILE_PAIRS;
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

/* Scores of a run of keys: s[KEYS / 8][4], before the scale. */
template <typename T, int D>
__device__ inline void score_run(float (&s)[KEYS / 8][4], const uint32_t (&q)[D / 16][4], const T *k_run) {
  constexpr int PITCH = D + TG_TILE_PAD;
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int i = 0; i < D / 16; i++)
#pragma unroll
    for (int j = 0; j < KEYS / 8; j += 2) {
      uint32_t k[4];
      load_matrix_x4(k, k_run + (j * 8 + lane % 8 + lane / 16 * 8) * PITCH + i * 16 + lane / 8 % 2 * 8);
      mma<T>(s[j], q[i], k[0], k[1]);
      mma<T>(s[j + 1], q[i], k[2], k[3]);
    }
}

/* Scores of keys from `first_key` on become weights; the maximum m, the sum l and the sums acc of a lane's two rows go on from them. */
template <int D>
__device__ inline void weigh_run(float (&s)[KEYS / 8][4], float (&m)[2], float (&l)[2], float (&acc)[D / 8][4], const uint32_t (&position)[2],
                                 uint32_t first_key, float scale) {
  const int lane = threadIdx.x % WARP;
  float highest[2] = {m[0], m[1]}, sum[2] = {};
#pragma unroll
  for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) {
      uint32_t key = first_key + j * 8 + lane % 4 * 2 + v % 2;
      s[j][v] = key <= position[v / 2] ? s[j][v] * scale : -INFINITY;
      highest[v / 2] = fmaxf(highest[v / 2], s[j][v]);
    }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffu, highest[half], 1));
    highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffu, highest[half], 2));
    float shrink = exp2f(m[half] - highest[half]);
    m[half] = highest[half];
    l[half] *= shrink;
#pragma unroll
    for (int i = 0; i < D / 8; i++) acc[i][2 * half] *= shrink, acc[i][2 * half + 1] *= shrink;
  }
#pragma unroll
  for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) {
      s[j][v] = exp2f(s[j][v] - m[v / 2]);
      sum[v / 2] += s[j][v];
    }
  l[0] += sum[0], l[1] += sum[1];  /* of this lane's keys: the four lanes of a row add theirs up at the end */
}

template <typename T, int D>
__device__ inline void attend_tile(const tg_attention_chunks_args &a) {
  constexpr int PITCH = D + TG_TILE_PAD;
  constexpr int CHUNKS = D / 8;  /* of 16 bytes, in a vector */
  extern __shared__ uint4 shared[];
  T *q_shared = reinterpret_cast<T *>(shared);     /* [TILE, PITCH] */
  T *k_shared = q_shared + TILE * PITCH;           /* [2, KEYS, PITCH] */
  T *v_shared = k_shared + 2 * KEYS * PITCH;       /* [2, KEYS, PITCH] */
  begin_kernel();
  if (blockIdx.x >= *a.tile_count) return;
  const QueryTile tile = a.tiles[blockIdx.x];
  const T *qkv = static_cast<const T *>(a.qkv), *k_pages = static_cast<const T *>(a.k_pages), *v_pages = static_cast<const T *>(a.v_pages);
  const uint32_t heads = a.heads, kv_heads = a.kv_heads;
  const uint32_t kv_head = blockIdx.y, group = heads / kv_heads, first_head = blockIdx.z * TILE;
  const uint32_t here = min((uint32_t)TILE, group - first_head);  /* heads */
  const Pages pages(a.state, tile.slot, kv_heads, kv_head);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t pairs = tile.rows * here;
  const uint32_t last = tile.first_position + tile.rows - 1;
  const size_t q_first = (size_t)tile.first_row * (heads + 2 * kv_heads) + kv_head * group + first_head;

  for (int c = threadIdx.x; c < TILE * CHUNKS; c += TILE_THREADS) {
    uint32_t pair = c / CHUNKS, d = c % CHUNKS * 8;
    bool valid = pair < pairs;
    size_t head = q_first + (valid ? (size_t)(pair / here) * (heads + 2 * kv_heads) + pair % here : 0);
    copy16_async(q_shared + pair * PITCH + d, qkv + head * D + d, valid);
  }
  auto fill = [&](int buffer, uint32_t first_key) {
    for (int c = threadIdx.x; c < KEYS * CHUNKS; c += TILE_THREADS) {
      uint32_t key = c / CHUNKS, d = c % CHUNKS * 8;
      bool valid = first_key + key <= last;
      size_t at = (valid ? pages.at(first_key + key) * D : 0) + d;
      uint32_t to = (buffer * KEYS + key) * PITCH + d;
      copy16_async(k_shared + to, k_pages + at, valid);
      copy16_async(v_shared + to, v_pages + at, valid);
    }
  };
  fill(0, 0);
  copy_commit();

  uint32_t position[2];  /* of this lane's two matrix rows */
#pragma unroll
  for (int half = 0; half < 2; half++) position[half] = tile.first_position + (warp * 16 + lane / 4 + 8 * half) / here;
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, acc[D / 8][4] = {};
  uint32_t q[D / 16][4];
  const float scale = a.scale * 1.4426950408889634f;  /* log2 e */

  const uint32_t runs = last / KEYS + 1;
  for (uint32_t run = 0; run < runs; run++) {
    copy_wait<0>();
    __syncthreads();
    if (run + 1 < runs) fill((run + 1) % 2, (run + 1) * KEYS);
    copy_commit();
    if (run == 0) {
#pragma unroll
      for (int i = 0; i < D / 16; i++)
        load_matrix_x4(q[i], q_shared + (warp * 16 + lane % 16) * PITCH + i * 16 + lane / 16 * 8);
    }
    const T *k_run = k_shared + run % 2 * KEYS * PITCH, *v_run = v_shared + run % 2 * KEYS * PITCH;

    float s[KEYS / 8][4] = {};
    score_run<T, D>(s, q, k_run);
    weigh_run<D>(s, m, l, acc, position, run * KEYS, scale);
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      const uint32_t p[4] = {pack2<T>(s[2 * j][0], s[2 * j][1]), pack2<T>(s[2 * j][2], s[2 * j][3]),
                             pack2<T>(s[2 * j + 1][0], s[2 * j + 1][1]), pack2<T>(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
      for (int i = 0; i < D / 8; i += 2) {
        uint32_t v[4];
        load_matrix_x4_transposed(v, v_run + (j * 16 + lane % 16) * PITCH + i * 8 + lane / 16 * 8);
        mma<T>(acc[i], p, v[0], v[1]);
        mma<T>(acc[i + 1], p, v[2], v[3]);
      }
    }
  }
  copy_wait<0>();

#pragma unroll
  for (int half = 0; half < 2; half++) {
    l[half] += __shfl_xor_sync(0xffffffffu, l[half], 1);
    l[half] += __shfl_xor_sync(0xffffffffu, l[half], 2);
    uint32_t pair = warp * 16 + lane / 4 + 8 * half;
    if (pair >= pairs) continue;
    size_t head = (size_t)(tile.first_row + pair / here) * heads + kv_head * group + first_head + pair % here;
    uint32_t *to = reinterpret_cast<uint32_t *>(static_cast<T *>(a.out) + head * D);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
      to[i * 4 + lane % 4] = pack2<T>(acc[i][2 * half] / l[half], acc[i][2 * half + 1] / l[half]);
  }
}

#define ATTENTION_TILES(SUFFIX, T, D) \
  STRUCT_KERNEL(tg_attention_tiles_##SUFFIX##_d##D, tg_attention_chunks_args, (attend_tile<T, D>), TILE_THREADS)
FOR_HALF_HEADS(ATTENTION_TILES)
