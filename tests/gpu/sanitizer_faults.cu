// Deliberate faults in kernels that run from graphs, so that a clean report of compute-sanitizer means something: it
// must name each of these. tests/gpu/check.py builds and runs it:
//
//     nvcc -std=c++17 -rdc=true -arch=native -lineinfo -o sanitizer_faults tests/gpu/sanitizer_faults.cu
//     compute-sanitizer --tool memcheck ./sanitizer_faults FAULT LAUNCH [TURNS [KERNELS]]
//
// FAULT is the tool that must see it, or `none` for kernels in order, or `ring` for one in order whose warps hand over what
// bulk copies bring (kernels/skinny/pipeline.cuh; sm_90 and newer), or `arrive` for one in order whose warps hand over by a barrier that
// those who write only arrive at (kernels/sched/dispatch.cuh). LAUNCH is who launches the graph with the kernel:
//   host     the host
//   kept     the host, though the graph is instantiated for device launch and uploaded
//   forget   a kernel of another graph, at once
//   tail     a kernel of another graph, when that graph has ended
//   again    its own last kernel, when it has ended, TURNS times (100)
//   table    as `again`, from a table of two graphs in device memory
//   sibling  from the same table, by the last kernel of the one before, at once (what tailgraph's dispatcher does; up to 119
//            TURNS)
//   beside   as `sibling`, and the launching kernel goes on, in order, while its like in the other graph runs (2 TURNS)
//   overlap  as `table`, the last kernel starting early (programmatic dependent launch)
//   self     as `overlap`, from a table of one
//   poll     as `overlap`, until the host, which meanwhile looks on, sets a flag in pinned memory
// A graph has KERNELS (1) of them. Exits with 0 where every CUDA call succeeded.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

constexpr int THREADS = 128;
/* in elements: farther than any allocation here reaches */
constexpr size_t FAR_AWAY = size_t(1) << 28;

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudaError_t error = (call);                                                                                        \
    if (error != cudaSuccess) {                                                                                        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                                              \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

/* in order: each thread reads what another wrote to shared memory, behind a barrier */
__global__ void none(int *out, const int *) {
  __shared__ int tile[THREADS];
  tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

/* writes past the end of `out` */
__global__ void memcheck(int *out, const int *) {
  out[FAR_AWAY + threadIdx.x] = threadIdx.x;
}

/* no barrier between the write and another warp's read */
__global__ void racecheck(int *out, const int *) {
  __shared__ int tile[THREADS];
  tile[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

/* reads what nobody wrote */
__global__ void initcheck(int *out, const int *unwritten) {
  out[threadIdx.x] = unwritten[threadIdx.x];
}

/* half a warp waits at a barrier that the other half does not reach */
__global__ void synccheck(int *out, const int *) {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  }
  out[threadIdx.x] = 0;
}

/* in order: one warp asks for bulk copies into a ring of two stages, the others add up what came */
__global__ void ring(int *out, const int *from) {
#if __CUDA_ARCH__ >= 900
  constexpr int STAGES = 2, RUNS = 16, WARP = 32, CONSUMERS = THREADS / WARP - 1;
  constexpr unsigned BYTES = THREADS * sizeof(int);
  __shared__ alignas(128) int stage[STAGES][THREADS];
  __shared__ unsigned long long barriers[2 * STAGES];
  auto address = [](const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); };
  auto wait = [&](unsigned long long *barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(address(barrier)), "r"(parity)
          : "memory");
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(barriers + s)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barriers + STAGES + s)), "n"(CONSUMERS) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int sum = 0;
  for (int run = 0; run < RUNS; run++) {
    const int s = run % STAGES;
    const unsigned parity = run / STAGES % 2;
    unsigned long long *full = barriers + s, *empty = full + STAGES;
    if (threadIdx.x < WARP) {
      wait(empty, parity ^ 1);
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(full)), "n"(BYTES) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         address(stage[s])),
                     "l"(from), "n"(BYTES), "r"(address(full))
                     : "memory");
      }
      __syncwarp();
    } else {
      wait(full, parity);
      sum += stage[s][threadIdx.x];
      __syncwarp();
      if (threadIdx.x % WARP == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(empty)) : "memory");
    }
  }
  out[threadIdx.x] = sum;
#endif
}

/* in order, several times: one warp waits for what the others write, and they for it to have read that */
__global__ void arrive(int *out, const int *) {
  __shared__ int tile[THREADS];
  int sum = 0;
  for (int run = 0; run < 16; run++) {
    if (threadIdx.x < 32) {
      asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
      for (int i = 32; i < THREADS; i++) sum += tile[i];
      asm volatile("bar.arrive 2, %0;" ::"n"(THREADS) : "memory");
    } else {
      tile[threadIdx.x] = run;
      asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
      asm volatile("bar.sync 2, %0;" ::"n"(THREADS) : "memory");
    }
  }
  out[threadIdx.x] = sum;
}

struct Turns {
  cudaGraphExec_t table[2];
  cudaStream_t how;
  int lingers;
  int entries;
  int taken;
  int all;
  /* pinned: the host's flag, and the turns taken for it to see; null: `all` of them */
  volatile int *stop;
};

/* Launches `graph` from one thread of a block as large as the kernels': synccheck takes the launching kernel's block
 * size for that of what it launches. */
__global__ void launch_once(cudaGraphExec_t graph, cudaStream_t how) {
  if (threadIdx.x == 0) {
    cudaGraphLaunch(graph, how);
  }
}

/* One thread's own cell of shared memory, for a while. */
__device__ void linger() {
  __shared__ volatile int cell;
  for (int i = 0; i < 2000; i++) {
    cell = i;
    while (cell != i) {
    }
  }
}

__global__ void launch_next(Turns *turns) {
  cudaGridDependencySynchronize();
  if (threadIdx.x != 0) {
    return;
  }
  int taken = ++turns->taken;
  if (turns->stop) {
    turns->stop[1] = taken;
  }
  if (turns->stop ? !turns->stop[0] : taken < turns->all) {
    cudaGraphLaunch(turns->table[taken % turns->entries], turns->how);
  }
  if (turns->lingers) {
    linger();
  }
}

template <typename Launch> cudaGraphExec_t captured(cudaStream_t stream, bool for_device, Launch launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, for_device ? cudaGraphInstantiateFlagDeviceLaunch : 0));
  if (for_device) {
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
  return exec;
}

int main(int argc, char **argv) {
  if (argc < 3 || argc > 5) {
    std::fprintf(stderr, "usage: sanitizer_faults none|ring|arrive|memcheck|racecheck|initcheck|synccheck LAUNCH [TURNS [KERNELS]]\n");
    return 2;
  }
  const char *fault = argv[1], *way = argv[2];
  void (*kernel)(int *, const int *) = none;
  if (!std::strcmp(fault, "ring")) kernel = ring;
  if (!std::strcmp(fault, "arrive")) kernel = arrive;
  if (!std::strcmp(fault, "memcheck")) kernel = memcheck;
  if (!std::strcmp(fault, "racecheck")) kernel = racecheck;
  if (!std::strcmp(fault, "initcheck")) kernel = initcheck;
  if (!std::strcmp(fault, "synccheck")) kernel = synccheck;
  auto is = [&](const char *name) { return !std::strcmp(way, name); };
  bool overlaps = is("overlap") || is("self") || is("poll"), siblings = is("sibling") || is("beside");

  cudaStream_t stream;
  int *out, *unwritten;
  volatile int *flag;
  Turns turns = {};
  Turns *device_turns;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&out, THREADS * sizeof(int)));
  CHECK(cudaMalloc(&unwritten, THREADS * sizeof(int)));
  if (kernel == ring) CHECK(cudaMemset(unwritten, 0, THREADS * sizeof(int)));
  CHECK(cudaMalloc(&device_turns, sizeof turns));
  CHECK(cudaHostAlloc((void **)&flag, 2 * sizeof(int), cudaHostAllocMapped));
  flag[0] = flag[1] = 0;
  turns.all = argc > 3 ? std::atoi(argv[3]) : 100;
  int kernels = argc > 4 ? std::atoi(argv[4]) : 1;
  turns.entries = is("again") || is("self") ? 1 : is("table") || siblings || overlaps ? 2 : 0;
  turns.how = siblings ? cudaStreamGraphFireAndForgetAsSibling : cudaStreamGraphTailLaunch;
  turns.lingers = is("beside");
  turns.stop = is("poll") ? flag : nullptr;

  auto work = [&] {
    for (int i = 0; i < kernels; i++) {
      kernel<<<1, THREADS, 0, stream>>>(out, unwritten);
    }
    if (turns.entries > 0) {
      cudaLaunchAttribute early;
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = 1;
      config.blockDim = THREADS;
      config.stream = stream;
      config.attrs = &early;
      config.numAttrs = overlaps ? 1 : 0;
      CHECK(cudaLaunchKernelEx(&config, launch_next, device_turns));
    }
  };
  cudaGraphExec_t first = captured(stream, !is("host"), work);
  if (turns.entries > 0) {
    turns.table[0] = first;
    turns.table[1] = captured(stream, true, work);
    CHECK(cudaMemcpy(device_turns, &turns, sizeof turns, cudaMemcpyHostToDevice));
  }
  if (is("tail") || is("forget") || siblings) {
    cudaStream_t how = is("tail") ? cudaStreamGraphTailLaunch : cudaStreamGraphFireAndForget;
    first = captured(stream, true, [&] { launch_once<<<1, THREADS, 0, stream>>>(first, how); });
  }
  CHECK(cudaGraphLaunch(first, stream));
  if (turns.stop) {
    while (flag[1] < turns.all && cudaStreamQuery(stream) == cudaErrorNotReady) {
    }
    flag[0] = 1;
  }
  CHECK(cudaStreamSynchronize(stream));
  int found[THREADS];
  CHECK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
  if (kernel == none) {
    for (int i = 0; i < THREADS; i++) {
      if (found[i] != THREADS - 1 - i) {
        std::fprintf(stderr, "element %d is %d: the graph did not run\n", i, found[i]);
        return 1;
      }
    }
  }
  return 0;
}
