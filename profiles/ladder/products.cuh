/* products.cuh: y[M,N] = x[M,K] w[N,K]^T in f32, from a line that anyone would write to what the cores without tensor units can
 * do. Each step changes one thing. M and N are multiples of 128, K of 32. */
#ifndef TAILGRAPH_LADDER_PRODUCTS_CUH
#define TAILGRAPH_LADDER_PRODUCTS_CUH

#include <cstdint>

struct Sizes {
  uint32_t m, n, k;
};

/* What all others are checked against: sums in f64. */
__global__ void plain(float *y, const float *x, const float *w, Sizes size) {
  const uint32_t n = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y * blockDim.y + threadIdx.y;
  double sum = 0.0;
  for (uint32_t k = 0; k < size.k; k++) sum += double(x[size_t(m) * size.k + k]) * double(w[size_t(n) * size.k + k]);
  y[size_t(m) * size.n + n] = float(sum);
}

/* Naive: a thread an output, all from global memory. A warp's 32 threads read 32 rows of w, each another line. */
__global__ void __launch_bounds__(256) naive(float *y, const float *x, const float *w, Sizes size) {
  const uint32_t n = blockIdx.x * 32 + threadIdx.x % 32, m = blockIdx.y * 8 + threadIdx.x / 32;
  float sum = 0.0f;
  for (uint32_t k = 0; k < size.k; k++) sum += x[size_t(m) * size.k + k] * w[size_t(n) * size.k + k];
  y[size_t(m) * size.n + n] = sum;
}

/* Tiled: 32 by 32 outputs a block; what they share is read from global memory once, line by line. Without the pad a warp's
 * 32 reads of w's tile are of one bank, and go one after the other. */
template <int PAD>
__global__ void __launch_bounds__(1024) tiled(float *y, const float *x, const float *w, Sizes size) {
  __shared__ float x_tile[32][32 + PAD], w_tile[32][32 + PAD];
  const uint32_t column = threadIdx.x % 32, row = threadIdx.x / 32;
  const uint32_t n0 = blockIdx.x * 32, m0 = blockIdx.y * 32;
  float sum = 0.0f;
  for (uint32_t k0 = 0; k0 < size.k; k0 += 32) {
    x_tile[row][column] = x[size_t(m0 + row) * size.k + k0 + column];
    w_tile[row][column] = w[size_t(n0 + row) * size.k + k0 + column];
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < 32; k++) sum += x_tile[row][k] * w_tile[column][k];
    __syncthreads();
  }
  y[size_t(m0 + row) * size.n + n0 + column] = sum;
}

/* Vectorised: the same tile by 256 threads of four outputs each, with 16 bytes a load, from global memory and from shared.
 * Rows of 36 floats: eight threads that load 16 bytes of rows one below the other meet 32 banks. */
__global__ void __launch_bounds__(256) vectorised(float *y, const float *x, const float *w, Sizes size) {
  __shared__ __align__(16) float x_tile[32][36], w_tile[32][36];
  const uint32_t load_row = threadIdx.x / 8, load_at = threadIdx.x % 8 * 4;
  const uint32_t column = threadIdx.x % 32, row = threadIdx.x / 32;
  const uint32_t n0 = blockIdx.x * 32, m0 = blockIdx.y * 32;
  float sum[4] = {};
  for (uint32_t k0 = 0; k0 < size.k; k0 += 32) {
    const size_t at = k0 + load_at;
    *(float4 *)&x_tile[load_row][load_at] = *(const float4 *)&x[size_t(m0 + load_row) * size.k + at];
    *(float4 *)&w_tile[load_row][load_at] = *(const float4 *)&w[size_t(n0 + load_row) * size.k + at];
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < 32; k += 4) {
      const float4 b = *(const float4 *)&w_tile[column][k];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const float4 a = *(const float4 *)&x_tile[row + 8 * i][k];
        sum[i] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) y[size_t(m0 + row + 8 * i) * size.n + n0 + column] = sum[i];
}

constexpr uint32_t REGISTER_TILE = 128; /* outputs of a block, each way */
constexpr uint32_t REGISTER_K = 8;      /* of a stage */
constexpr uint32_t REGISTER_ROW = REGISTER_TILE + 4;

/* A thread's part of a stage on its way: 4 of K of one row of each operand. */
struct Fetched {
  float4 x, w;

  __device__ inline void fetch(const float *from_x, const float *from_w) {
    x = *(const float4 *)from_x;
    w = *(const float4 *)from_w;
  }

  /* Transposed, so that a thread's eight rows lie side by side. */
  __device__ inline void store(float (*x_tile)[REGISTER_ROW], float (*w_tile)[REGISTER_ROW], uint32_t k, uint32_t row) const {
    x_tile[k][row] = x.x, x_tile[k + 1][row] = x.y, x_tile[k + 2][row] = x.z, x_tile[k + 3][row] = x.w;
    w_tile[k][row] = w.x, w_tile[k + 1][row] = w.y, w_tile[k + 2][row] = w.z, w_tile[k + 3][row] = w.w;
  }
};

/* Register-tiled: 8 by 8 outputs a thread, so that 16 values from shared memory serve 64 multiplications. With two stages it is
 * double-buffered: the next one's loads are under way while this one is multiplied, and one barrier a stage is enough. */
template <int STAGES>
__global__ void __launch_bounds__(256) register_tiled(float *y, const float *x, const float *w, Sizes size) {
  __shared__ __align__(16) float x_tile[STAGES][REGISTER_K][REGISTER_ROW], w_tile[STAGES][REGISTER_K][REGISTER_ROW];
  const uint32_t load_row = threadIdx.x / 2, load_at = threadIdx.x % 2 * 4;
  const uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const uint32_t n0 = blockIdx.x * REGISTER_TILE, m0 = blockIdx.y * REGISTER_TILE;
  const float *from_x = x + size_t(m0 + load_row) * size.k + load_at;
  const float *from_w = w + size_t(n0 + load_row) * size.k + load_at;
  float sum[8][8] = {};
  Fetched next;
  next.fetch(from_x, from_w);
  next.store(x_tile[0], w_tile[0], load_at, load_row);
  __syncthreads();
  const uint32_t count = size.k / REGISTER_K;
  for (uint32_t s = 0; s < count; s++) {
    const uint32_t now = STAGES == 2 ? s % 2 : 0, then = STAGES == 2 ? 1 - now : 0;
    if (STAGES == 2 && s + 1 < count) next.fetch(from_x + (s + 1) * REGISTER_K, from_w + (s + 1) * REGISTER_K);
#pragma unroll
    for (uint32_t k = 0; k < REGISTER_K; k++) {
      float a[8], b[8];
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        *(float4 *)&a[4 * half] = *(const float4 *)&x_tile[now][k][64 * half + ty * 4];
        *(float4 *)&b[4 * half] = *(const float4 *)&w_tile[now][k][64 * half + tx * 4];
      }
#pragma unroll
      for (uint32_t i = 0; i < 8; i++)
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) sum[i][j] += a[i] * b[j];
    }
    if (s + 1 == count) break;
    if (STAGES == 1) {
      next.fetch(from_x + (s + 1) * REGISTER_K, from_w + (s + 1) * REGISTER_K);
      __syncthreads(); /* all have read the one stage that there is */
    }
    next.store(x_tile[then], w_tile[then], load_at, load_row);
    __syncthreads();
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    float *to = y + size_t(m0 + i / 4 * 64 + ty * 4 + i % 4) * size.n + n0 + tx * 4;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) *(float4 *)(to + 64 * half) = *(const float4 *)&sum[i][4 * half];
  }
}

#endif
