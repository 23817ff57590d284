// build: sm_90a
/* bf16.cu: persistent/half.cuh for bf16. */
#include "persistent/half.cuh"

PERSISTENT_HALF(bf16, __nv_bfloat16)
