// build: rdc
/* dispatcher_tail.cu: the dispatcher whose graphs follow each other by tail launches alone (dispatch.cuh): of several stages on one
 * GPU, and of one to compare with.
 *
 * Launch: grid = 1, block = DISPATCH_THREADS.
 */
#include "sched/dispatch.cuh"

extern "C" __global__ void __launch_bounds__(DISPATCH_THREADS)
    tg_dispatch_tail(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_chain *chain,
                     uint32_t where) {
  dispatch<true>(block, rings, layout, graphs, chain, where);
}
