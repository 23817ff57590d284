/* dispatcher_tail.cu: the dispatcher whose steps follow each other by tail launches alone, to compare with (dispatch.cuh).
 *
 * Launch: grid = 1, block = DISPATCH_THREADS.
 */
#include "sched/dispatch.cuh"

extern "C" __global__ void __launch_bounds__(DISPATCH_THREADS)
    tg_dispatch_tail(tg_state *block, tg_rings *rings, const tg_rings *layout, const tg_graphs *graphs, tg_chain *chain,
                     uint32_t where) {
  dispatch<true>(block, rings, layout, graphs, chain, where);
}
