/* kernels.cpp: the kernels that the host can run (simt.h), by their names. */
#include "simt.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "common/argmax.cuh"
#include "common/base.cuh"
#include "common/experts.cuh"
#include "common/rmsnorm.cuh"
#include "common/philox.cuh"
#include "router/args.h"
#include "sample/select.cuh"
#include "sched/platform.h"
#include "ways/step.cuh"

/* Dynamic shared memory, of the size that a block may have. */
#define SHARED thread_local float4 shared[(227 << 10) / sizeof(float4)]

/* Files have constants of the same names. */
namespace conv {
#include "conv/conv.cu"
}
namespace router {
SHARED;
#include "router/router.cu"
}
namespace sort_combine {
#include "router/sort_combine.cu"
}
namespace sample {
#include "sample/sample.cu"
}
namespace norm {
#include "step/norm.cu"
}
namespace embed {
#include "step/embed.cu"
}
namespace ways {
#include "ways/step.cu"
}
namespace pair {
#include "ways/pair.cu"
/* The first half of tg_pair_reduce, for a GPU that waits for another one (graphs.c). The second does it once more. */
void tg_pair_push(tg_pair *pair, uint32_t *rows, const uint32_t *, uint32_t *theirs, const uint64_t *, uint64_t *flags) {
  const size_t place = (size_t)(pair->step % 2) * pair->rows * TG_PAIR_ROW_WORDS;
  pair_copy(theirs + place, rows, pair->rows);
  __syncthreads();
  if (threadIdx.x == 0) tg_release(flags + blockIdx.x * TG_PAIR_FLAG_WORDS, pair->step + 1);
}
}

namespace {
using Launch = void (*)(Extent, Extent, void **);

template <auto KERNEL>
struct Kernel;
template <class... A, void (*KERNEL)(A...)>
struct Kernel<KERNEL> {
  template <size_t... I>
  static void call(void **arguments, std::index_sequence<I...>) {
    KERNEL(*(A *)arguments[I]...);
  }
  static void thread(void *arguments) { call((void **)arguments, std::index_sequence_for<A...>()); }
  static void launch(Extent grid, Extent block, void **arguments) { simt::run(grid, block, thread, arguments); }
};

#define ONE(SPACE, NAME) {#NAME, Kernel<SPACE::NAME>::launch}
#define PAIR(SPACE, NAME) ONE(SPACE, NAME##_bf16), ONE(SPACE, NAME##_f16)
#define EACH(SPACE, NAME) PAIR(SPACE, NAME), ONE(SPACE, NAME##_f32)

const std::map<std::string, Launch> KERNELS = {
  EACH(conv, tg_conv), EACH(conv, tg_conv_decode), EACH(conv, tg_conv_rows), EACH(conv, tg_conv_state),
  EACH(router, tg_router_1), EACH(router, tg_router_4), EACH(router, tg_router_many), EACH(router, tg_scores_1),
  EACH(router, tg_scores_4), ONE(sort_combine, tg_sort_tokens), ONE(sort_combine, tg_choose_and_sort),
  EACH(sort_combine, tg_combine_four), EACH(sort_combine, tg_combine_experts),
  PAIR(sort_combine, tg_combine_rounded_four), PAIR(sort_combine, tg_combine_rounded_experts),
  ONE(sample, tg_sample), ONE(sample, tg_sample_best), ONE(sample, tg_mark_seen), EACH(norm, tg_rmsnorm), EACH(norm, tg_rmsnorm_sampled),
  EACH(embed, tg_embed), ONE(ways, tg_ways_layer), ONE(ways, tg_ways_decide), ONE(pair, tg_pair_rows),
  ONE(pair, tg_pair_digest), ONE(pair, tg_pair_end), ONE(pair, tg_pair_put), ONE(pair, tg_pair_put_token),
  ONE(pair, tg_pair_take_rows), ONE(pair, tg_pair_take_token), ONE(pair, tg_pair_reduce), ONE(pair, tg_pair_push),
};
}  // namespace

/* 0: there is no such kernel here. */
extern "C" int run_kernel(const char *name, const uint32_t grid[3], const uint32_t block[3], void **arguments) {
  const auto found = KERNELS.find(name);
  if (found == KERNELS.end()) return 0;
  static std::mutex one; /* the fibers are there once, and tests run on threads of their own */
  const std::lock_guard<std::mutex> guard(one);
  memset(router::shared, 0xff, sizeof router::shared);
  found->second({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, arguments);
  return 1;
}
