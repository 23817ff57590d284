/* experts.cpp: kernels of experts' feed-forwards and of attention that the host can run, as kernels.cpp has them. */
#include "hopper.h"
#include "known.h"

#include "attention/attention.cuh"
#include "attention/chunks.cuh"
#include "attention/rope.cuh"
#include "attention/warp_keys.cuh"
#include "grouped/grouped.cuh"

alignas(GMMA_ATOM_BYTES) thread_local char grouped_shared[simt::SHARED_BYTES];

namespace grouped_cu {
#include "grouped/grouped.cu"
}
namespace decode {
#include "attention/decode.cu"
}
namespace rope {
#include "attention/rope.cu"
}
namespace tiles {
thread_local uint4 shared[simt::SHARED_BYTES / sizeof(uint4)];
#include "attention/tiles.cu"
}
namespace prompt {
alignas(GMMA_ATOM_BYTES) thread_local char prompt_shared[simt::SHARED_BYTES];
#include "attention/prompt.cu"
}

#define GROUPED_ONE(NAME) WITH(grouped_shared, grouped_cu, tg_grouped_experts_##NAME)
#define GROUPED_PAIR(NAME) GROUPED_ONE(NAME##bf16), GROUPED_ONE(NAME##f16)
#define DECODE(NAME)                                                                                                    \
  WITH(grouped_shared, decode, tg_attention_decode_w1_##NAME), WITH(grouped_shared, decode, tg_attention_decode_w2_##NAME), \
  WITH(grouped_shared, decode, tg_attention_decode_w4_##NAME), WITH(grouped_shared, decode, tg_attention_decode_w8_##NAME), \
  WITH(grouped_shared, rope, tg_qk_norm_rope_##NAME)
#define TILES(NAME) WITH(tiles::shared, tiles, tg_attention_tiles_##NAME)
#define CHUNKS(NAME) TILES(NAME), WITH(prompt::prompt_shared, prompt, tg_attention_prompt_##NAME)

static const bool KNOWN = know({
  GROUPED_PAIR(), GROUPED_ONE(f32), GROUPED_PAIR(many_), GROUPED_ONE(many_f32), GROUPED_PAIR(tall_), GROUPED_PAIR(512_),
  GROUPED_PAIR(512_tallest_), GROUPED_PAIR(1024_), GROUPED_PAIR(1024_tallest_),
  GROUPED_ONE(bf16_e4m3), GROUPED_ONE(many_bf16_e4m3), GROUPED_ONE(tall_bf16_e4m3), GROUPED_ONE(512_tallest_bf16_e4m3),
  GROUPED_ONE(1024_tallest_bf16_e4m3), GROUPED_ONE(f32_e4m3), GROUPED_ONE(many_f32_e4m3),
  DECODE(bf16_d64), DECODE(bf16_d128), DECODE(f16_d64), DECODE(f16_d128), DECODE(f32_d64), DECODE(f32_d128),
  CHUNKS(bf16_d64), CHUNKS(bf16_d128), CHUNKS(f16_d64), CHUNKS(f16_d128), TILES(f32_d64), TILES(f32_d128),
  WITH(tiles::shared, tiles, tg_query_tiles),
});
