// build: rdc
/* dispatcher_claims.cu: two more dispatchers (dispatch.cuh). Launch: grid = 1, block = TG_DISPATCH_THREADS. One is of a GPU that is one of
 * several replicas: it claims its requests from a queue, which costs each turn 1.3 us (profiles/log/dispatcher.md). Graphs of the other
 * follow each other by tail launches alone: those of several stages on one GPU, or of one to compare with. */
#include "sched/dispatch.cuh"

DISPATCHER(tg_dispatch_claims, false)
DISPATCHER(tg_dispatch_tail, true)
