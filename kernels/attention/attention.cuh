/* attention.cuh: what the attention kernels share: where keys and values lie, and the list of query tiles.
 *
 *   out[r, head, :] = sum_t softmax_t(q[r, head] . k[t] / sqrt(D)) v[t],   t = 0 .. position of row r
 *
 * q is normed, rotated, and still in qkv[R,(heads + 2 kv_heads) D]; the step's own keys and values are already in their pages, so that a
 * row finds all of its keys there: [pages, kv_heads, page_tokens, D]. Query head h has kv head h / (heads / kv_heads).
 */
#pragma once

#include "attention/args.h"
#include "common/base.cuh"
#include "common/pdl.cuh"

/* Query rows of one sequence that one block takes: rows `first .. first + rows` of the step. */
struct alignas(16) QueryTile {
  uint32_t slot;
  uint32_t first_row;
  uint32_t first_position;
  uint32_t rows;
};
static_assert(sizeof(QueryTile) == TG_QUERY_TILE_BYTES, "the launcher leaves room for them");

/* A slot's keys or values of one kv head. */
struct Pages {
  const uint32_t *pages;
  uint32_t page_tokens;
  uint32_t kv_heads;
  uint32_t kv_head;

  __device__ inline Pages(const tg_state *state, uint32_t slot, uint32_t kv_heads_, uint32_t kv_head_)
      : pages(table<uint32_t>(state, state->page_table) + (size_t)slot * state->max_pages),
        page_tokens(state->config.page_tokens), kv_heads(kv_heads_), kv_head(kv_head_) {}

  /* Index of the vector of `position` among all vectors of the pool. */
  __device__ inline size_t at(uint32_t position) const {
    return ((size_t)pages[position / page_tokens] * kv_heads + kv_head) * page_tokens + position % page_tokens;
  }
};
