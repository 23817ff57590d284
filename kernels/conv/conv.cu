/* conv.cu: the short causal convolution of a conv layer, depthwise, with each slot's state.
 *
 *   u[p,c] = B[p,c] X[p,c]                                          rounded to the operand type
 *   x[r,c] = C[r,c] (sum_j W[c,j] u[p-(L-1)+j, c] + bias[c])        p the row's position; u is 0 before position 0
 *
 * B, C, X are the thirds of bcx[R,3H]. Columns of u from before the step come from the slot's state [slots,L-1,H], oldest first; later
 * ones from the rows themselves, which are consecutive in a sequence. u is rounded in both cases, so a row's bits do not depend on where
 * its prompt was cut. The last L-1 columns become the new state.
 *
 * tg_conv_decode_*: a decode row is the only one of its slot in the step, so the thread that read the old columns writes the new. Most
 * decode steps have this in their in-projection's kernel (swap_ab/conv.cuh, persistent/conv.cuh).
 * tg_conv_rows_*: steps with prompts and three taps, which all published models have. A thread has CONV_ROWS consecutive rows and loads all
 * that they need at once; each row's u is made once for the three rows that it is part of. Only a chunk's first two rows read the state.
 * The thread that has the first does both, even where the second is the next thread's, and then moves the state. What the next thread reads of
 * the state meanwhile goes into no result.
 * tg_conv_*: the same of any number of taps, a row a thread.
 *
 * Bound: memory, about 4H sizeof(x) bytes a row: 29 us of 8,000 rows on an H200, by hand; measured in a step: 39.5
 * (profiles/log/prompts.md).
 *
 * Launch: grid = (rows of the bucket, H / (4 CONV_THREADS) rounded up); of tg_conv_rows_* a CONV_ROWS-th of the rows, rounded up. Rows
 * past the step's leave x and the state alone.
 */
#include "common/base.cuh"
#include "common/launch.cuh"
#include "common/pdl.cuh"
#include "conv/args.h"

constexpr int CONV_THREADS = TG_CONV_THREADS;
constexpr int CONV_ROWS = TG_CONV_ROWS, CONV_TAPS = TG_CONV_TAPS;

/* sum += u times a tap of each of four channels, whose taps lie `length` from each other. */
__device__ inline void add_tap(float4 &sum, const float *tap, uint32_t length, float4 u) {
  sum.x = fmaf(tap[0], u.x, sum.x), sum.y = fmaf(tap[length], u.y, sum.y);
  sum.z = fmaf(tap[2 * length], u.z, sum.z), sum.w = fmaf(tap[3 * length], u.w, sum.w);
}

/* u of row r, channels c .. c + 3, rounded to T. */
template <typename T>
__device__ inline float4 column(const T *bcx, uint32_t r, uint32_t c, uint32_t hidden) {
  const T *row = bcx + (size_t)r * 3 * hidden + c;
  float4 b = load4(row), x = load4(row + 2 * hidden);
  Raw4<T> u;
  store4(reinterpret_cast<T *>(&u), make_float4(b.x * x.x, b.y * x.y, b.z * x.z, b.w * x.w));
  return load4(u);
}

/* The state of a sequence, which this thread has channels c .. c+3 of, after the step: `columns` are the slot's, of those channels. They
 * move oldest first, and what is read lies at or past what is written. */
template <typename T>
__device__ inline void move_state(T *columns, const T *bcx, const tg_sequence &sequence, uint32_t c, uint32_t hidden, uint32_t length) {
  const uint32_t held = length - 1, last = sequence.first_row + sequence.rows - 1;
  for (uint32_t s = 0; s < held; s++) {
    const uint32_t back = held - 1 - s;  /* rows before the chunk's last */
    float4 u = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (back < sequence.rows) {
      u = column(bcx, last - back, c, hidden);
    } else if (back < sequence.first_position + sequence.rows) {
      u = load4(columns + (size_t)(s + sequence.rows) * hidden);
    }
    store4(columns + (size_t)s * hidden, u);
  }
}

/* With DECODE each row is a sequence. Else the thread of a chunk's first row also has the others that read the state, and then moves it. */
template <typename T, bool DECODE>
__device__ inline void short_conv(const tg_conv_args &a) {
  T *x = static_cast<T *>(a.x);
  const T *bcx = static_cast<const T *>(a.bcx);
  const float *taps = a.taps, *bias = a.bias;
  const tg_state *state = a.state;
  const tg_step *step = a.step;
  const uint32_t hidden = a.hidden, length = a.length;
  begin_kernel();
  const uint32_t r = blockIdx.x, c = 4 * (blockIdx.y * CONV_THREADS + threadIdx.x);
  if (r >= step->rows || c >= hidden) return;
  const tg_row row = table<tg_row>(state, step->row_table)[r];
  tg_sequence sequence{};
  if (!DECODE) sequence = table<tg_sequence>(state, step->sequence_table)[row.sequence];
  const uint32_t first = DECODE ? 0 : r - sequence.first_row;  /* in the chunk */
  if (!DECODE && first > 0 && first < length - 1) return;
  const uint32_t rows = DECODE || first > 0 ? 1 : min(sequence.rows, max(length, 2u) - 1);
  T *columns = static_cast<T *>(a.columns) + (size_t)row.slot * (length - 1) * hidden + c;
  for (uint32_t i = 0; i < rows; i++) {
    const uint32_t chunk_row = first + i, at = r + i;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t j = 0; j < length; j++) {
      const uint32_t back = length - 1 - j;  /* rows before this one */
      float4 u = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (back <= chunk_row) {
        u = column(bcx, at - back, c, hidden);
      } else if (back <= row.position + i) {
        /* the state's column s is position first - (L-1) + s, this one is first + chunk_row - back */
        u = load4(columns + (size_t)(chunk_row + j) * hidden);
      }
      if (DECODE && j > 0) store4(columns + (size_t)(j - 1) * hidden, u);
      add_tap(sum, taps + (size_t)c * length + j, length, u);
    }
    if (bias) {
      float4 b = load4(bias + c);
      sum = make_float4(sum.x + b.x, sum.y + b.y, sum.z + b.z, sum.w + b.w);
    }
    float4 gate = load4(bcx + (size_t)at * 3 * hidden + hidden + c);
    store4(x + (size_t)at * hidden + c, make_float4(gate.x * sum.x, gate.y * sum.y, gate.z * sum.z, gate.w * sum.w));
  }
  if (!DECODE && first == 0) move_state(columns, bcx, sequence, c, hidden, length);
}

/* short_conv() for CONV_ROWS rows with CONV_TAPS taps, with the same bits, and the state of the sequences that begin among them. */
template <typename T>
__device__ inline void short_conv_rows(const tg_conv_args &a) {
  T *x = static_cast<T *>(a.x);
  const T *bcx = static_cast<const T *>(a.bcx);
  const float *taps = a.taps, *bias = a.bias;
  const tg_state *state = a.state;
  const tg_step *step = a.step;
  const uint32_t hidden = a.hidden;
  const uint32_t first = blockIdx.x * CONV_ROWS, c = 4 * (blockIdx.y * CONV_THREADS + threadIdx.x);
  const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const bool there = c < hidden;
  let_next_kernel_start();
  float w[4 * CONV_TAPS];  /* [channel][tap], as they lie */
#pragma unroll
  for (int i = 0; i < CONV_TAPS; i++) {
    const float4 four = there ? load4(taps + (size_t)c * CONV_TAPS + 4 * i) : zeros;
    w[4 * i] = four.x, w[4 * i + 1] = four.y, w[4 * i + 2] = four.z, w[4 * i + 3] = four.w;
  }
  const float4 added = bias && there ? load4(bias + c) : zeros;
  /* The step's tables were there before it began. */
  const uint32_t rows = __ldcg(&step->rows), last = max(rows, 1u) - 1;
  const tg_row *row_table = table<tg_row>(state, __ldcg(&step->row_table));
  /* The sequences of this thread's rows and of the CONV_TAPS - 1 before them show how many rows of its chunk a row has before it. The table that has
   * a chunk's first row would be one more load to wait for. */
  uint32_t sequence[CONV_ROWS + CONV_TAPS - 1];
#pragma unroll
  for (int i = 0; i < CONV_ROWS + CONV_TAPS - 1; i++) {
    const uint32_t ahead = first + i;  /* the row's number plus CONV_TAPS - 1 */
    sequence[i] = ahead < CONV_TAPS - 1 ? TG_NONE : __ldcg(&row_table[min(ahead - (CONV_TAPS - 1), last)].sequence);
  }
  wait_for_earlier_kernels();
  if (first >= rows || !there) return;

  /* Rows past the step's repeat its last, those before row 0 row 0: neither is looked at. */
  float4 u[CONV_ROWS + CONV_TAPS - 1], gate[CONV_ROWS];
#pragma unroll
  for (int i = 0; i < CONV_ROWS + CONV_TAPS - 1; i++) {
    const uint32_t ahead = first + i;  /* as above */
    u[i] = column(bcx, ahead < CONV_TAPS - 1 ? 0 : min(ahead - (CONV_TAPS - 1), last), c, hidden);
  }
#pragma unroll
  for (int i = 0; i < CONV_ROWS; i++) gate[i] = load4(bcx + (size_t)min(first + i, last) * 3 * hidden + hidden + c);
  uint32_t in_chunk[CONV_ROWS];  /* rows of its chunk before it, counted up to CONV_TAPS - 1 */
#pragma unroll
  for (int i = 0; i < CONV_ROWS; i++) {
    in_chunk[i] = 0;
#pragma unroll
    for (int back = 1; back < CONV_TAPS; back++)
      if (in_chunk[i] == back - 1 && sequence[i + CONV_TAPS - 1 - back] == sequence[i + CONV_TAPS - 1]) in_chunk[i] = back;
  }
  auto columns_of = [&](const tg_row &of) { return static_cast<T *>(a.columns) + (size_t)of.slot * (CONV_TAPS - 1) * hidden + c; };
  /* Convolves row r, and stores it if it `stores`. `before` has u of that row and of those before it, oldest first; those before its chunk come from
   * the state. `by` is its C. */
  auto convolve = [&](uint32_t r, uint32_t in_chunk, const float4 *before, float4 by, bool stores) {
    float4 sum = zeros;
#pragma unroll
    for (int j = 0; j < CONV_TAPS; j++) {
      const uint32_t back = CONV_TAPS - 1 - j;  /* rows before this one */
      float4 v = before[j];
      if (stores && back > in_chunk) {
        const tg_row row = row_table[r];
        v = back <= row.position ? load4(columns_of(row) + (size_t)(in_chunk + j) * hidden) : zeros;
      }
      add_tap(sum, w + j, CONV_TAPS, v);
    }
    if (bias) sum = make_float4(sum.x + added.x, sum.y + added.y, sum.z + added.z, sum.w + added.w);
    if (stores) store4(x + (size_t)r * hidden + c, make_float4(by.x * sum.x, by.y * sum.y, by.z * sum.z, by.w * sum.w));
  };
#pragma unroll
  for (int i = 0; i < CONV_ROWS; i++) {
    if (first + i >= rows) break;
    convolve(first + i, in_chunk[i], u + i, gate[i], i > 0 || in_chunk[i] != 1);  /* else the thread that has the row before stores it */
  }
#pragma unroll
  for (int i = 0; i < CONV_ROWS; i++) {
    if (first + i >= rows) break;
    if (in_chunk[i] > 0) continue;
    const tg_row row = row_table[first + i];
    const tg_sequence chunk = table<tg_sequence>(state, step->sequence_table)[row.sequence];
    if (i + 1 == CONV_ROWS && chunk.rows > 1) {
      const uint32_t next = first + CONV_ROWS;
      const float4 before[CONV_TAPS] = {zeros, u[i + CONV_TAPS - 1], column(bcx, next, c, hidden)};
      convolve(next, 1, before, load4(bcx + (size_t)next * 3 * hidden + hidden + c), true);
    }
    move_state(columns_of(row), bcx, chunk, c, hidden, CONV_TAPS);
  }
}

#define CONV(SUFFIX, T)                                                                     \
  STRUCT_KERNEL(tg_conv_decode_##SUFFIX, tg_conv_args, (short_conv<T, true>), CONV_THREADS) \
  STRUCT_KERNEL(tg_conv_##SUFFIX, tg_conv_args, (short_conv<T, false>), CONV_THREADS)       \
  STRUCT_KERNEL(tg_conv_rows_##SUFFIX, tg_conv_args, short_conv_rows<T>, CONV_THREADS)
FOR_TYPES(CONV)
