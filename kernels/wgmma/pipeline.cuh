/* pipeline.cuh: stages of shared memory through which producer warps hand operands to consumer warps.
 *
 *   role     | waits on                            | signals
 *   producer | acquire(): the stage's empty barrier | its full barrier: expect() the bytes that copies bring, and by the copies' arrival
 *   consumer | wait(): the stage's full barrier     | release(): its empty barrier
 *
 * A pipeline goes on from tile to tile: nothing drains it in between. Each role has a copy of the struct, and walks on by itself.
 * With MULTICAST blocks of a cluster filling each other's stages, a stage is empty once the consumers of all of them released theirs.
 */
#pragma once

#include "common/wgmma.cuh"

/* Stages of a pipeline, as the kernel was compiled, or 0 where a launch says how many. */
template <uint32_t STAGES>
struct StageCount {
  static constexpr uint32_t count = STAGES;
};
template <>
struct StageCount<0> {
  uint32_t count;
};

template <uint32_t STAGES = 0, uint32_t MULTICAST = 1>
struct Pipeline : StageCount<STAGES> {
  char *stages;
  uint64_t *full, *empty;  /* barriers, one a stage each */
  uint32_t at = 0, parity = 0;

  Pipeline() = default;
  __device__ inline Pipeline(char *stages_, uint64_t *full_, uint64_t *empty_) : stages(stages_), full(full_), empty(empty_) {}

  /* One thread: arrivals that a phase of each barrier takes, of the stages' consumers in one block. */
  __device__ inline void init(uint32_t producers, uint32_t consumers) const {
    for (uint32_t s = 0; s < this->count; s++) barrier_init(full + s, producers), barrier_init(empty + s, MULTICAST * consumers);
  }

  __device__ inline void next() {
    if (++at == this->count) at = 0, parity ^= 1;
  }
  /* next(), `stages_` times, at most all: it waits for none. */
  __device__ inline void advance(uint32_t stages_) {
    at += stages_;
    if (at >= this->count) at -= this->count, parity ^= 1;
  }

  __device__ inline void acquire() const { barrier_wait(empty + at, parity ^ 1); }
  __device__ inline void expect(uint32_t bytes) const { barrier_arrive_expecting(full + at, bytes); }
  __device__ inline uint64_t *arrivals() const { return full + at; }
  __device__ inline void wait() const { barrier_wait(full + at, parity); }
  /* One thread of those that count as a consumer. */
  __device__ inline void release(uint32_t stage) const {
    if constexpr (MULTICAST == 1) {
      barrier_arrive(empty + stage);
    } else {
#pragma unroll
      for (uint32_t block = 0; block < MULTICAST; block++) barrier_arrive_at_block(empty + stage, block);
    }
  }
  /* A producer that has issued its last copy: until all stages are empty. Then every arrival from the cluster's blocks has come, of which
   * a barrier of the cluster knows nothing, and this one may end. */
  __device__ inline void drain() {
#pragma unroll 1
    for (uint32_t s = 0; s < this->count; s++, next()) acquire();
  }
};
