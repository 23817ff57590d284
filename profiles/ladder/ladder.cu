/* ladder.cu: one product of LFM2-8B-A1B, from naive to the tensor cores, and the attention of one prompt by the eight classic
 * tiles: each checked against a plain kernel, and its time beside what the compiler made of it. README.md explains the tables. */
#include "attention.cuh"
#include "harness.cuh"
#include "products.cuh"
#include "tensor.cuh"
#include <string>

namespace {

/* A convolution layer's in-projection for a prompt of 2,048 tokens. */
constexpr Sizes SIZE = {2048, 6144, 2048};
/* Sums of 2,048 products between -1 and 1 differ by far less by their order; one product that is left out would be seen. */
constexpr float MOST_DIFFERENCE = 0.01f;

bool all_right = true;

void row(const char *name, const Made &made, double ms, double flops, double peak, const char *banks,
         float difference, float allowed) {
  const bool right = difference <= allowed;
  all_right = all_right && right;
  char share[16] = "-";
  if (peak > 0.0) std::snprintf(share, sizeof share, "%.1f%%", flops / ms * 1e5 / peak);
  std::printf("| %-28s | %8.4f | %7.2f | %7s | %9d | %7zu | %9.1f | %6d | %8.0f%% | %-24s | %9.2e%s |\n", name, ms,
              flops / ms / 1e9, share, made.attributes.numRegs, made.attributes.localSizeBytes, made.shared_bytes / 1024.0,
              made.blocks, made.occupancy * 100.0, banks, difference, right ? "" : " WRONG");
  std::fflush(stdout);
}

void head(const char *first) {
  std::printf("| %-28s | %8s | %7s | %7s | %9s | %7s | %9s | %6s | %9s | %-24s | %9s |\n", first, "ms", "TFLOP/s", "of peak",
              "registers", "local B", "shared KB", "blocks", "occupancy", "bank conflicts (reasoned)", "largest difference");
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n");
}

struct Product {
  const Machine &machine;
  float *x, *w, *y, *expected;
  __nv_bfloat16 *x_half, *w_half;
  size_t count = size_t(SIZE.m) * SIZE.n;

  template <typename Kernel, typename Operand>
  void step(const char *name, Kernel kernel, const Operand *a, const Operand *b, dim3 grid, int threads, size_t dynamic,
            double peak, const char *banks) const {
    const Made made(machine, (const void *)kernel, threads, dynamic);
    check(cudaMemset(y, 0xff, count * sizeof(float)), "poisoning the result");
    const double ms = machine.best_ms([&] {
      kernel<<<grid, threads, dynamic>>>(y, a, b, SIZE);
      check(cudaGetLastError(), name);
    });
    const double flops = 2.0 * SIZE.m * SIZE.n * SIZE.k;
    row(name, made, ms, flops, peak, banks, machine.difference(y, expected, count), MOST_DIFFERENCE);
  }
};

void products(const Machine &machine) {
  const size_t x_count = size_t(SIZE.m) * SIZE.k, w_count = size_t(SIZE.n) * SIZE.k;
  Product p = {machine, device_array<float>(x_count), device_array<float>(w_count),
               device_array<float>(size_t(SIZE.m) * SIZE.n), device_array<float>(size_t(SIZE.m) * SIZE.n),
               device_array<__nv_bfloat16>(x_count), device_array<__nv_bfloat16>(w_count)};
  fill<<<1024, 256>>>(p.x, p.x_half, x_count, 1);
  fill<<<1024, 256>>>(p.w, p.w_half, w_count, 2);
  plain<<<dim3(SIZE.n / 32, SIZE.m / 8), dim3(32, 8)>>>(p.expected, p.x, p.w, SIZE);
  check(cudaDeviceSynchronize(), "the plain product");
  std::printf("\ny[%u,%u] = x[%u,%u] w[%u,%u]^T; peaks at the highest clock: %.1f TFLOP/s in f32, %.0f of bf16\n\n", SIZE.m, SIZE.n,
              SIZE.m, SIZE.k, SIZE.n, SIZE.k, machine.f32_flops() / 1e12, machine.tensor_flops() / 1e12);
  head("kernel");
  const double f32 = machine.f32_flops(), tensor = machine.tensor_flops();
  const dim3 small(SIZE.n / 32, SIZE.m / 32), large(SIZE.n / 128, SIZE.m / 128);
  p.step("naive", naive, p.x, p.w, dim3(SIZE.n / 32, SIZE.m / 8), 256, 0, f32, "no shared memory");
  p.step("tiled, rows of 32", tiled<0>, p.x, p.w, small, 1024, 0, f32, "w: 32 ways, x: none");
  p.step("tiled, rows of 33", tiled<1>, p.x, p.w, small, 1024, 0, f32, "none");
  p.step("vectorised", vectorised, p.x, p.w, small, 256, 0, f32, "none");
  p.step("register-tiled", register_tiled<1>, p.x, p.w, large, 256, 0, f32, "none");
  p.step("register-tiled, double buffer", register_tiled<2>, p.x, p.w, large, 256, 0, f32, "none");
  p.step("tensor cores, mma", by_mma, p.x_half, p.w_half, large, 256, MMA_BYTES, tensor, "copies: 2 ways");
#ifdef LADDER_WGMMA
  p.step("tensor cores, wgmma", by_wgmma, p.x_half, p.w_half, large, 256, WGMMA_BYTES, tensor, "none");
#else
  std::printf("| tensor cores, wgmma: only code for sm_90a has it |\n");
#endif
  for (void *at : {(void *)p.x, (void *)p.w, (void *)p.y, (void *)p.expected, (void *)p.x_half, (void *)p.w_half})
    check(cudaFree(at), "freeing device memory");
}

constexpr uint32_t TOKENS = 2048, HEADS = 32;

struct Attention {
  const Machine &machine;
  Prompt prompt;
  const float *expected;
  size_t count;

  template <uint32_t Q, uint32_t K, uint32_t V, int BLOCKS>
  void step() const {
    const auto kernel = tiled_attention<Q, K, V, BLOCKS>;
    const size_t dynamic = sizeof(AttentionShared<Q, K, V>);
    const std::string name = std::to_string(Q) + "/" + std::to_string(K) + "/" + std::to_string(V) +
                             (BLOCKS == 1 ? "" : ", at most 64 registers");
    const Made made(machine, (const void *)kernel, ATTENTION_THREADS, dynamic);
    check(cudaMemset(prompt.out, 0xff, count * sizeof(float)), "poisoning the result");
    const dim3 grid((TOKENS + Q / PACKED - 1) / (Q / PACKED), HEADS / PACKED);
    const double ms = machine.best_ms([&] {
      kernel<<<grid, ATTENTION_THREADS, dynamic>>>(prompt);
      check(cudaGetLastError(), name.c_str());
    });
    /* Two products over half of all pairs of a position and a key. */
    const double flops = 2.0 * 2.0 * HEAD * HEADS * (TOKENS * (TOKENS + 1.0) / 2.0);
    /* Two rows of scores that half a warp each stores begin four banks apart; so do a row and the eighth behind it, which two
     * threads a row meet in the softmax. */
    const char *banks = Q == 64 ? "scores, softmax: 2 ways" : "stores of scores: 2 ways";
    const float difference = machine.difference(prompt.out, expected, count);
    row(name.c_str(), made, ms, flops, machine.f32_flops(), banks, difference, 1e-4f);
  }

  template <uint32_t Q, uint32_t K, uint32_t V>
  void both() const {
    step<Q, K, V, 1>();
    step<Q, K, V, 8>();
  }
};

void attention(const Machine &machine) {
  const size_t q_count = size_t(TOKENS) * HEADS * HEAD, kv_count = q_count / PACKED;
  float *q = device_array<float>(q_count), *k = device_array<float>(kv_count), *v = device_array<float>(kv_count);
  float *out = device_array<float>(q_count), *expected = device_array<float>(q_count);
  fill<<<1024, 256>>>(q, nullptr, q_count, 3);
  fill<<<1024, 256>>>(k, nullptr, kv_count, 4);
  fill<<<1024, 256>>>(v, nullptr, kv_count, 5);
  const Prompt plain = {expected, q, k, v, TOKENS, HEADS};
  plain_attention<<<dim3(TOKENS, HEADS), HEAD, TOKENS * sizeof(double)>>>(plain);
  check(cudaDeviceSynchronize(), "the plain attention");
  std::printf("\nAttention of a prompt of %u tokens, %u heads of %u, %u key-value heads, causal, f32\n\n", TOKENS, HEADS, HEAD,
              HEADS / PACKED);
  head("tile: query/key/value");
  const Attention a = {machine, {out, q, k, v, TOKENS, HEADS}, expected, q_count};
  a.both<32, 32, 32>();
  a.both<32, 32, 64>();
  a.both<32, 64, 32>();
  a.both<32, 64, 64>();
  a.both<64, 32, 32>();
  a.both<64, 64, 64>();
  a.both<32, 32, 128>();
  a.both<32, 16, 16>();
  for (float *at : {q, k, v, out, expected}) check(cudaFree(at), "freeing device memory");
}

}  // namespace

int main(int count, char **arguments) {
  const std::string which = count > 1 ? arguments[1] : "";
  if (count > 2 || (which != "" && which != "products" && which != "attention")) {
    std::fprintf(stderr, "ladder: found '%s', expected products, attention or nothing for both\n", arguments[count - 1]);
    return 2;
  }
  const Machine machine;
  std::printf("%s, %d SMs, %.0f MHz at most\n", machine.properties.name, machine.properties.multiProcessorCount,
              machine.clock_hz / 1e6);
  if (which != "attention") products(machine);
  if (which != "products") attention(machine);
  if (!all_right) std::fprintf(stderr, "ladder: a result is not what the plain kernel gives: see WRONG\n");
  return all_right ? 0 : 1;
}
