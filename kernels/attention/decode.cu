// build: types
/* decode.cu: attention (see attention/attention.cuh) of decode steps.
 *
 * tg_attention_decode_* norms and rotates q and k itself (attention/rope.cuh): a decode row is the only one of its sequence in the step,
 * so the one key that is not in the pages yet is its own. Its k and v are stored there too.
 *
 * The keys before it are cut into chunks of about the same size: of up to `chunk_keys`, or more where that would make more than
 * `splits`. A block has one chunk of one row at a time, for up to HEADS query heads of one kv head.
 *
 *   warp             does                                              waits on                            signals
 *   each             loads its tiles of the chunk, in turn with the    grid dependency, behind the loads   __syncthreads
 *                    others; keeps its own running maximum and sum     of its first tile
 *   all of the block norm and rotate; merge the warps in their order   __syncthreads                       `done` of the row
 *   of the last      merge the row's chunks in the order of their      `done` of all chunks                none
 *   block            positions
 *
 * Rows 2i and 2i + 1, partners, may have begun with the same prefix, so that their tables name the same pages (sched/prefix.h). Where
 * enough of a chunk's keys lie in such pages, a block takes that chunk of both rows: of 16 bits and with up to HEADS / 2 query heads a kv head, a
 * tile has room for the second row's heads, which would be zeros. Each key that both have is loaded and multiplied once for both; what one
 * has alone, before and behind these, goes by itself. Chunks, a warp's tiles and all sums of a row are those that it has alone.
 *
 * So a row's bits follow from its position and the bucket alone. A row of one chunk needs no partial results. Positions, pages, and keys
 * and values from before the step are known before the wait (common/pdl.cuh), so a warp's first tile is loaded before it, past the
 * first-level cache.
 *
 * Operands of 16 bits go through mma.sync, a weight as the sum of two of them, so that weights keep 16 bits (f16: 22) of mantissa. f32 is
 * multiplied as it is.
 *
 * Bound: memory, 2 D sizeof(T) bytes a key and kv head; of rows that share their pages the second-level cache, 7 TB/s on an H200.
 * Measured on an H200 in bf16, 8 kv heads of D = 64, in the model, rows x keys (floor; how: profiles/README.md): 6.9 us (0.2) at 1 x 450,
 * 56 (45) at 1 x 100,000, 9.3 (2.9) at 32 x 200, 11.2 (5.7) at 128 x 100, 13.8 (4.6) at 256 x 40. On an H100 194 (171) at 29 x 9,000.
 * 125 rows that share 4,000 keys: 97 us, and 153 where each loads them.
 *
 * Launch: block = 32 WARPS (tg_attention_decode_wN_*): as many as leave room on an H200 for all first chunks at once, or 1. grid = rows of
 * the bucket * groups for first chunks, with groups = kv_heads * (heads / kv_heads / HEADS, rounded up), and as many more as there may be
 * further chunks, or fewer. All blocks then take further chunks in turn, also those that had a first one where `firsts_go_on`: where all
 * have room at once, and the GPU would else have nothing beside the few that are more.
 */
#include "attention/attention.cuh"
#include "attention/chunks.cuh"
#include "attention/warp_keys.cuh"
#include "attention/rope.cuh"
#include "common/launch.cuh"

constexpr uint32_t MOST_SPLITS = TG_DECODE_SPLITS;
constexpr uint32_t LEAST_SHARED = 16; /* tiles of each warp from which on a block takes two rows: the second costs it some 2 us */
constexpr uint32_t JOIN_AT_ONCE = 16; /* chunks whose sums are loaded before the first is added */
constexpr float LOG2_E = 1.44269504088896f;

/* The page of a position below 2^24, without a division each. */
struct PageSize {
  uint32_t tokens;      /* at most 256 */
  uint32_t reciprocal;  /* 2^32 / tokens, rounded up; of one token a page, 0 */

  __device__ inline PageSize(uint32_t tokens_) : tokens(tokens_), reciprocal(0xffffffffu / tokens_ + 1) {}

  __device__ inline uint32_t of(uint32_t position) const { return tokens == 1 ? position : __umulhi(position, reciprocal); }
};

/* Where the keys of a piece lie. Pages that are asked for are not waited for before they are used. */
struct Places {
  const uint32_t *pages;  /* of its row */
  PageSize page;
  uint32_t kv_heads, end;  /* behind the piece's last key */

  __device__ inline uint32_t page_at(uint32_t key) const { return __ldcg(pages + page.of(key)); }

  __device__ inline uint32_t token_in(uint32_t of_page, uint32_t key) const {
    return key + (of_page * kv_heads - page.of(key)) * page.tokens;
  }

  template <int KEYS>
  __device__ inline uint32_t key_of(uint32_t tile) const { return min(tile + threadIdx.x % WARP % KEYS, end - 1); }
};

/* Keys `from` .. `until` of a piece and of the same chunk of its partner lie in the same pages. */
struct Common {
  uint32_t from, until;

  /* Whether there are at least so many, in whole tiles of KEYS. The whole warp looks, which it need not for short rows. */
  template <int KEYS>
  __device__ inline bool find(const Piece &piece, const Chunks &of_partner, uint32_t least, const Places &places,
                              const uint32_t *pages_of_partner) {
    from = piece.chunk * max(piece.chunks.size, of_partner.size);
    until = min(places.end, of_partner.end(piece.chunk));
    if (until < from + least) return false;
    const uint32_t behind = places.page.of(until - 1) + 1;
    uint32_t index = places.page.of(from) + threadIdx.x % WARP, others;
#pragma unroll 1
    for (;; index += WARP) {
      const bool same = index < behind && __ldcg(places.pages + index) == __ldcg(pages_of_partner + index);
      others = __ballot_sync(0xffffffffu, !same);
      if (others) break;
    }
    until = min(until, (index - threadIdx.x % WARP + __ffs(others) - 1) * places.page.tokens) / KEYS * KEYS;
    return until >= from + least;
  }
};

/* The query heads of a block: `here` heads of one kv head. */
template <int HEADS>
struct Group {
  uint32_t kv_head, first_of_kv_head, first_head, here;

  __device__ static inline uint32_t parts(uint32_t heads, uint32_t kv_heads) { return (heads / kv_heads + HEADS - 1) / HEADS; }

  __device__ inline Group(uint32_t group, uint32_t heads, uint32_t kv_heads) {
    const uint32_t each = heads / kv_heads, parts_each = parts(heads, kv_heads);
    kv_head = group / parts_each;
    first_of_kv_head = group % parts_each * HEADS;
    first_head = kv_head * each + first_of_kv_head;
    here = min((uint32_t)HEADS, each - first_of_kv_head);
  }
};

template <typename T, int D, int WARPS>
struct alignas(16) DecodeBlock {
  static constexpr int HEADS = WarpKeys<T, D>::HEADS, ROWS = WarpKeys<T, D>::ROWS, EACH = HEADS / ROWS;
  static constexpr int OWN = WARPS, THREADS = WARPS * WARP;
  T q[HEADS][D];                     /* of a second row from EACH on, as all else of heads */
  T new_k[ROWS][D], new_v[ROWS][D];  /* what the pages do not have yet */
  float q_weight[D], k_weight[D];
  /* of each warp, and last of the row's own key */
  float maximum[WARPS + 1][HEADS], total[WARPS + 1][HEADS];
  float partial[WARPS][HEADS][D];
  Piece piece[ROWS];
  Common common;
  bool last;
};

/* Partial results of chunks, and how many of these are done. */
struct Partials {
  float *values;  /* [rows, splits, heads, D + 2]: D sums, their maximum and total */
  uint32_t *done; /* [rows, groups], 0 before and after */
  uint32_t splits;

  __device__ inline float *at(uint32_t row, uint32_t chunk, uint32_t heads, uint32_t head, uint32_t values_each) const {
    return values + (((size_t)row * splits + chunk) * heads + head) * values_each;
  }
};

/* Computes out[here D] of a row whose chunks are all done: a warp has an element a lane, and of its head a chunk a lane. */
template <typename T, int D, int WARPS>
__device__ inline void join_chunks(const DecodeBlock<T, D, WARPS> &block, uint32_t which, T *out, const Partials &partials, uint32_t heads,
                                   uint32_t first_head, uint32_t here) {
  static_assert(MOST_SPLITS == WARP, "a lane a chunk");
  const uint32_t row = block.piece[which].row, count = block.piece[which].chunks.count, lane = threadIdx.x % WARP, stride = heads * (D + 2);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < here * D; i += block.THREADS) {
    const float *of_head = partials.at(row, 0, heads, first_head + i / D, D + 2), *element = of_head + i % D;
    const float2 none = make_float2(-INFINITY, 0.0f);
    const float2 own = lane < count ? __ldcg(reinterpret_cast<const float2 *>(of_head + lane * stride + D)) : none;
    float values[JOIN_AT_ONCE], above = 0.0f;
    auto load = [&](uint32_t first) {
#pragma unroll
      for (uint32_t c = 0; c < JOIN_AT_ONCE; c++) values[c] = first + c < count ? __ldcg(element + (first + c) * stride) : 0.0f;
    };
    load(0);
    const float part = exp2f(own.x - highest_over_lanes(own.x));  /* 0 where there is no chunk */
    const float below = sum_over_lanes(part * own.y);
#pragma unroll 1
    for (uint32_t first = 0;; load(first)) {
#pragma unroll
      for (uint32_t c = 0; c < JOIN_AT_ONCE; c++) above = fmaf(__shfl_sync(0xffffffffu, part, first + c), values[c], above);
      first += JOIN_AT_ONCE;
      if (first >= count) break;
    }
    out[i] = T(above * inverse(below));
  }
}

/* All of the block, once its warps' results are there, computes out[R, heads D] of its row `which`, or this chunk's part of it. The last
 * block of the row then merges the parts. */
template <typename T, int D, int WARPS>
__device__ inline void merge_warps(DecodeBlock<T, D, WARPS> &block, uint32_t which, T *out, const Partials &partials, uint32_t heads,
                              uint32_t kv_heads, bool first) {
  constexpr int OWN = block.OWN;
  const Piece piece = block.piece[which];
  const uint32_t count = piece.chunks.count;
  const Group<block.HEADS> group(piece.group, heads, kv_heads);
  T *of_row = out + ((size_t)piece.row * heads + group.first_head) * D;
#pragma unroll 1
  for (uint32_t i = 4 * threadIdx.x; i < group.here * D; i += 4 * block.THREADS) {
    const uint32_t h = i / D, d = i % D, at_h = which * block.EACH + h;
    const float own = first ? block.maximum[OWN][at_h] : -INFINITY;
    float highest = own;
#pragma unroll
    for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, block.maximum[w][at_h]);  /* some key is there */
    float below = exp2f(own - highest);
    float4 above = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first) add_weighed(above, below, load4(block.new_v[which] + d));
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float part = exp2f(block.maximum[w][at_h] - highest);  /* 0 for a warp without keys */
      add_weighed(above, part, load4(block.partial[w][at_h] + d));
      below = fmaf(part, block.total[w][at_h], below);
    }
    if (count == 1) {
      const float scale = inverse(below);
      store4(of_row + i, make_float4(above.x * scale, above.y * scale, above.z * scale, above.w * scale));
    } else {
      float2 *at = reinterpret_cast<float2 *>(partials.at(piece.row, piece.chunk, heads, group.first_head + h, D + 2));
      at[d / 2] = make_float2(above.x, above.y), at[d / 2 + 1] = make_float2(above.z, above.w);
      if (d == 0) at[D / 2] = make_float2(highest, below);
    }
  }
  if (count == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t *done = partials.done + (size_t)piece.row * kv_heads * group.parts(heads, kv_heads) + piece.group;
    block.last = count_and_know(done) == count - 1;  /* what all of the block has written before, and will read */
    if (block.last) *done = 0;
  }
  __syncthreads();
  if (block.last) join_chunks(block, which, of_row, partials, heads, group.first_head, group.here);
}

/* Stores q of these heads of row `which`, and in a first chunk its k and v, in shared memory, and k and v also in the pages, at `to_k` and
 * `to_v`. */
template <typename T, int D, int WARPS>
__device__ inline void norm_and_rotate(DecodeBlock<T, D, WARPS> &block, uint32_t which, const HeadRotation<D> &rotation, const T *q,
                                       const T *k, const T *v, T *to_k, T *to_v, uint32_t here, bool first, float eps) {
  constexpr int AT_ONCE = WARPS * WARP_HEADS, PASSES = (block.HEADS + 2 + AT_ONCE - 1) / AT_ONCE;
  const uint32_t jobs = here + (first ? 2 : 0);  /* key and value are the last */
  RawHeadPart<T, D> raw[PASSES];
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {  /* a lane with nothing to do does the last job again */
    const uint32_t job = min(threadIdx.x / HEAD_LANES + pass * AT_ONCE, jobs - 1);
    raw[pass].load(job < here ? q + (size_t)job * D : job == here ? k : v);
  }
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
    const uint32_t job = threadIdx.x / HEAD_LANES + pass * AT_ONCE;
    if (pass * AT_ONCE >= jobs) break;
    HeadPart<D> head = raw[pass].value(), weight;
    weight.load(job < here ? block.q_weight : block.k_weight);
    rotation.apply(head, weight, eps);
    if (job > here) head = raw[pass].value();
    if (job >= jobs) continue;
    store_head(job < here ? block.q[which * block.EACH + job] : job == here ? block.new_k[which] : block.new_v[which], head);
    if (job >= here && to_k) store_head(job == here ? to_k : to_v, head);
  }
}

/* The scores of the own key of row `which`, in units of log2. */
template <typename T, int D, int WARPS>
__device__ inline void score_own(DecodeBlock<T, D, WARPS> &block, uint32_t which, uint32_t here, float scale) {
  constexpr int AT_ONCE = WARPS * WARP_HEADS, PASSES = (block.HEADS + AT_ONCE - 1) / AT_ONCE;
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
    const uint32_t h = threadIdx.x / HEAD_LANES + pass * AT_ONCE;
    if (pass * AT_ONCE >= here) break;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < D / HEAD_LANES / 4; i++) {
      const uint32_t d = threadIdx.x % HEAD_LANES * (D / HEAD_LANES) + 4 * i;
      const float4 q = load4(block.q[min(which * block.EACH + h, block.HEADS - 1)] + d), k = load4(block.new_k[which] + d);
      dot = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, dot))));
    }
    dot = sum_over_lanes<HEAD_LANES>(dot);
    const uint32_t at = which * block.EACH + h;
    if (threadIdx.x % HEAD_LANES == 0 && h < here) block.maximum[block.OWN][at] = dot * scale, block.total[block.OWN][at] = 1.0f;
  }
}

/* Norm weights come first: loads to registers would stand behind those that wait for rows and pages. */
template <class Block>
__device__ inline void copy_norm_weights(Block &block, const float *q_weight, const float *k_weight) {
  constexpr uint32_t FOURS = sizeof(block.q_weight) / sizeof(float4);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < 2 * FOURS; i += block.THREADS) {
    const uint32_t at = i % FOURS * 4;
    copy16_async(i < FOURS ? block.q_weight + at : block.k_weight + at, i < FOURS ? q_weight + at : k_weight + at, true);
  }
  copy_commit();
}

/* A warp's tiles of keys, STEP apart, from `tile` to the end of `places`. Where loads go ahead the first one's are on their way, and the
 * next one's page is `of_next_page`. */
template <uint32_t STEP, class Keys, typename T>
__device__ inline void attend_keys(Keys &keys, uint32_t tile, uint32_t of_next_page, T *k, T *v, float log2_scale, const Places &places) {
  const auto page_of = [&](uint32_t of) { return places.page_at(places.key_of<Keys::KEYS>(of)); };
  const auto token_of = [&](uint32_t of_page, uint32_t of) { return places.token_in(of_page, places.key_of<Keys::KEYS>(of)); };
#pragma unroll 1
  for (; tile < places.end; tile += STEP) {
    const bool more = LOADS_AHEAD && tile + STEP < places.end;
    uint32_t token = 0;
    if (!LOADS_AHEAD) {
      token = token_of(page_of(tile), tile);
      keys.load_keys(k, token);
    }
    auto scores = keys.score();
    if (!LOADS_AHEAD) keys.load_values(v, token);
    if (more) {
      token = token_of(of_next_page, tile + STEP);
      keys.load_keys(k, token);
    }
    keys.weigh(scores, log2_scale, places.end - tile);
    if (!more) continue;
    keys.load_values(v, token);
    of_next_page = page_of(tile + 2 * STEP);
  }
}

/* The first of a warp's tiles, STEP apart, that is not before `from`. */
template <uint32_t STEP>
__device__ inline uint32_t tile_from(uint32_t tile, uint32_t from) {
  return from <= tile ? tile : tile + (from - tile + STEP - 1) / STEP * STEP;
}

/* The tiles of row `which` of two, from `tile` to the end of `places`. The other row's sums stay as they are. */
template <uint32_t STEP, class Keys, typename T>
__device__ inline void attend_alone(Keys &keys, uint32_t which, uint32_t tile, T *k, T *v, float log2_scale, const Places &places) {
#pragma unroll 1
  for (; tile < places.end; tile += STEP) {
    const uint32_t key = places.key_of<Keys::KEYS>(tile), token = places.token_in(places.page_at(key), key);
    keys.load_keys(k, token);
    keys.load_values(v, token);
    auto scores = keys.score();
    keys.template weigh<true>(scores, log2_scale, places.end - tile, which);
  }
}

/* Parts of a pair's keys, in their order: each row's before those in common, these, and each row's behind them. */
constexpr uint32_t IN_COMMON = 2, PARTS = 5;
__device__ inline uint32_t row_of_part(uint32_t part) { return part == 1 || part == 4; }

/* The warp that has the same tiles of row `which` of a pair where that is by itself: its chunk may begin elsewhere. */
template <typename T, int D, int WARPS>
__device__ inline uint32_t warp_alone(const DecodeBlock<T, D, WARPS> &block, uint32_t warp, uint32_t which) {
  const uint32_t apart = block.piece[0].chunks.size - block.piece[which].chunks.size;
  return (warp + block.piece[0].chunk * apart / WarpKeys<T, D>::KEYS) % WARPS;
}

template <typename T, int D, int WARPS>
__device__ inline void attend_decode(const tg_attention_decode_args &a, uint32_t heads, uint32_t kv_heads, uint32_t bucket,
                                     uint32_t chunk_keys, uint32_t splits) {
  constexpr int HEADS = WarpKeys<T, D>::HEADS, KEYS = WarpKeys<T, D>::KEYS;
  constexpr uint32_t STEP = WARPS * KEYS;
  constexpr bool KEYS_SHARED = WarpKeys<T, D>::ROWS == 2;
  __shared__ DecodeBlock<T, D, WARPS> block;
  let_next_kernel_start();
  const int warp = of_warp(threadIdx.x / WARP);
  const uint32_t groups = kv_heads * Group<HEADS>::parts(heads, kv_heads), firsts = bucket * groups;
  T *k_pages = static_cast<T *>(a.k_pages), *v_pages = static_cast<T *>(a.v_pages);
  const tg_state *state = a.state;
  const Partials partials{a.partials, a.done, splits};
  const T *qkv = static_cast<const T *>(a.qkv);
  T *out = static_cast<T *>(a.out);
  const tg_step *step = a.step;
  const float scale = a.scale, eps = a.eps;
  const float *inverse_frequencies = a.inverse_frequencies;
  const uint32_t stride = a.firsts_go_on ? gridDim.x : gridDim.x - firsts;
  uint32_t to_find = 0;
  bool waited = false;
  copy_norm_weights(block, a.q_weight, a.k_weight);
#pragma unroll 1
  for (uint32_t index = blockIdx.x;; index += stride) {
    const bool first = index < firsts;
    const uint32_t rows = __ldcg(&step->rows);
    const tg_row *row_table = table<tg_row>(state, __ldcg(&step->row_table));
    /* loaded with those, not once the row is known */
    const PageSize page(state->config.page_tokens);
    const uint32_t *page_table = table<uint32_t>(state, __ldcg(&state->page_table));
    const uint32_t max_pages = __ldcg(&state->max_pages);
    Piece piece = {index / groups, index % groups, 0};
    bool there = piece.row < rows;
    if (first) {
      const tg_row *row = row_table + (there ? piece.row : 0);
      piece.slot = __ldcg(&row->slot);
      const tg_row *partner = row_table + partner_of(piece.row);
      if (KEYS_SHARED && partner_of(piece.row) < rows)
        piece.partner_slot = __ldcg(&partner->slot), piece.partner_position = __ldcg(&partner->position);
      piece.chunks = Chunks::of(there ? __ldcg(&row->position) : 0, chunk_keys, splits);
    } else {
      there = find_piece(piece, index - firsts, row_table, rows, groups, chunk_keys, splits);
    }
    if (!first && !there) {
      copy_wait<0>();  /* no block ends while its copies are on their way */
      return;
    }
    const Group<HEADS> group(piece.group, heads, kv_heads);
    const Chunks chunks = piece.chunks;
    const uint32_t position = chunks.keys;
    if (threadIdx.x == 0) block.piece[0] = piece;
    const uint32_t end = of_warp(chunks.end(piece.chunk));
    const Places places{page_table + (size_t)piece.slot * max_pages, page, kv_heads, end};
    const auto page_of = [&](uint32_t tile) { return places.page_at(places.key_of<KEYS>(tile)); };
    const size_t head_at = (size_t)group.kv_head * page.tokens * D;

    uint32_t tile = of_warp(piece.chunk * chunks.size + warp * KEYS);
    const uint32_t of_page = LOADS_AHEAD && tile < end ? page_of(tile) : 0;
    const uint32_t of_next_page = LOADS_AHEAD && tile + STEP < end ? page_of(tile + STEP) : 0;
    const bool stores_own = first && there && group.first_of_kv_head == 0;  /* one block of a kv head is enough */
    const uint32_t of_own_page = stores_own ? places.page_at(position) : 0;
    bool shares = false;
    if constexpr (KEYS_SHARED)
      if (min(position, piece.partner_position) >= LEAST_SHARED * STEP && 2 * group.here <= HEADS) {
        const uint32_t *pages_of_partner = page_table + (size_t)piece.partner_slot * max_pages;
        if (__ldcg(places.pages) == __ldcg(pages_of_partner)) {  /* who shares anything shares the beginning */
          const Chunks of_partner = Chunks::of(piece.partner_position, chunk_keys, splits);
          Common common;
          shares = common.find<KEYS>(piece, of_partner, LEAST_SHARED * STEP, places, pages_of_partner);
          if (shares && threadIdx.x == 0)
            block.piece[1] = {partner_of(piece.row), piece.group, piece.chunk, piece.partner_slot, of_partner}, block.common = common;
        }
      }
    const bool pair = KEYS_SHARED && of_warp(shares);
    /* One of the two rows' blocks takes their even chunks, the other one the odd ones. */
    if (pair && (piece.row + piece.chunk) % 2) there = false;
    const HeadRotation<D> rotation(inverse_frequencies, position);
    WarpKeys<T, D> keys;
    if (LOADS_AHEAD && tile < end && !pair) {
      const uint32_t token = places.token_in(of_page, places.key_of<KEYS>(tile));
      keys.load_keys(k_pages + head_at, token);
      keys.load_values(v_pages + head_at, token);
    }
#pragma unroll 1
    for (uint32_t i = group.here * (D / 4) + threadIdx.x; i < HEADS * (D / 4); i += block.THREADS)
      store4(block.q[0] + 4 * i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    if (!waited) {
      /* A step of short rows runs as few instructions as it can: each is fetched anew. */
      if (!first || (a.firsts_go_on && splits > 1 && any_further(row_table, rows, chunk_keys)))
        to_find = pieces_to_find(row_table, rows, groups, chunk_keys, splits);
      copy_wait<0>();
      wait_for_earlier_kernels();
      __syncthreads();
    }
    waited = true;
    if (!there) {
      if (index + stride - firsts < to_find) continue;
      return;
    }

    const float log2_scale = scale * LOG2_E;
    const auto begin_row = [&](uint32_t which, const HeadRotation<D> &by, uint32_t row, const Places &of, uint32_t at_position,
                               uint32_t own_page) {
      const T *of_row = qkv + (size_t)row * (heads + 2 * kv_heads) * D, *new_k = of_row + (size_t)(heads + group.kv_head) * D;
      const size_t at = stores_own ? (size_t)of.token_in(own_page, at_position) * D + head_at : 0;
      norm_and_rotate(block, which, by, of_row + (size_t)group.first_head * D, new_k, new_k + (size_t)kv_heads * D,
                      stores_own ? k_pages + at : nullptr, v_pages + at, group.here, first, eps);
      __syncthreads();
      if (first) score_own(block, which, group.here, log2_scale);
    };
    begin_row(0, rotation, piece.row, places, position, of_own_page);
    if constexpr (KEYS_SHARED)
      if (pair) {  /* what is known of it is in shared memory: registers for it would be too many */
        const Piece &partner = block.piece[1];
        const Places of_partner{table<uint32_t>(state, state->page_table) + (size_t)partner.slot * state->max_pages, page, kv_heads, 0};
        const uint32_t at = partner.chunks.keys;
        begin_row(1, HeadRotation<D>(inverse_frequencies, at), partner.row, of_partner, at, of_partner.page_at(at));
      }
    keys.begin(block.q[0]);
    Places of_part = places;
    uint32_t of_next = of_next_page, part = pair ? 0 : IN_COMMON;
#pragma unroll 1
    for (;; part++) {
      if constexpr (KEYS_SHARED)
        if (pair) {
          if (part == PARTS) break;
          const Piece &of = block.piece[row_of_part(part)];
          const uint32_t begin = of.chunk * of.chunks.size;
          tile = of_warp(begin + warp_alone(block, warp, row_of_part(part)) * KEYS);
          if (part >= IN_COMMON) tile = tile_from<STEP>(tile, of_warp(part > IN_COMMON ? block.common.until : block.common.from));
          const uint32_t behind = part < IN_COMMON ? block.common.from : part > IN_COMMON ? of.chunks.end(of.chunk) : block.common.until;
          of_part.end = of_warp(behind);
          of_part.pages = table<uint32_t>(state, state->page_table) + (size_t)of.slot * state->max_pages;
          if (part != IN_COMMON) {
            attend_alone<STEP>(keys, row_of_part(part), tile, k_pages + head_at, v_pages + head_at, log2_scale, of_part);
            continue;
          }
          if (LOADS_AHEAD && tile < of_part.end) {
            const uint32_t key = of_part.key_of<KEYS>(tile), token = of_part.token_in(of_part.page_at(key), key);
            of_next = of_part.page_at(of_part.key_of<KEYS>(tile + STEP));
            keys.load_keys(k_pages + head_at, token);
            keys.load_values(v_pages + head_at, token);
          }
        }
      attend_keys<STEP>(keys, tile, of_next, k_pages + head_at, v_pages + head_at, log2_scale, of_part);
      if (!pair) break;
    }
    if constexpr (KEYS_SHARED) {
      keys.end(block.maximum[warp], block.total[warp], block.partial[warp][0], pair ? (int)warp_alone(block, warp, 1) - warp : 0);
    } else {
      keys.end(block.maximum[warp], block.total[warp], block.partial[warp][0]);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t which = 0; which < (pair ? 2 : 1); which++)
      merge_warps(block, which, out, partials, heads, kv_heads, first);
    if (index + stride - firsts >= to_find) return;
    __syncthreads();  /* the block's arrays are free again */
  }
}

/* Blocks that an SM has room for. */
template <typename T, int D>
constexpr int decode_blocks(int warps) {
  return (LOADS_AHEAD && sizeof(T) == 2 && D == 64 ? 16 : 8) / warps;
}

#define DECODE_KERNEL(NAME, T, D, WARPS)                                                         \
  extern "C" __global__ void __launch_bounds__(WARPS * WARP, (decode_blocks<T, D>(WARPS))) NAME( \
      const __grid_constant__ tg_attention_decode_args a, uint32_t heads, uint32_t kv_heads,     \
      uint32_t bucket, uint32_t chunk_keys, uint32_t splits) {                                   \
    attend_decode<T, D, WARPS>(a, heads, kv_heads, bucket, chunk_keys, splits);                  \
  }
#define ATTENTION_DECODE(SUFFIX, T, D)                           \
  DECODE_KERNEL(tg_attention_decode_w1_##SUFFIX##_d##D, T, D, 1) \
  DECODE_KERNEL(tg_attention_decode_w2_##SUFFIX##_d##D, T, D, 2) \
  DECODE_KERNEL(tg_attention_decode_w4_##SUFFIX##_d##D, T, D, 4) \
  DECODE_KERNEL(tg_attention_decode_w8_##SUFFIX##_d##D, T, D, 8)
FOR_HEADS(ATTENTION_DECODE)
