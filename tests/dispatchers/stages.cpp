/* stages.cpp: a pipeline of GPUs, with the kernels of kernels/sched/stages.cu as they are and steps that sample at random.
 *
 *   stages SEED REQUESTS [MUTATION]
 *
 * A row of the residual stream says of which step and stage it is. */
#include "host.h"

#include <cstdio>
#include <memory>

extern uint32_t gpu_mutation;
extern "C" {
void tg_begin_lead(tg_stage *);
void tg_lead(tg_state *, tg_rings *, const tg_rings *, const tg_graphs *, tg_stage *, uint32_t, const void *);
void tg_take(float *, tg_state *, tg_stage *, uint32_t, uint32_t, void *);
void tg_hand_on(const tg_state *, tg_stage *, const float *, uint32_t, void *);
void tg_follow(tg_state *, const tg_graphs *, tg_stage *, uint32_t, uint32_t, const void *);
}
void let_next_kernel_start();
void await_earlier_kernels();

namespace {
constexpr uint32_t HIDDEN = 4, COPY_THREADS = 256, LAYOUT_WORDS = 16;

struct Stage {
  uint32_t index;
  bool last;
  tg_state *state;
  tg_stage stage;
  tg_graphs graphs;
  std::vector<float> h;
  uint64_t steps = 0; /* that have run */
};

struct Link {
  tg_link_words poster, taker;
  uint64_t *places, words;
};

Host *host;
std::vector<Stage> stages;
std::vector<Link> links;

tg_link_end end_of(uint32_t index, bool posts) {
  Link &link = links[index];
  tg_link_end end{};
  end.mine = posts ? &link.poster : &link.taker, end.theirs = posts ? &link.taker : &link.poster;
  end.places = link.places, end.place_words = link.words;
  end.depth = host->config.steps_in_flight, end.link = index;
  return end;
}

void step_kernel(Stage &s, uint32_t copy, uint32_t kind, uint32_t bucket) {
  let_next_kernel_start();
  const tg_step &step = s.stage.step;
  auto check = [&] {
    if (step.number != s.steps || step.kind != kind || step.bucket != bucket || step.number % TG_COPIES != copy)
      gpu::fail("stage %u: step %lu of kind %u and bucket %u runs as number %lu, in copy %u of kind %u, bucket %u", s.index, step.number,
                step.kind, step.bucket, s.steps, copy, kind, bucket);
  };
  check();
  gpu::yield();
  await_earlier_kernels();
  if (s.stage.over) return;
  check();
  for (uint32_t i = 0; i < step.rows * HIDDEN; i++) {
    const float first = (float)(step.number % 1000 * 1024 + i), came = s.h[i];
    if (s.index != 0 && came != first + s.index - 1)
      gpu::fail("stage %u: value %u of step %lu is %f, expected %f", s.index, i, step.number, came, first + s.index - 1);
    s.h[i] = first + s.index;
    if (i % 4 == 0) gpu::yield();
  }
  if (s.last) host->sample_all(s.state, &step);
  check();
  s.steps++;
}

gpu::Kernel dispatcher(Stage &s, tg_rings *layout, uint32_t where) {
  if (s.index == 0)
    return {"tg_lead", 1, TG_DISPATCH_THREADS, [=, &s] { tg_lead(s.state, host->rings, layout, &s.graphs, &s.stage, where, nullptr); }};
  return {"tg_follow", 1, TG_MAX_LANES, [=, &s] { tg_follow(s.state, &s.graphs, &s.stage, where, s.last, nullptr); }};
}
}  // namespace

int main(int count, char **arguments) {
  if (count < 3) return 2;
  gpu::seed(strtoull(arguments[1], nullptr, 10));
  gpu_mutation = count > 3 ? strtoul(arguments[3], nullptr, 10) : 0;
  const uint32_t many = 2 + gpu::below(2);
  host = new Host(strtoul(arguments[2], nullptr, 10), many);
  const tg_config &config = host->config;
  stages.resize(many), links.resize(many);
  for (uint32_t i = 0; i < many; i++) {
    links[i].words = i + 1 == many ? tg_result_place_words(&config) : tg_step_place_words(&config, HIDDEN * sizeof(float) / sizeof(uint64_t));
    links[i].words = (links[i].words + LAYOUT_WORDS - 1) / LAYOUT_WORDS * LAYOUT_WORDS;
    links[i].places = (uint64_t *)block_of(links[i].words * config.steps_in_flight * sizeof(uint64_t));
  }
  tg_rings layout = *host->rings;
  std::vector<std::unique_ptr<gpu::Graph>> all;
  auto add = [&](std::string name, std::vector<gpu::Kernel> kernels) {
    all.emplace_back(new gpu::Graph{name, kernels});
    return (uint64_t)all.back().get();
  };
  std::vector<gpu::Graph *> idle;
  for (uint32_t i = 0; i < many; i++) {
    Stage &s = stages[i];
    s.index = i, s.last = i + 1 == many, s.state = host->new_state(), s.h.resize(config.step_tokens * HIDDEN);
    memset(&s.stage, 0, sizeof s.stage), memset(&s.graphs, 0, sizeof s.graphs);
    s.stage.links.in = end_of((i + many - 1) % many, false), s.stage.links.out = end_of(i, true);
    s.stage.links.stop = &host->rings->flags.value, s.stage.links.limit_ns = TG_NO_TIMEOUT, s.stage.links.stage = i;
    const std::string of = "stage " + std::to_string(i) + ", ";
    s.graphs.stages = 1;
    s.graphs.idle = add(of + "the idle graph", {dispatcher(s, &layout, TG_DISPATCH_IDLE)});
    idle.push_back((gpu::Graph *)s.graphs.idle);
    for (uint32_t copy = 0; copy < TG_COPIES; copy++)
      for (uint32_t kind = 0; kind < TG_KINDS; kind++)
        for (uint32_t bucket = 0; bucket < config.bucket_count[kind]; bucket++) {
          const uint32_t blocks = 1 + (config.bucket_rows[kind][bucket] < 2 ? 1 : 2);
          std::vector<gpu::Kernel> kernels;
          if (i == 0) kernels.push_back({"tg_begin_lead", 1, 1, [&s] { tg_begin_lead(&s.stage); }});
          else kernels.push_back({"tg_take", blocks, COPY_THREADS, [&s] { tg_take(s.h.data(), s.state, &s.stage, HIDDEN, s.last, nullptr); }});
          kernels.push_back({"a step's kernel", 1, 1, [=, &s] { step_kernel(s, copy, kind, bucket); }});
          if (!s.last)
            kernels.push_back({"tg_hand_on", blocks, COPY_THREADS, [&s] { tg_hand_on(s.state, &s.stage, s.h.data(), HIDDEN, nullptr); }});
          kernels.push_back(dispatcher(s, &layout, TG_DISPATCH_BEHIND));
          s.graphs.step[copy][0][kind][bucket] =
              add(of + "copy " + std::to_string(copy) + " of kind " + std::to_string(kind) + ", bucket " + std::to_string(bucket), kernels);
        }
  }
  gpu::on_failure([] {
    for (const Stage &s : stages)
      fprintf(stderr, "  stage %u: %lu steps have run; opened %lu, launched %lu, settled %lu; took %lu, handed on %lu, ended %lx\n", s.index,
              s.steps, s.stage.opened, s.stage.launched, s.stage.settled, s.stage.links.in.count, s.stage.links.out.count,
              s.stage.links.ended);
  });
  gpu::run(idle, [] { host->turn(); });
  host->end();
  printf("%u stages, %lu steps, %lu tokens\n", many, stages[0].steps, host->tokens);
}
