// build: rdc
/* dispatcher_claims.cu: the dispatcher of a GPU that has all stages and is one of several replicas (dispatch.cuh): its requests come
 * from a queue that it claims from. Claiming costs each turn 1.3 us (profiles/log/dispatcher.md), which a GPU by itself does not pay.
 * Launch: grid = 1, block = DISPATCH_THREADS. */
#include "sched/dispatch.cuh"

DISPATCHER(tg_dispatch_claims, false)
