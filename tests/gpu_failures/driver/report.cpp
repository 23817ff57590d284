/* report.cpp: what is told of a launch that failed, and asked of the environment. See fibers.h. */
#include "fibers.h"

#include <cstdarg>
#include <map>

namespace simt {
namespace {
/* Which threads of a block wait for what. */
void list_waiting(const Block &block) {
  std::map<std::string, std::vector<uint32_t>> by_text;
  for (uint32_t i = 0; i < block.threads; i++) {
    const Fiber &fiber = block.fibers[i];
    std::string text;
    if (fiber.ended) {
      text = "have ended";
    } else if (fiber.meets) {
      text = "wait for lanes of their warp";
    } else if (fiber.describe) {
      text = "wait for " + fiber.describe(fiber);
    } else {
      text = "wait for the block, or may run";
    }
    by_text[text].push_back(i);
  }
  for (const auto &[text, which] : by_text) {
    fprintf(stderr, "  %s: block (%u, %u, %u), rank %u, threads", block.grid->launched->name, block.index.x, block.index.y, block.index.z, block.rank);
    for (size_t i = 0; i < which.size();) {
      size_t end = i + 1;
      while (end < which.size() && which[end] == which[end - 1] + 1) end++;
      fprintf(stderr, end - i > 1 ? " %u-%u" : " %u", which[i], which[end - 1]);
      i = end;
    }
    fprintf(stderr, ": %s\n", text.c_str());
  }
}
}  // namespace

void report(const Failure &of) {
  fprintf(stderr, "%s\n  TEST_SIMT_SEED=%ju, room for %zu blocks, %s\n", of.why.c_str(), (uintmax_t)of.seed, of.blocks.size(),
          of.schedule.c_str());
  for (const Block *block : of.blocks)
    if (block->alive) list_waiting(*block);
}

std::string text(const char *form, ...) {
  char room[256];
  va_list arguments;
  va_start(arguments, form);
  vsnprintf(room, sizeof room, form, arguments);
  va_end(arguments);
  return room;
}

bool is_mutant(Mutant which) {
  static const char *const asked = getenv("TEST_SIMT_MUTANT");
  static const int chosen = asked ? atoi(asked) : NONE;
  return chosen == which;
}
}  // namespace simt
