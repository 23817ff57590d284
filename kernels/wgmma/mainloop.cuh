/* mainloop.cuh: a consumer warpgroup's products over k-blocks, a stage of the pipeline each; of weight rows as M or as N, or of those in 8
 * bits, which are M.
 *
 * The tensor cores truncate as they accumulate. Rows of 16 bits are summed in one accumulator (direct). With f32 rows as bf16x3 a k-block
 * has accumulators of its own, which are then added with rounding: without that the error grows with K.
 */
#pragma once

#include "wgmma/fragments.cuh"
#include "wgmma/pipeline.cuh"

/* Fragment i of accumulators, 8 columns of D of which a thread has four sums (common/wgmma.cuh). */
template <int N>
__device__ inline float4 fragment(const float (&acc)[N], uint32_t i) {
  return make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
}

/* Issues one k-block's products of two gmma_operand()s, added to what acc was if `add`. */
template <typename W, int N>
__device__ inline void multiply_k_block(float (&acc)[N / 2], uint32_t m, uint32_t n, bool add) {
  static_assert(GMMA_K * sizeof(W) == GMMA_ROW_BYTES, "elements of 16 bits");
  constexpr bool IN_BLOCKS = std::is_same_v<W, E4m3x2>;
#pragma unroll
  for (uint32_t k = 0; k < GMMA_K / 16; k++) gmma<W, N>(acc, m + 2 * k, n + (IN_BLOCKS ? gmma_blocks_further(k) : 2 * k), add || k > 0);
}

/* `steps` k-blocks, at least one. issue(stage, step) issues a k-block's products; done(stage, step) is called once nothing reads
 * them any more: after the next k-block's issue, or, where stages are prepared(stage) by the consumers themselves, before it. */
template <bool PREPARES, class Pipe, class Prepare, class Issue, class Done>
__device__ inline void mainloop(Pipe &pipe, uint32_t full, uint32_t steps, Prepare prepare, Issue issue, Done done) {
  uint32_t before = 0;
#pragma unroll 1
  for (uint32_t s = 0; s < steps; s++) {
    barrier_wait(full + pipe.at * (uint32_t)sizeof(uint64_t), pipe.parity);
    if constexpr (PREPARES) {
      prepare(pipe.at);
      if (s > 0) gmma_wait<0>(), done(before, s - 1);
    }
    gmma_fence();
    issue(pipe.at, s);
    gmma_commit();
    if (!PREPARES && s > 0) gmma_wait<1>(), done(before, s - 1);
    before = pipe.at;
    pipe.next();
  }
  gmma_wait<0>();
  done(before, steps - 1);
}

/* The same of weights in 8 bits, of which a warp has OPERANDS (1 or 2) times 16 rows: while the products of one operand of a k-block are under way the
 * fragments of the next one are made, the next k-block is waited for, and the words of all of its operands are loaded. words(stage, operand) loads
 * them; issue(a, stage, operand, step) issues a gmma_fence(), the products and a gmma_commit(): if that stood behind branches of issue(), the
 * compiler would add a group without products, and gmma_wait<1>() would wait for those that have just been issued.
 *
 * One warp's chain of instructions bounds it, since a quarter of an SM has only two such warps. So the integer instructions go to two pipes
 * (small_bf16_of_e4m3), and the stage is of_warp(), which leaves operands' addresses to uniform registers. */
template <uint32_t OPERANDS, class Pipe, class Words, class Issue, class Done>
__device__ inline void mainloop_fragments(Pipe &pipe, uint32_t full, uint32_t steps, Words words, Issue issue, Done done) {
  constexpr uint32_t TURN = 2 / OPERANDS;  /* k-blocks */
  uint32_t a[2][4][4], before = 0, here = 0;
  const uint32_t sixteen = kept(16 * gridDim.z);  /* 16, which ptxas does not know: no launch has a grid of three dimensions */
  auto barrier = [&] { return full + pipe.at * (uint32_t)sizeof(uint64_t); };
  barrier_wait(barrier(), pipe.parity);
  E4m3Words held[OPERANDS];
  auto load = [&] {
#pragma unroll
    for (uint32_t operand = 0; operand < OPERANDS; operand++) held[operand] = words(pipe.at, operand);
  };
  load();
  auto multiply = [&](uint32_t (&fragments)[4][4], uint32_t step, uint32_t operand) {
    const bool begins = operand == 0, ends = operand + 1 == OPERANDS, more = step + 1 < steps;
    bool is_there = false;
    if (begins) {
      here = of_warp(pipe.at), pipe.next();
      is_there = barrier_passed(barrier(), pipe.parity);
    }
    held[operand].fragments(fragments, sixteen);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) gmma_settle(fragments[k]);
    issue(fragments, here, operand, step);
    /* The branch also keeps the compiler from making fragments between the instructions, which follow each other at once so. */
    if (begins && more) barrier_wait_unless(is_there, barrier(), pipe.parity);
    if (ends && more) load();
    gmma_wait<1>();  /* those before have ended: their fragments may be written over */
    if (begins && step > 0) done(before, step - 1);
    if (ends) before = here;
  };
  uint32_t s = 0;
#pragma unroll 1
  for (; s + TURN <= steps; s += TURN) multiply(a[0], s, 0), multiply(a[1], s + TURN - 1, OPERANDS - 1);
  if (TURN == 2 && s < steps) multiply(a[0], s, 0);
  gmma_wait<0>();
  done(before, steps - 1);
}

/* The same by halves, for few registers: half a k-block's fragments become bf16 while the products of those before run. weights(stage) are the packed
 * blocks of this warp's 16 weight rows; rows(stage) is the gmma_operand() of batch rows, for which it may wait. issue(a, rows, add) issues a
 * gmma_fence() and the products of two instructions, added to what the accumulators were if `add`. The accumulators sum over all
 * k-blocks or, if EACH, over one, whose products have ended before done(). */
template <bool EACH, class Pipe, class Weights, class Rows, class Issue, class Done>
__device__ inline void mainloop_e4m3(Pipe &pipe, uint32_t full, uint32_t steps, Weights weights, Rows rows, Issue issue, Done done) {
  uint32_t held[2][2][4] = {}, before = 0;
  E4m3Words words;
  auto wait = [&] { barrier_wait(full + pipe.at * (uint32_t)sizeof(uint64_t), pipe.parity); };
  auto multiply = [&](uint32_t half, uint32_t operand, bool add) {
    issue(held[half], operand + 4 * half, add);
    gmma_commit();
  };
  /* Until all but the last half that was issued have ended. */
  auto settle = [&](uint32_t half) {
    gmma_wait<1>();
    gmma_settle(held[half][0]), gmma_settle(held[half][1]);
  };
  wait();
  words = E4m3Words::load(weights(pipe.at));
  uint32_t operand = rows(pipe.at);
  words.half<0>(held[0]);
#pragma unroll 1
  for (uint32_t s = 0; s < steps; s++) {
    const uint32_t here = pipe.at;
    multiply(0, operand, !EACH);
    settle(1);
    if (!EACH && s > 0) done(before, s - 1);
    words.half<1>(held[1]);
    before = here;
    pipe.next();
    const bool more = s + 1 < steps;
    E4m3Words next;
    if (more) {
      wait();
      next = E4m3Words::load(weights(pipe.at));
    }
    multiply(1, operand, true);
    if (!more) break;
    operand = rows(pipe.at);
    settle(0);
    words = next;
    words.half<0>(held[0]);
    if (EACH) gmma_wait<0>(), done(before, s);
  }
  gmma_wait<0>();
  done(before, steps - 1);
}

/* acc += part, of which a part is an operand's rows of bf16x3 side by side: the smallest are added first. */
template <int N>
__device__ inline void add_bf16x3(float (&acc)[N], const float (&part)[3 * N]) {
#pragma unroll
  for (int i = 0; i < N; i++) acc[i] += part[i] + (part[N + i] + part[2 * N + i]);
}
