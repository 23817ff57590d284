// build: sm_90a
/* f16.cu: swap_ab/half.cuh for f16. */
#include "swap_ab/half.cuh"

SWAP_AB_HALF(f16, __half)
