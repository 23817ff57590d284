/* attention_decode.cu: attention (see attention.cuh) of decode steps.
 *
 * tg_attention_decode_* takes q, k and v as the projection leaves them, which it norms and rotates itself (rope.cuh) before
 * they meet: a decode row is the only one of its sequence in the step, so the one key that is not in the pages yet is its
 * own. Its k and v go there too.
 *
 * The keys before it are cut into chunks: of `chunk_keys`, or longer ones where that would make more than `splits`. A block
 * has one chunk of one row for up to HEADS query heads of one kv head, which share what is read. Its warps take tiles of the
 * chunk in turn, and ask for the keys of the next while they weigh the values of this one. Each warp keeps its own running
 * maximum and sum; they meet in the order of the warps, chunks in the order of their positions, in the block that is done
 * last. So a row's bits follow from its position and the bucket alone. A row of one chunk leaves no partial results.
 *
 * Positions, pages, and keys and values of before are known before the wait, which a block's first tiles are asked for
 * before: what wrote them ended before the step began (pdl.cuh). They are read past the first-level cache.
 *
 * Operands of 16 bits go through mma.sync, heads as rows: of the 16 that it has, 8 take a weight's first 8 (f16: 11) bits and
 * 8 the rest, so that weights are not rounded. f32 is multiplied as it is.
 *
 * Bound: memory, 2 D sizeof(T) bytes a key and kv head.
 *
 * Launch: block = DECODE_THREADS, grid = rows of the bucket * groups, with groups = kv_heads * (heads / kv_heads / HEADS rounded
 * up), for first chunks, and as many more as there may be further chunks, or fewer, which then have several.
 */
#include "attention.cuh"
#include "mma.cuh"
#include "rope.cuh"

#ifndef DW
#define DW 4
#define DECODE_KEYS (2048 / D)
#define DECODE_BLOCKS 3
#endif
constexpr int DECODE_WARPS = DW;
constexpr int DECODE_THREADS = DECODE_WARPS * WARP;
constexpr uint32_t MOST_SPLITS = 64;
constexpr uint32_t CHUNK_ALIGN = 32;

/* 16 bytes past the first-level cache; asked for here, and not where they are first used. */
__device__ inline uint4 load16(const void *p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ inline uint32_t word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* A row's keys but its own. */
struct Chunks {
  uint32_t keys;   /* in all: as many as the row's position */
  uint32_t size;   /* of each but the last */
  uint32_t count;  /* at least 1 */

  __device__ inline Chunks(uint32_t position, uint32_t chunk_keys, uint32_t splits) : keys(position) {
    size = max(chunk_keys, ((position + splits - 1) / splits + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN);
    count = max((position + size - 1) / size, 1u);
  }
};

/* ---- one warp's share of a chunk, for all heads of the block ----------------------------------- */

/* Its keys and values come a tile of KEYS at a time, `token` the index in the pool of key lane % KEYS of it. q is in shared
 * memory, [HEADS, D]. Scores are in units of log2. Of lane l, g = l / 4 and t = l % 4. */
template <typename T, int D>
struct Share {
  static constexpr int HEADS = 8, KEYS = DECODE_KEYS, BLOCKS = D == 64 ? DECODE_BLOCKS : 2;
  static constexpr int LINES = KEYS / 8, STEPS = KEYS / 16, PARTS = D / 32, HALVES = D / 64;
  uint4 k[LINES * PARTS];        /* of key 8 line + g, elements 32 part + 8t .. */
  uint4 v[STEPS * 4 * HALVES];   /* of keys 16 step + 2t + 0, 1, 8, 9, elements 64 half + 8g .. */
  uint4 q[PARTS];                /* of head g, as k */
  float highest, total;          /* of head g; this lane's part */
  float sums[8 * HALVES][4];     /* of head g; elements 64 half + 16t + j and .. + 8, twice: the weights' first bits, the rest */

  __device__ inline void load_keys(const T *pages, size_t stride, uint32_t token) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      const T *from = pages + __shfl_sync(0xffffffffu, token, 8 * line + g) * stride + 8 * t;
#pragma unroll
      for (int part = 0; part < PARTS; part++) k[line * PARTS + part] = load16(from + 32 * part);
    }
  }

  __device__ inline void load_values(const T *pages, size_t stride, uint32_t token) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) {
      const int key = i / 4 * 16 + 2 * t + (i % 4 / 2 * 8 + i % 2);
      const T *from = pages + __shfl_sync(0xffffffffu, token, key) * stride + 8 * g;
#pragma unroll
      for (int half = 0; half < HALVES; half++) v[i * HALVES + half] = load16(from + 64 * half);
    }
  }

  __device__ inline void begin(const T *queries) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      q[part] = *reinterpret_cast<const uint4 *>(queries + g * D + 32 * part + 8 * t);
    highest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int j = 0; j < 8 * HALVES; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[j][i] = 0.0f;
  }

  struct Scores {
    float of[LINES][2];  /* of keys 8 line + 2t, + 1 */
  };

  __device__ inline Scores score() const {
    Scores scores;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
      float c[4] = {};
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const uint4 &a = q[part], &b = k[line * PARTS + part];
        mma<T>(c, {a.x, 0, a.y, 0}, b.x, b.y);
        mma<T>(c, {a.z, 0, a.w, 0}, b.z, b.w);
      }
      scores.of[line][0] = c[0], scores.of[line][1] = c[1];
    }
    return scores;
  }

  /* Weighs `there` keys' values. */
  __device__ inline void weigh(Scores &scores, float scale, uint32_t there) {
    const int t = threadIdx.x % 4;
    float top = highest;
#pragma unroll
    for (int line = 0; line < LINES; line++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float &score = scores.of[line][i];
        score = 8 * line + 2 * t + i < there ? score * scale : -INFINITY;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (__any_sync(0xffffffffu, top > highest)) {
      const float shrink = exp2f(highest - top);
      highest = top;
      total *= shrink;
#pragma unroll
      for (int j = 0; j < 8 * HALVES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[j][i] *= shrink;
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float lo = exp2f(scores.of[2 * step + i][0] - top), hi = exp2f(scores.of[2 * step + i][1] - top);
        total += lo + hi;
        const T first_lo = T(lo), first_hi = T(hi);
        a[2 * i] = pack2<T>(lo, hi);
        a[2 * i + 1] = pack2<T>(lo - float(first_lo), hi - float(first_hi));
      }
#pragma unroll
      for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
          const int choice = j % 2 ? 0x7632 : 0x5410;
          const auto value = [&](int i) { return word(v[(step * 4 + i) * HALVES + half], j / 2); };
          mma<T>(sums[8 * half + j], a, __byte_perm(value(0), value(1), choice), __byte_perm(value(2), value(3), choice));
        }
    }
  }

  /* maximum[HEADS], sum[HEADS], weighted[HEADS, D] */
  __device__ inline void end(float *maximum, float *sum, float *weighted) {
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (t == 0) maximum[g] = highest, sum[g] = total;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float *to = weighted + g * D + 64 * half + 16 * t + 8 * i;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          const auto at = [&](int more) { const float(&c)[4] = sums[8 * half + j + more]; return c[i] + c[i + 2]; };
          store4(to + j, make_float4(at(0), at(1), at(2), at(3)));
        }
      }
  }
};

/* A key is 16 bytes in each of LANES lanes. */
template <int D>
struct Share<float, D> {
  static constexpr int HEADS = 4, KEYS = 1024 / D, BLOCKS = 2;
  static constexpr int LANES = D / 4, AT_ONCE = WARP / LANES, SLOTS = KEYS / AT_ONCE;
  float4 k[SLOTS], v[SLOTS];  /* of key AT_ONCE slot + lane / LANES, elements 4 (lane % LANES) .. */
  float4 q[HEADS];
  float highest[HEADS], total[HEADS];
  float4 sums[HEADS];

  __device__ static inline void load(float4 (&to)[SLOTS], const float *pages, size_t stride, uint32_t token) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
      const uint32_t at = __shfl_sync(0xffffffffu, token, AT_ONCE * slot + lane / LANES);
      const uint4 raw = load16(pages + at * stride + lane % LANES * 4);
      to[slot] = make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w));
    }
  }

  __device__ inline void load_keys(const float *pages, size_t stride, uint32_t token) { load(k, pages, stride, token); }

  __device__ inline void load_values(const float *pages, size_t stride, uint32_t token) { load(v, pages, stride, token); }

  __device__ inline void begin(const float *queries) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      q[h] = load4(queries + h * D + threadIdx.x % LANES * 4);
      highest[h] = -INFINITY, total[h] = 0.0f, sums[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  struct Scores {
    float of[SLOTS][HEADS];
  };

  __device__ inline Scores score() const {
    Scores scores;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++)
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float dot = q[h].x * k[slot].x;
        dot = fmaf(q[h].y, k[slot].y, dot), dot = fmaf(q[h].z, k[slot].z, dot), dot = fmaf(q[h].w, k[slot].w, dot);
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
        scores.of[slot][h] = dot;
      }
    return scores;
  }

  __device__ inline void weigh(Scores &scores, float scale, uint32_t there) {
    const int first = threadIdx.x % WARP / LANES;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float top = highest[h];
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot++) {
        float &score = scores.of[slot][h];
        score = AT_ONCE * slot + first < there ? score * scale : -INFINITY;
        top = fmaxf(top, score);
      }
#pragma unroll
      for (int offset = LANES; offset < WARP; offset *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      const float shrink = exp2f(highest[h] - top);
      highest[h] = top, total[h] *= shrink;
      float4 &sum = sums[h];
      sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink;
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot++) {
        const float weight = exp2f(scores.of[slot][h] - top);
        total[h] += weight;
        sum.x = fmaf(weight, v[slot].x, sum.x), sum.y = fmaf(weight, v[slot].y, sum.y);
        sum.z = fmaf(weight, v[slot].z, sum.z), sum.w = fmaf(weight, v[slot].w, sum.w);
      }
    }
  }

  __device__ inline void end(float *maximum, float *sum, float *weighted) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float4 &all = sums[h];
#pragma unroll
      for (int offset = LANES; offset < WARP; offset *= 2) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], offset);
        all.x += __shfl_xor_sync(0xffffffffu, all.x, offset), all.y += __shfl_xor_sync(0xffffffffu, all.y, offset);
        all.z += __shfl_xor_sync(0xffffffffu, all.z, offset), all.w += __shfl_xor_sync(0xffffffffu, all.w, offset);
      }
      if (lane == 0) maximum[h] = highest[h], sum[h] = total[h];
      if (lane < LANES) store4(weighted + h * D + 4 * lane, all);
    }
  }
};

/* ---- a block ------------------------------------------------------------------------------------- */

/* A chunk of a row, for the heads of a group. */
struct Piece {
  uint32_t row, group, chunk;
};

template <typename T, int D>
struct alignas(16) DecodeBlock {
  static constexpr int HEADS = Share<T, D>::HEADS, OWN = DECODE_WARPS;
  T q[HEADS][D];
  T new_k[D], new_v[D];  /* what the pages do not have yet */
  /* of each warp, and of the row's own key */
  float maximum[DECODE_WARPS + 1][HEADS], total[DECODE_WARPS + 1][HEADS];
  union {
    float partial[DECODE_WARPS][HEADS][D];
    struct {
      float maximum[MOST_SPLITS * HEADS], total[MOST_SPLITS * HEADS];
    } of_chunks;
  };
  Piece piece;
  uint32_t chunks;
  bool last;
};

/* The `index`-th piece that is no row's first chunk, in the order of rows, chunks and groups, if there are so many. By every
 * warp for itself. */
__device__ inline bool find_piece(Piece &piece, uint32_t index, const tg_row *rows, uint32_t count, uint32_t groups,
                                  uint32_t chunk_keys, uint32_t splits) {
  const uint32_t lane = threadIdx.x % WARP;
  uint32_t left = index / groups;
  for (uint32_t base = 0; base < count; base += WARP) {
    const uint32_t r = base + lane;
    const uint32_t more = r < count ? Chunks(__ldcg(&rows[r].position), chunk_keys, splits).count - 1 : 0;
    uint32_t until = more;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
      const uint32_t before = __shfl_up_sync(0xffffffffu, until, offset);
      if (lane >= offset) until += before;
    }
    const uint32_t here = __ballot_sync(0xffffffffu, until > left);
    if (here) {
      const int from = __ffs(here) - 1;
      piece.row = base + from;
      piece.chunk = 1 + left - __shfl_sync(0xffffffffu, until - more, from);
      piece.group = index % groups;
      return true;
    }
    left -= __shfl_sync(0xffffffffu, until, WARP - 1);
  }
  return false;
}

/* Partial results: of [rows, splits, heads] each D sums, the maximum and the total. */
template <int D>
struct Partials {
  float *values;
  uint32_t heads, splits;

  __device__ inline float *at(uint32_t row, uint32_t chunk, uint32_t head) const {
    return values + (((size_t)row * splits + chunk) * heads + head) * (D + 2);
  }
};

/* All of the block, once its warps have put their results there: the row's, or this chunk's and perhaps then the row's. */
template <typename T, int D>
__device__ inline void finish(DecodeBlock<T, D> &block, T *out, float *partials, uint32_t *done, uint32_t heads,
                              uint32_t kv_heads, uint32_t splits, bool first) {
  constexpr int HEADS = Share<T, D>::HEADS, OWN = DecodeBlock<T, D>::OWN;
  const Piece piece = block.piece;
  const uint32_t count = block.chunks;
  const uint32_t group_heads = heads / kv_heads, parts = (group_heads + HEADS - 1) / HEADS, groups = kv_heads * parts;
  const uint32_t first_of_group = piece.group % parts * HEADS, here = min((uint32_t)HEADS, group_heads - first_of_group);
  const uint32_t first_head = piece.group / parts * group_heads + first_of_group;
  const Partials<D> to{partials, heads, splits};
  for (uint32_t i = threadIdx.x; i < here * D; i += DECODE_THREADS) {
    const uint32_t h = i / D, d = i % D;
    const float own = first ? block.maximum[OWN][h] : -INFINITY;
    float highest = own;
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) highest = fmaxf(highest, block.maximum[w][h]);  /* some key is there */
    const float own_part = exp2f(own - highest);
    float above = first ? own_part * float(block.new_v[d]) : 0.0f, below = own_part;
#pragma unroll
    for (int w = 0; w < DECODE_WARPS; w++) {
      const float part = exp2f(block.maximum[w][h] - highest);  /* 0 for a warp without keys */
      above = fmaf(part, block.partial[w][h][d], above);
      below = fmaf(part, block.total[w][h], below);
    }
    if (count == 1) {
      out[((size_t)piece.row * heads + first_head) * D + i] = T(above / below);
    } else {
      float *at = to.at(piece.row, piece.chunk, first_head + h);
      at[d] = above;
      if (d == 0) at[D] = highest, at[D + 1] = below;
    }
  }
  if (count > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t *arrived = done + (size_t)piece.row * groups + piece.group;
      block.last = atomicAdd(arrived, 1) == count - 1;
      if (block.last) *arrived = 0;
      __threadfence();
    }
    __syncthreads();
    if (block.last) {
      auto &of = block.of_chunks;
      for (uint32_t i = threadIdx.x; i < count * here; i += DECODE_THREADS) {
        const float *at = to.at(piece.row, i / here, first_head + i % here) + D;
        of.maximum[i] = __ldcg(at), of.total[i] = __ldcg(at + 1);
      }
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < here * D; i += DECODE_THREADS) {
        const uint32_t h = i / D, d = i % D;
        float highest = of.maximum[h];
        for (uint32_t c = 1; c < count; c++) highest = fmaxf(highest, of.maximum[c * here + h]);
        float above = 0.0f, below = 0.0f;
#pragma unroll 8
        for (uint32_t c = 0; c < count; c++) {
          const float part = exp2f(of.maximum[c * here + h] - highest);
          above = fmaf(part, __ldcg(to.at(piece.row, c, first_head + h) + d), above);
          below = fmaf(part, of.total[c * here + h], below);
        }
        out[((size_t)piece.row * heads + first_head) * D + i] = T(above / below);
      }
    }
  }
}

/* out[R, heads D], qkv[R, (heads + 2 kv_heads) D] as it was projected, q_weight[D], k_weight[D]; done[R, groups], 0 before and
 * after. */
template <typename T, int D>
__device__ inline void attend_decode(T *out, const T *qkv, T *k_pages, T *v_pages, const float *q_weight, const float *k_weight,
                                     const float *inverse_frequencies, const tg_state *state, const tg_step *step,
                                     float *partials, uint32_t *done, uint32_t heads, uint32_t kv_heads, uint32_t bucket,
                                     uint32_t chunk_keys, uint32_t splits, float scale, float eps) {
  using Warp = Share<T, D>;
  constexpr int PER_LANE = D / WARP, HEADS = Warp::HEADS, KEYS = Warp::KEYS, OWN = DecodeBlock<T, D>::OWN;
  constexpr int PASSES = HEADS / DECODE_WARPS + 1;
  __shared__ DecodeBlock<T, D> block;
  let_next_kernel_start();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const uint32_t group_heads = heads / kv_heads, parts = (group_heads + HEADS - 1) / HEADS, groups = kv_heads * parts;
  const uint32_t firsts = bucket * groups;
  const bool first = blockIdx.x < firsts;
  const size_t stride = (size_t)kv_heads * D;
  bool waited = false;
#pragma unroll 1
  for (uint32_t index = blockIdx.x;; index += gridDim.x - firsts) {
    const uint32_t rows = __ldcg(&step->rows);
    const tg_row *row_table = table<tg_row>(state, __ldcg(&step->row_table));
    const uint32_t *page_table = table<uint32_t>(state, state->page_table);
    const uint32_t page_tokens = state->config.page_tokens, max_pages = state->max_pages;
    Piece piece = {index / groups, index % groups, 0};
    bool there = piece.row < rows;
    if (!first) there = find_piece(piece, index - firsts, row_table, rows, groups, chunk_keys, splits);
    if (!first && !there) return;
    const uint32_t kv_head = piece.group / parts, first_of_group = piece.group % parts * HEADS;
    const uint32_t here = min((uint32_t)HEADS, group_heads - first_of_group), first_head = kv_head * group_heads + first_of_group;
    const tg_row *row = row_table + (there ? piece.row : 0);
    const uint32_t slot = __ldcg(&row->slot), position = __ldcg(&row->position);
    const Chunks chunks(there ? position : 0, chunk_keys, splits);
    if (threadIdx.x == 0) block.piece = piece, block.chunks = chunks.count;
    const uint32_t end = min((piece.chunk + 1) * chunks.size, chunks.keys);
    const uint32_t *pages = page_table + (size_t)slot * max_pages;
    const auto token_at = [&](uint32_t key) { return __ldcg(pages + key / page_tokens) * page_tokens + key % page_tokens; };
    const T *keys = k_pages + kv_head * D, *values = v_pages + kv_head * D;
    uint32_t tile = piece.chunk * chunks.size + warp * KEYS;
    uint32_t token = 0, next_token = 0;
    if (tile < end) token = token_at(min(tile + lane % KEYS, end - 1));
    if (tile + DECODE_WARPS * KEYS < end) next_token = token_at(min(tile + DECODE_WARPS * KEYS + lane % KEYS, end - 1));
    const HeadRotation<D> of_q(q_weight, inverse_frequencies, position, lane);
    float k_weights[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) k_weights[i] = k_weight[lane + i * WARP];
    Warp share;
    if (tile < end) {
      share.load_keys(keys, stride, token);
      share.load_values(values, stride, token);
    }
    for (uint32_t i = here * D + threadIdx.x; i < HEADS * D; i += DECODE_THREADS) block.q[i / D][i % D] = T(0.0f);
    if (!waited) wait_for_earlier_kernels();
    waited = true;
    if (!there) return;

    /* The heads of q are the first jobs, the new key the last. */
    const T *from = qkv + (size_t)piece.row * (heads + 2 * kv_heads) * D + lane;
    const T *from_k = from + (size_t)(heads + kv_head) * D, *from_v = from_k + (size_t)kv_heads * D;
    const uint32_t jobs = here + (first ? 1 : 0);
    float x[PASSES][PER_LANE];
    T v[PER_LANE];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      const uint32_t job = warp + pass * DECODE_WARPS;
      const T *job_from = job < here ? from + (size_t)(first_head + job) * D : from_k;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) {
        x[pass][i] = job < jobs ? float(__ldcg(job_from + i * WARP)) : 0.0f;
        if (job == here && first) v[i] = __ldcg(from_v + i * WARP);
      }
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      const uint32_t job = warp + pass * DECODE_WARPS;
      if (pass * DECODE_WARPS >= jobs) break;
      HeadRotation<D> rotation = of_q;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        if (job >= here) rotation.weight[i] = k_weights[i];
      rotation.apply(x[pass], eps);
      T *to = job < here ? block.q[job] : block.new_k;
      if (job >= jobs) continue;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) to[lane + i * WARP] = T(x[pass][i]);
      if (job < here) continue;
      const size_t at = (size_t)token_at(position) * stride + kv_head * D + lane;
#pragma unroll
      for (int i = 0; i < PER_LANE; i++) {
        block.new_v[lane + i * WARP] = v[i];
        if (first_of_group > 0) continue;  /* one block of a kv head is enough */
        k_pages[at + i * WARP] = T(x[pass][i]);
        v_pages[at + i * WARP] = v[i];
      }
    }
    __syncthreads();

    const float log2_scale = scale * 1.44269504088896f;
    if (first) {
      for (uint32_t h = warp; h < here; h += DECODE_WARPS) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
          dot = fmaf(float(block.q[h][lane + i * WARP]), float(block.new_k[lane + i * WARP]), dot);
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
        if (lane == 0) block.maximum[OWN][h] = dot * log2_scale, block.total[OWN][h] = 1.0f;
      }
    }
    share.begin(block.q[0]);
#pragma unroll 1
    for (; tile < end; tile += DECODE_WARPS * KEYS) {
      const bool more = tile + DECODE_WARPS * KEYS < end;
      auto scores = share.score();
      if (more) share.load_keys(keys, stride, next_token);
      share.weigh(scores, log2_scale, end - tile);
      if (!more) break;
      share.load_values(values, stride, next_token);
      next_token = token_at(min(tile + 2 * DECODE_WARPS * KEYS + lane % KEYS, end - 1));
    }
    share.end(block.maximum[warp], block.total[warp], block.partial[warp][0]);
    __syncthreads();

    finish<T, D>(block, out, partials, done, heads, kv_heads, splits, first);
    if (first) return;
    __syncthreads(); /* the block's arrays are free again */
  }
}

#define ATTENTION_DECODE(SUFFIX, T, D)                                                                             \
  extern "C" __global__ void __launch_bounds__(DECODE_THREADS, (Share<T, D>::BLOCKS)) tg_attention_decode_##SUFFIX##_d##D( \
      T *out, const T *qkv, T *k_pages, T *v_pages, const float *q_weight, const float *k_weight,                  \
      const float *inverse_frequencies, const tg_state *state, const tg_step *step, float *partials,               \
      uint32_t *done, uint32_t heads, uint32_t kv_heads, uint32_t bucket, uint32_t chunk_keys, uint32_t splits,    \
      float scale, float eps) {                                                                                    \
    attend_decode<T, D>(out, qkv, k_pages, v_pages, q_weight, k_weight, inverse_frequencies, state, step,          \
                        partials, done, heads, kv_heads, bucket, chunk_keys, splits, scale, eps);                  \
  }

ATTENTION_DECODE(bf16, __nv_bfloat16, 64)
ATTENTION_DECODE(bf16, __nv_bfloat16, 128)
ATTENTION_DECODE(f16, __half, 64)
ATTENTION_DECODE(f16, __half, 128)
ATTENTION_DECODE(f32, float, 64)
ATTENTION_DECODE(f32, float, 128)
