/* kernels.cpp: kernels that the host can run (simt.h), and how they are launched. experts.cpp, dense.cpp and few_rows.cpp have others. */
#include "hopper.h"
#include "known.h"

#include <mutex>

#include "common/argmax.cuh"
#include "common/base.cuh"
#include "common/bf16x3.cuh"
#include "common/experts.cuh"
#include "common/philox.cuh"
#include "common/rmsnorm.cuh"
#include "persistent/conv.cuh"
#include "persistent/split_k.cuh"
#include "router/args.h"
#include "router/choice.cuh"
#include "router/sort.cuh"
#include "sample/scores.cuh"
#include "sched/platform.h"
#include "step/args.h"
#include "wgmma/pipeline.cuh"
#include "ways/step.cuh"

/* Dynamic shared memory, of the size that a block may have. (A family that names it in a template has its own.) */
#define DYNAMIC_SHARED thread_local float4 shared[simt::SHARED_BYTES / sizeof(float4)]
alignas(GMMA_ATOM_BYTES) thread_local char persistent_shared[simt::SHARED_BYTES];

/* Files have constants of the same names. */
namespace conv {
#include "conv/conv.cu"
}
namespace router {
DYNAMIC_SHARED;
#include "router/router.cu"
#include "router/norm_router_many.cu"
}
namespace norm_router {
#include "router/norm_router.cu"
}
namespace sort_combine {
#include "router/sort_combine.cu"
}
namespace sort_many {
#include "router/sort_many.cu"
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
namespace needed {
#include "step/needed.cu"
}
namespace share {
#include "step/share.cu"
}
namespace ways {
#include "ways/step.cu"
}
namespace pair {
#include "ways/pair.cu"
/* The first half of tg_pair_reduce, for a GPU that waits for another one (graphs.c). The second does it once more. */
void tg_pair_push(tg_pair *pair, uint32_t *rows, const uint32_t *, uint32_t *theirs, const uint64_t *, uint64_t *flags) {
  const size_t place = (size_t)(pair->ways.step % 2) * pair->rows * TG_PAIR_ROW_WORDS;
  pair_copy(theirs + place, rows, pair->rows);
  __syncthreads();
  if (threadIdx.x == 0) tg_release(flags + blockIdx.x * TG_PAIR_FLAG_WORDS, pair->ways.step + 1);
}
}

namespace persistent_cu {
#include "persistent/persistent.cu"
}
namespace {
#define ONE(SPACE, NAME) WITH(router::shared, SPACE, NAME)
#define PERSISTENT(NAME) WITH(persistent_shared, persistent_cu, tg_persistent_##NAME)
#define PERSISTENT_PAIR(BEFORE, BEHIND) PERSISTENT(BEFORE##bf16##BEHIND), PERSISTENT(BEFORE##f16##BEHIND)
#define PERSISTENT_EACH(TYPE) PERSISTENT(TYPE##_w128), PERSISTENT(TYPE##_w128_split_k), PERSISTENT(gate_up_##TYPE), PERSISTENT(down_##TYPE)
#define ROUTE(SPACE, NAME) EACH(SPACE, NAME), ONE(SPACE, NAME##_bf16_e64), ONE(SPACE, NAME##_f16_e64), ONE(SPACE, NAME##_f32_e64)
#define PAIR(SPACE, NAME) ONE(SPACE, NAME##_bf16), ONE(SPACE, NAME##_f16)
#define EACH(SPACE, NAME) PAIR(SPACE, NAME), ONE(SPACE, NAME##_f32)

const bool KNOWN = know({
  EACH(conv, tg_conv), EACH(conv, tg_conv_decode), EACH(conv, tg_conv_rows),
  EACH(router, tg_router_1), EACH(router, tg_router_many), ROUTE(norm_router, tg_route), ROUTE(router, tg_route_many),
  ONE(sort_combine, tg_sort_tokens), ONE(sort_many, tg_sort_tokens_many),
  EACH(sort_combine, tg_combine_four), EACH(sort_combine, tg_combine_experts),
  PAIR(sort_combine, tg_combine_rounded_four), PAIR(sort_combine, tg_combine_rounded_experts),
  ONE(sample, tg_sample), ONE(sample, tg_sample_best), ONE(sample, tg_mark_seen), EACH(norm, tg_rmsnorm), EACH(norm, tg_rmsnorm_sampled),
  EACH(embed, tg_embed), ONE(needed, tg_needed_rows), ONE(needed, tg_gather_rows), ONE(share, tg_share_prefixes),
  ONE(ways, tg_ways_layer), ONE(ways, tg_ways_decide), ONE(pair, tg_pair_rows),
  ONE(pair, tg_pair_digest), ONE(pair, tg_pair_end), ONE(pair, tg_pair_put), ONE(pair, tg_pair_put_token),
  ONE(pair, tg_pair_take_rows), ONE(pair, tg_pair_take_token), ONE(pair, tg_pair_reduce), ONE(pair, tg_pair_push),
  PERSISTENT_PAIR(, _w128), PERSISTENT_PAIR(, _w192), PERSISTENT_PAIR(, _w256), PERSISTENT_PAIR(, _w128_split_k),
  PERSISTENT_PAIR(, _w192_split_k), PERSISTENT_PAIR(conv_, ), PERSISTENT_PAIR(gate_up_, ), PERSISTENT_PAIR(down_, ), PERSISTENT(f32_w128),
  PERSISTENT(f32_w128_split_k), PERSISTENT(gate_up_f32), PERSISTENT(down_f32), PERSISTENT_EACH(bf16_e4m3), PERSISTENT(bf16_e4m3_w192),
  PERSISTENT(bf16_e4m3_w256), PERSISTENT(bf16_e4m3_w192_split_k), PERSISTENT_EACH(f32_e4m3), ONE(persistent_cu, tg_bf16x3_rows),
  PERSISTENT(e4m3_rows_w256), PERSISTENT(gate_up_e4m3_rows), PERSISTENT(down_e4m3_rows), ONE(persistent_cu, tg_e4m3_rows),
});

std::mutex one; /* the fibers are there once, and tests run on threads of their own */
std::vector<simt::Launched> waiting;
std::vector<std::shared_ptr<void *>> their_arguments;
}  // namespace

/* CUresult. Launches wait until somebody waits for them, so that those which may be early run beside others. */
extern "C" int run_kernel(const char *name, const uint32_t grid[3], const uint32_t block[3], uint32_t cluster, uint32_t shared_bytes,
                          int early, void **arguments) {
  const auto found = known().find(name);
  if (found == known().end()) return 500; /* not found */
  const std::lock_guard<std::mutex> guard(one);
  their_arguments.push_back(found->second.kept(arguments));
  waiting.push_back({found->first.c_str(), {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, cluster, shared_bytes, early != 0,
                     found->second.shared, found->second.thread, their_arguments.back().get()});
  return 0;
}

extern "C" int finish_kernels() {
  const std::lock_guard<std::mutex> guard(one);
  if (waiting.empty()) return 0;
  const bool right = simt::run(waiting);
  waiting.clear(), their_arguments.clear();
  return right ? 0 : 719; /* a launch failed */
}
