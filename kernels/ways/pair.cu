/* pair.cu: the kernels of a step over two GPUs (pair.h), and what hands rows on without help: stores into the other GPU's memory,
 * and a flag that is released behind them.
 *
 * A flag counts steps, so that nobody has to clear it. A GPU hands on what it has of a step once it has all of the step before:
 * what it stores over has been read by then. In a sum both are under way at once, so there the rows come to two places by turns.
 * No wait is without an end.
 *
 * Bound: the link's latency, then its bandwidth. Launch: block = TG_PAIR_THREADS, grid = the rows, TG_PAIR_BLOCKS at most; or 1 and 1.
 */
#include "common/launch.cuh"
#include "ways/pair.cuh"

/* For the host, which has the struct of its own. */
LAUNCH_CONSTANTS(tg_pair_layout_tile, 4, sizeof(tg_pair), offsetof(tg_pair, token), offsetof(tg_pair, gpu),
                 offsetof(tg_pair, failed))

/* What the step begins with: to[rows]. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS) tg_pair_rows(const tg_pair *pair, uint32_t *to) {
  const uint64_t token = __ldcg(&pair->token);
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
    for (uint32_t i = 0; i < 4; i++) mine += ways_mix64((uint64_t)(first + i) << 32 | part.word[i]);
  }
  atomicAdd(&sum, (unsigned long long)mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd((unsigned long long *)&pair->sum, sum);
  if (!pair_last_block(pair) || threadIdx.x != 0) return;
  pair->token = ways_mix64(pair->token + __ldcg(&pair->sum));
  pair->sum = 0;
}

/* The step is over on this GPU. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_end(tg_pair *pair) { pair_end(pair); }

/* Stores from[rows] into the other GPU's memory, and releases its flag behind them. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS)
    tg_pair_put(tg_pair *pair, uint32_t *to, const uint32_t *from, uint64_t *flag) {
  if (pair_over(pair)) return;
  pair_copy(to, from, pair->rows);
  if (pair_last_block(pair) && threadIdx.x == 0) tg_release(flag, pair->step + 1);
}

/* The token, the same way. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_put_token(tg_pair *pair, tg_pair *to, uint64_t *flag) {
  if (pair_over(pair)) return;
  tg_store(&to->token, pair->token);
  tg_release(flag, pair->step + 1);
}

/* Waits for what the other GPU hands on in this step: rows, or a token. */
extern "C" __global__ void __launch_bounds__(1) tg_pair_take_rows(tg_pair *pair, const uint64_t *flag) {
  if (!pair_over(pair)) pair_await(pair, flag, pair->step + 1, TG_PAIR_ROWS);
}
extern "C" __global__ void __launch_bounds__(1) tg_pair_take_token(tg_pair *pair, const uint64_t *flag) {
  if (!pair_over(pair)) pair_await(pair, flag, pair->step + 1, TG_PAIR_TOKEN);
}

/* rows[rows] on both GPUs: the sum of both, in one go. A block stores its rows into `theirs`, the other GPU's memory, waits for the
 * same rows of the other GPU in `mine`, and adds both, those of GPU 0 first. Each block has a flag, so that it waits for one other
 * block alone. mine, theirs[2, rows]: by turns, since the other GPU may begin the next step before this one has read its rows; it
 * cannot end that one without this GPU's part, so two are enough. */
extern "C" __global__ void __launch_bounds__(TG_PAIR_THREADS)
    tg_pair_reduce(tg_pair *pair, uint32_t *rows, const uint32_t *mine, uint32_t *theirs, const uint64_t *my_flags,
                   uint64_t *their_flags) {
  if (pair_over(pair)) return;
  const uint32_t count = pair->rows, gpu = pair->gpu;
  const uint64_t step = pair->step;
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
