/* pair.h: a step over two GPUs, to compare ways of handing rows from one to the other with. A row is TG_PAIR_ROW_WORDS words of two
 * bf16 each.
 *
 * Handed on:   GPU 0  rows[i] = word(token, 0, i)
 *              GPU 1  token = mix64(token + sum over i of mix64(i << 32 | rows[i])), which goes back to GPU 0
 * Reduced:     both   rows[i] = word(token, GPU, i); rows = rows of GPU 0 + rows of GPU 1, each bf16 rounded once;
 *                     token as above
 *
 * So every step needs what the one before gave, and rows that are missing, late or of another step show in the token. The
 * additions are of integers, but for one bf16 sum of two, which has one right answer: every way gives the same bits.
 * profiles/lab/handover/step.rs says the same in Rust.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* 2048 bf16. */
#define TG_PAIR_ROW_WORDS 1024
/* A thread has 4 words of a row. */
#define TG_PAIR_THREADS 256
/* Blocks at most, so that all of them are on the GPU at once; more rows go round. */
#define TG_PAIR_BLOCKS 64
/* Words of a flag, which has a cache line to itself. */
#define TG_PAIR_FLAG_WORDS 16
/* Steps whose ends are kept, the newest. */
#define TG_PAIR_STAMPS 1024

/* What a GPU waited for in vain, or was refused. */
enum {
  TG_PAIR_FINE = 0,
  TG_PAIR_ROWS = 1,   /* rows of the other GPU */
  TG_PAIR_TOKEN = 2,  /* the other GPU's token */
  TG_PAIR_REDUCE = 3, /* the other GPU's part of a sum */
  TG_PAIR_AGAIN = 4,  /* the tail launch of the graph that runs */
};

/* One GPU's. */
typedef struct {
  uint64_t step;  /* steps done by this GPU; the first word, which the tests' driver reads */
  uint64_t limit; /* no step begins once so many are done */
  uint64_t token;
  uint64_t sum;    /* of the step that runs */
  uint64_t stamps; /* u64 [TG_PAIR_STAMPS]: when step s ended, at s % TG_PAIR_STAMPS */
  uint64_t told;   /* u64 in pinned memory: steps done */
  uint64_t limit_ns; /* of a wait */
  uint32_t gpu, rows;
  uint32_t blocks_done; /* of the kernel that runs */
  /* The first failure; what came later is of it. */
  uint32_t failed;
  uint32_t error; /* cudaError_t */
  uint32_t block;
} tg_pair;
