// build: rdc
/* dispatcher_tail.cu: the dispatcher whose graphs follow each other by tail launches alone (dispatch.cuh): of several stages on one
 * GPU, and of one to compare with. Launch: grid = 1, block = DISPATCH_THREADS. */
#include "sched/dispatch.cuh"

DISPATCHER(tg_dispatch_tail, true)
