// build: sm_90a
/* prompt.cu: attention/prompt.cuh for its types and sizes of heads. */
#include "attention/prompt.cuh"

using PromptB64 = PromptTile<__nv_bfloat16, 64>;
using PromptB128 = PromptTile<__nv_bfloat16, 128>;
using PromptH64 = PromptTile<__half, 64>;
using PromptH128 = PromptTile<__half, 128>;
ATTENTION_PROMPT(bf16_d64, PromptB64)
ATTENTION_PROMPT(bf16_d128, PromptB128)
ATTENTION_PROMPT(f16_d64, PromptH64)
ATTENTION_PROMPT(f16_d128, PromptH128)
