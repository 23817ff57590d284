/* chain.cpp: a GPU that schedules itself, with a dispatcher of kernels/sched as it is (DISPATCH) and steps that sample at random.
 *
 *   chain SEED REQUESTS [MUTATION]
 *
 * A step that runs is held to the graph that it runs in, and to the one before. */
#include "host.h"

#include <cstdio>
#include <memory>

extern uint32_t gpu_mutation;
extern "C" void DISPATCH(tg_state *, tg_rings *, const tg_rings *, const tg_graphs *, tg_chain *, uint32_t);
extern "C" void tg_begin_step(tg_chain *);
extern "C" void tg_begin_stage(tg_rings *, uint32_t);
void let_next_kernel_start();
void await_earlier_kernels();

namespace {
Host *host;
tg_state *state;
tg_chain chain;
tg_graphs graphs;
uint64_t steps; /* that have run */

/* A kernel of a step: it reads what the step is before its own wait. The last one samples. */
void step_kernel(uint32_t copy, uint32_t kind, uint32_t bucket, bool last) {
  let_next_kernel_start();
  const tg_step *step = &state->steps[0];
  auto check = [&] {
    if (step->number != steps || step->kind != kind || step->bucket != bucket || (COPIES == 2 && step->number % 2 != copy))
      gpu::fail("step %lu of kind %u and bucket %u runs as number %lu, in copy %u of kind %u, bucket %u", step->number, step->kind,
                step->bucket, steps, copy, kind, bucket);
  };
  check();
  gpu::yield();
  await_earlier_kernels();
  gpu::yield();
  check();
  if (!last) return;
  host->sample_all(state, step);
  check();
  steps++;
}

gpu::Kernel dispatcher(tg_rings *layout, uint32_t where) {
  return {"the dispatcher", 1, TG_DISPATCH_THREADS, [=] { DISPATCH(state, host->rings, layout, &graphs, &chain, where); }};
}
}  // namespace

int main(int count, char **arguments) {
  if (count < 3) return 2;
  gpu::seed(strtoull(arguments[1], nullptr, 10));
  gpu_mutation = count > 3 ? strtoul(arguments[3], nullptr, 10) : 0;
  host = new Host(strtoul(arguments[2], nullptr, 10), 1);
  state = host->new_state();
  if (CLAIMS) host->claims(state);
  tg_rings layout = *host->rings;
  std::vector<std::unique_ptr<gpu::Graph>> all;
  auto add = [&](std::string name, std::vector<gpu::Kernel> kernels) {
    all.emplace_back(new gpu::Graph{name, kernels});
    return (uint64_t)all.back().get();
  };
  graphs.stages = COPIES == 1 ? 2 : 1;
  graphs.idle = add("the idle graph", {dispatcher(&layout, TG_DISPATCH_IDLE)});
  for (uint32_t copy = 0; copy < COPIES; copy++)
    for (uint32_t kind = 0; kind < TG_KINDS; kind++)
      for (uint32_t bucket = 0; bucket < host->config.bucket_count[kind]; bucket++) {
        auto kernel = [=](bool last) { return gpu::Kernel{"a step's kernel", 1, 1, [=] { step_kernel(copy, kind, bucket, last); }}; };
        const std::string name = "copy " + std::to_string(copy) + " of kind " + std::to_string(kind) + ", bucket " + std::to_string(bucket);
        const gpu::Kernel begin = {"tg_begin_step", 1, 1, [] { tg_begin_step(&chain); }};
        const gpu::Kernel begin_stage = {"tg_begin_stage", 1, 1, [] { tg_begin_stage(host->rings, 1); }};
        const gpu::Kernel end = dispatcher(&layout, TG_DISPATCH_BEHIND);
        uint64_t(&step)[TG_MAX_STAGES][TG_KINDS][TG_MAX_BUCKETS] = graphs.step[copy];
        if (graphs.stages == 1) {
          step[0][kind][bucket] = add(name, {begin, kernel(false), kernel(true), end});
        } else {
          step[0][kind][bucket] = add(name, {begin, kernel(false)});
          step[1][kind][bucket] = add(name + ", stage 1", {begin_stage, kernel(false), kernel(true), end});
        }
      }
  gpu::on_failure([] {
    fprintf(stderr, "  open %lu, begun %lu, settled %lu, launched %lu; composed %lu, collected %lu, run %lu\n", chain.open, chain.begun,
            chain.settled, chain.launched, state->steps_composed, state->steps_collected, steps);
  });
  gpu::run({(gpu::Graph *)graphs.idle}, [] { host->turn(); });
  host->end();
  printf("%lu steps, %lu tokens\n", steps, host->tokens);
}
