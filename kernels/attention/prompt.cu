// build: sm_90a
/* prompt.cu: attention/prompt.cuh for its types and sizes of heads. */
#include "attention/prompt.cuh"

#define PROMPT(SUFFIX, T, D) ATTENTION_PROMPT(SUFFIX##_d##D, PromptTile<T, D>)
FOR_HALF_HEADS(PROMPT)
