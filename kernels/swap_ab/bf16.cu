// build: sm_90a
/* bf16.cu: swap_ab/half.cuh for bf16. */
#include "swap_ab/half.cuh"

SWAP_AB_HALF(bf16, __nv_bfloat16)
