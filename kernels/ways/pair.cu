// build: rdc
/* pair.cu: a step over two GPUs, to compare ways of handing rows from one to the other with. A row is words of two bf16 each.
 *
 * Handed on:   GPU 0  rows[i] = word(token, 0, i)
 *              GPU 1  token = mix64(token + sum over i of mix64(i << 32 | rows[i])), which goes back to GPU 0
 * Reduced:     both   rows[i] = word(token, GPU, i); rows = rows of GPU 0 + rows of GPU 1, each bf16 rounded once;
 *                     token as above
 *
 * So rows that are missing or of another step show in the token. profiles/lab/handover/step.rs says the same in Rust.
 *
 * Rows are handed on by stores into the other GPU's memory and a flag that is released behind them. A flag counts steps, so that nobody
 * has to clear it. A GPU hands on what it has of a step once it has all of the step before: what it stores over has been read by then.
 * In a sum both are under way at once, so there the rows come to two places by turns.
 *
 * Bound: the link's latency, then its bandwidth. Launch: block = TG_PAIR_THREADS, grid = the rows, TG_PAIR_BLOCKS at most; or 1 and 1.
 */
#include "common/base.cuh"
#include "common/launch.cuh"
#include "sched/platform.h"
#include "ways/step.cuh"

#define TG_PAIR_ROW_WORDS 1024  /* 2048 bf16 */
#define TG_PAIR_THREADS 256  /* a thread has 4 words of a row */
#define TG_PAIR_BLOCKS 64  /* blocks at most, so that all of them are on the GPU at once; more rows go round */
#define TG_PAIR_FLAG_WORDS 16  /* words of a flag, which has a cache line to itself */

/* What a GPU waited for in vain, or was refused, in ways.failure; its count is the block. */
enum {
  TG_PAIR_ROWS = 1,   /* rows of the other GPU */
  TG_PAIR_TOKEN = 2,  /* the other GPU's token */
  TG_PAIR_REDUCE = 3, /* the other GPU's part of a sum */
  TG_PAIR_AGAIN = 4,  /* the tail launch of the graph that runs */
};

/* One GPU's. */
typedef struct {
  tg_ways ways;      /* its steps, and the token as their digest; the tests' driver reads its first words */
  uint64_t sum;      /* of the step that runs */
  uint64_t limit_ns; /* of a wait */
  uint32_t gpu, rows;
  uint32_t blocks_done; /* of the kernel that runs */
  uint32_t pad;
} tg_pair;

constexpr uint32_t PAIR_LOOKS = 256;  /* at the word between two looks at the clock */

/* One thread: waits until the other GPU has released `goal`. Whether it did in time. */
__device__ inline bool pair_await(tg_pair *pair, const uint64_t *flag, uint64_t goal, uint32_t what) {
  const uint64_t start = ways_now_ns(), limit_ns = pair->limit_ns;
  do {
    for (uint32_t look = 0; look < PAIR_LOOKS; look++)
      if (tg_acquire(flag) >= goal) return true;
  } while (ways_now_ns() - start <= limit_ns);
  ways_fail(&pair->ways, what, 0, blockIdx.x);
  return false;
}

/* All threads of a block, of a kernel whose blocks come here once each: whether it is the last one. It sees what the others wrote. */
__device__ inline bool pair_last_block(tg_pair *pair) {
  __shared__ uint32_t done;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    done = atomicAdd(&pair->blocks_done, 1u);
    if (done == gridDim.x - 1) {
      __threadfence_system();
      pair->blocks_done = 0;
    }
  }
  __syncthreads();
  return done == gridDim.x - 1;
}

/* A number by 16 bits that say which: whole, from -128 to 127, doubled up to 7 times. */
__device__ inline float pair_number(uint32_t bits) { return (float)(((int32_t)(bits & 0xff) - 128) * (1 << (bits >> 8 & 7))); }

__device__ inline uint32_t pair_word(uint64_t token, uint32_t gpu, uint32_t i) {
  const uint32_t bits = mix((uint32_t)token + i * 0x9e3779b9u + gpu * 0x7feb352du);
  return pack2<__nv_bfloat16>(pair_number(bits & 0xffff), pair_number(bits >> 16));
}

/* The sum of two words of two bf16. Two bf16 have a sum whose f32 rounding changes nothing of that to bf16. */
__device__ inline uint32_t pair_sum(uint32_t a, uint32_t b) {
  const float2 x = unpack2<__nv_bfloat16>(a), y = unpack2<__nv_bfloat16>(b);
  return pack2<__nv_bfloat16>(x.x + y.x, x.y + y.y);
}

/* A thread's share of a row, in words. */
struct alignas(16) PairPart {
  uint32_t word[4];
};

__device__ inline PairPart *pair_part(uint32_t *rows, uint32_t row) {
  return reinterpret_cast<PairPart *>(rows + (size_t)row * TG_PAIR_ROW_WORDS) + threadIdx.x;
}

/* Past the first-level cache: another GPU may have written it. */
__device__ inline PairPart pair_read(const uint32_t *rows, uint32_t row) {
  const uint4 *at = reinterpret_cast<const uint4 *>(rows + (size_t)row * TG_PAIR_ROW_WORDS) + threadIdx.x;
  const uint4 found = __ldcg(at);
  return {{found.x, found.y, found.z, found.w}};
}

/* A block's rows, to another place. */
__device__ inline void pair_copy(uint32_t *to, const uint32_t *from, uint32_t rows) {
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) *pair_part(to, row) = pair_read(from, row);
}

/* One thread: the step is over. False where no other may begin. */
__device__ inline bool pair_end(tg_pair *pair) {
  if (__ldcg(&pair->ways.failure.what) != TG_WAYS_FINE) return false;
  ways_end(&pair->ways, __ldcg(&pair->ways.step) + 1);
  return !ways_over(&pair->ways);
}

/* For the host, which has the struct of its own. */
LAUNCH_CONSTANTS(tg_pair_layout_tile, 4, sizeof(tg_pair), offsetof(tg_pair, ways.digest), offsetof(tg_pair, gpu),
                 offsetof(tg_pair, ways.failure))

/* What the step begins with: to[rows]. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS) tg_pair_rows(const tg_pair *pair, uint32_t *to) {
  const uint64_t token = __ldcg(&pair->ways.digest);
  const uint32_t rows = pair->rows, gpu = pair->gpu;
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint32_t first = row * TG_PAIR_ROW_WORDS + threadIdx.x * 4;
    PairPart part;
    for (uint32_t i = 0; i < 4; i++) part.word[i] = pair_word(token, gpu, first + i);
    *pair_part(to, row) = part;
  }
}

/* The next token, of from[rows]. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS) tg_pair_digest(tg_pair *pair, const uint32_t *from) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  const uint32_t rows = pair->rows;
  uint64_t mine = 0;
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const PairPart part = pair_read(from, row);
    const uint32_t first = row * TG_PAIR_ROW_WORDS + threadIdx.x * 4;
    for (uint32_t i = 0; i < 4; i++) mine += mix64((uint64_t)(first + i) << 32 | part.word[i]);
  }
  atomicAdd(&sum, (unsigned long long)mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd((unsigned long long *)&pair->sum, sum);
  if (!pair_last_block(pair) || threadIdx.x != 0) return;
  pair->ways.digest = mix64(pair->ways.digest + __ldcg(&pair->sum));
  pair->sum = 0;
}

/* The step is over on this GPU. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_end(tg_pair *pair) { pair_end(pair); }

#ifdef __CUDACC__
/* The same, as the last node of a graph for the device, which begins the next step by itself. That graph waits for the other GPU's part
 * before it has been handed on: no launch stands between them. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_end_again(tg_pair *pair) {
  if (!pair_end(pair)) return;
  const cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
  if (error != cudaSuccess) ways_fail(&pair->ways, TG_PAIR_AGAIN, error, 0);
}
#endif

/* Stores from[rows] into the other GPU's memory, and releases its flag behind them. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS)
    tg_pair_put(tg_pair *pair, uint32_t *to, const uint32_t *from, uint64_t *flag) {
  if (ways_over(&pair->ways)) return;
  pair_copy(to, from, pair->rows);
  if (pair_last_block(pair) && threadIdx.x == 0) tg_release(flag, pair->ways.step + 1);
}

/* The token, the same way. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_put_token(tg_pair *pair, tg_pair *to, uint64_t *flag) {
  if (ways_over(&pair->ways)) return;
  tg_store(&to->ways.digest, pair->ways.digest);
  tg_release(flag, pair->ways.step + 1);
}

/* Waits for what the other GPU hands on in this step: rows, or a token. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_take_rows(tg_pair *pair, const uint64_t *flag) {
  if (!ways_over(&pair->ways)) pair_await(pair, flag, pair->ways.step + 1, TG_PAIR_ROWS);
}
extern "C" __global__ void __launch_bounds__(1) tg_pair_take_token(tg_pair *pair, const uint64_t *flag) {
  if (!ways_over(&pair->ways)) pair_await(pair, flag, pair->ways.step + 1, TG_PAIR_TOKEN);
}

/* rows[rows] on both GPUs: the sum of both, in one go. A block stores its rows into `theirs`, the other GPU's memory, waits for the
 * same rows of the other GPU in `mine`, and adds both, those of GPU 0 first. Each block has a flag, so that it waits for one other
 * block alone. mine, theirs[2, rows]: by turns, since the other GPU may begin the next step before this one has read its rows; it
 * cannot end that one without this GPU's part, so two are enough. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS)
    tg_pair_reduce(tg_pair *pair, uint32_t *rows, const uint32_t *mine, uint32_t *theirs, const uint64_t *my_flags,
                   uint64_t *their_flags) {
  if (ways_over(&pair->ways)) return;
  const uint32_t count = pair->rows, gpu = pair->gpu;
  const uint64_t step = pair->ways.step;
  const size_t place = (size_t)(step % 2) * count * TG_PAIR_ROW_WORDS, flag = (size_t)blockIdx.x * TG_PAIR_FLAG_WORDS;
  pair_copy(theirs + place, rows, count);
  __syncthreads();
  bool there = true;
  if (threadIdx.x == 0) {
    __threadfence_system();
    tg_release(their_flags + flag, step + 1);
    there = pair_await(pair, my_flags + flag, step + 1, TG_PAIR_REDUCE);
  }
  if (!__syncthreads_and(there)) return;
  for (uint32_t row = blockIdx.x; row < count; row += gridDim.x) {
    const PairPart own = pair_read(rows, row), other = pair_read(mine + place, row);
    PairPart sum;
    for (uint32_t i = 0; i < 4; i++)
      sum.word[i] = gpu == 0 ? pair_sum(own.word[i], other.word[i]) : pair_sum(other.word[i], own.word[i]);
    *pair_part(rows, row) = sum;
  }
}
