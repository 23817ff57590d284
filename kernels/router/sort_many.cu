// build: sm_90a
/* sort_many.cu: the token sort (router/sort.cuh) of steps with more than 1,024 rows, by the blocks of a cluster, each of which has an equal
 * run of the pairs. They send each other how many pairs of each expert they have; what they write is what one block writes.
 *
 * Bound: latency, and the stores of rows[place]: 32 sectors a warp, one a cycle and SM, of which one block at 8,192 rows has
 * 32,768. Measured in the model on an H200, 8,192 rows of four experts: 8.3 us, one block 32.
 *
 * Launch: one cluster of up to SORT_BLOCKS blocks of SORT_THREADS. Needs sm_90a.
 */
#include "common/pdl.cuh"
#include "common/wgmma.cuh"
#include "router/sort.cuh"

[[maybe_unused]] constexpr uint32_t SORT_BLOCKS = TG_SORT_BLOCKS;

/* The counts that the blocks of a cluster send each other. */
struct SortTogether {
  float (*counts)[MAX_EXPERTS];  /* [SORT_BLOCKS], in this block's shared memory: bits of the pairs that each block has */
  uint64_t *summed;                /* expects all of them */

  static __device__ inline uint32_t rank() { return cluster_rank(); }
  static __device__ inline uint32_t blocks() { return cluster_blocks(); }
  /* One thread, before all blocks arrive. */
  __device__ inline void init() const {
    barrier_init(summed, 1);
    barriers_ready();
    barrier_arrive_expecting(summed, blocks() * MAX_EXPERTS * sizeof(float));
  }
  __device__ inline uint32_t sum(uint32_t expert, uint32_t own) const {
    for (uint32_t b = 0; b < blocks(); b++) store_to_block(&counts[rank()][expert], b, __uint_as_float(own), summed);
    barrier_wait_cluster(summed, 0);
    return sum_of(expert, blocks());
  }
  __device__ inline uint32_t before(uint32_t expert) const { return sum_of(expert, rank()); }

 private:
  __device__ inline uint32_t sum_of(uint32_t expert, uint32_t first_blocks) const {
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t b = 0; b < SORT_BLOCKS; b++) sum += b < first_blocks ? __float_as_uint(counts[b][expert]) : 0;
    return sum;
  }
};

__device__ inline void sort_together(const tg_sort_tokens_args &a) {
  __shared__ SortScratch scratch;
  __shared__ float counts[SORT_BLOCKS][MAX_EXPERTS];
  __shared__ uint64_t summed;
  const SortTogether blocks{counts, &summed};
  let_next_kernel_start();
  if (threadIdx.x == 0) blocks.init();
  __syncthreads();
  cluster_arrive();
  const uint32_t row_count = __ldcg(&a.step->rows);
  wait_for_earlier_kernels();
  cluster_wait();  /* all blocks have their barriers */
  sort_pairs(scratch, a, row_count, blocks);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) tg_sort_tokens_many(const tg_sort_tokens_args a) {
  sort_together(a);
}
