/* gpu.h: GPUs that launch their own graphs, on one thread of the host: what programs of dispatchers ask of gpu.cpp. */
#ifndef TEST_GPU_H
#define TEST_GPU_H

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpu {
/* A node of a graph. Each but the first may start as soon as the one before lets it (let_next_kernel_start). */
struct Kernel {
  std::string name;
  uint32_t blocks, threads;
  std::function<void()> body; /* of a thread */
};

struct Graph {
  std::string name;
  std::vector<Kernel> kernels;
  bool there = false; /* it runs, or has not left the GPU */
};

void seed(uint64_t number);
uint32_t below(uint32_t end);           /* drawn */
bool one_in(uint32_t draws);
/* A kernel of the tests' own lets others go first. */
void yield();
uint32_t thread(); /* threadIdx.x of the fiber that runs */
/* The program ends with this text, the seed, what every fiber waits for, and what `tells` of on_failure() adds. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *form, ...);
void on_failure(std::function<void()> tells);
/* Something came of it: where this is not called for long, it hangs. */
void progress();
/* Launches the graphs and runs until nothing does. Meanwhile `host` is called again and again. */
void run(const std::vector<Graph *> &graphs, const std::function<void()> &host);
}  // namespace gpu

#endif
