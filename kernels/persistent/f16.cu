// build: sm_90a
/* f16.cu: persistent/half.cuh for f16. */
#include "persistent/half.cuh"

PERSISTENT_HALF(f16, __half)
