// build: rdc
/* dispatcher.cu: the dispatcher of a GPU that schedules itself, has all stages and runs alone (dispatch.cuh), and what begins the
 * graphs of any GPU's steps. Launch: grid = 1, block = TG_DISPATCH_THREADS. */
#define TG_CLAIMS_NOTHING 1
#include "sched/dispatch.cuh"

DISPATCHER(tg_dispatch, false)

/* First node of a step's first graph: waits until the step is composed, since what follows reads it before the grid dependency wait.
 * Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_step(tg_chain *chain) {
  await_earlier_kernels();
  const uint64_t begun = load_acquire(&chain->begun);
  while (TG_MUT(173, load_acquire(&chain->open) <= begun, false)) {
  }
  chain->begun = begun + 1;
  let_next_kernel_start();
}

/* First node of a later stage's graph: stores which stage runs now, for the host's watchdog. Launch: grid = 1, block = 1. */
extern "C" __global__ void tg_begin_stage(tg_rings *rings, uint32_t stage) {
  let_next_kernel_start();
  await_earlier_kernels();
  tg_store(&rings->status.stage, stage);
}
