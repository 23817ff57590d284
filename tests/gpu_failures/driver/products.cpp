/* products.cpp: matrix instructions of a warp and of a warpgroup. See hopper.h and fibers.h. */
#include "fibers.h"
#include "hopper.h"

#include <cuda_fp8.h>

/* Loops over a matrix instruction's products are most of what a test takes. */
#pragma GCC optimize("O3")

namespace simt {
namespace {
constexpr uint32_t PARTS = GMMA_GROUP / WARP_LANES, PART_ROWS = GMMA_M / PARTS;

struct Instruction {
  Operand type;
  uint32_t n, a, b;
  bool transposed, add;  /* B lies transposed; it adds to d */
  uint32_t there[PARTS]; /* threads of each warp that have issued it */
  uint32_t done;         /* warps whose part is done */
  float *d[GMMA_GROUP];
  const uint32_t *values[GMMA_GROUP]; /* of A, in registers; null: it lies at `a` */
};

/* Each warp's part reads its operands at some time from when that warp has issued it. (Whether a GPU reads before all four have is
 * not told.) It is over for all at once. */
struct Group {
  std::deque<Instruction> under_way;
  uint64_t done;
  uint64_t next[PARTS];  /* instruction of each warp, of all that it ever issued */
  bool drawn[PARTS];     /* that one is among the events */
} groups[MOST_BLOCKS][MOST_THREADS / GMMA_GROUP];

/* An element of 16 bits, or the byte `half` of a pair. */
float as_float(Operand type, uint16_t bits, uint32_t half = 0) {
  if (type == OF_BF16) return __uint_as_float((uint32_t)bits << 16);
  if (type == OF_E4M3) return __half2float(__half(__nv_cvt_fp8_to_halfraw((uint8_t)(bits >> 8 * half), __NV_E4M3)));
  static const std::vector<float> halves = [] {
    std::vector<float> all(1 << 16);
    for (uint32_t i = 0; i < all.size(); i++) {
      const __half_raw raw = {(unsigned short)i};
      all[i] = __half2float(__half(raw));
    }
    return all;
  }();
  return halves[bits];
}

/* Row `row`'s element `k` of 16, as the hardware finds it: pieces of 16 bytes are swapped by bits of the whole address. Weights in 8 bits lie in
 * blocks, of rows of half the bytes. */
uint16_t element(const Block &block, uint32_t operand, uint32_t row, uint32_t k, bool in_blocks = false) {
  const uint32_t row_bytes = in_blocks ? GMMA_ROW_BYTES / 2 : GMMA_ROW_BYTES;
  const uint32_t linear = ((operand & 0x3fff) << 4) + row / 8 * GMMA_ATOM_BYTES + row % 8 * row_bytes + 2 * k;
  const uint32_t address = linear ^ (linear >> 7 & (in_blocks ? 3 : 7)) << 4;
  if (address < FIRST_SHARED || address + 2 > FIRST_SHARED + SHARED_BYTES) {
    fail(text("a matrix instruction reads shared byte %u", address));
    return 0;
  }
  uint16_t bits;
  memcpy(&bits, block.shared + address - FIRST_SHARED, sizeof bits);
  return bits;
}

void multiply_part(const Block &block, const Instruction &of, uint32_t part) {
  static float b[2][16][256], sums[256];
  const uint32_t n = of.n, *const *values = &of.values[part * WARP_LANES];
  const uint32_t columns = of.type == OF_E4M3 ? 2 : 1; /* of an element */
  for (uint32_t j = 0; j < n; j++)
    for (uint32_t k = 0; k < 16; k++) {
      const uint16_t bits = of.transposed ? element(block, of.b, k, j) : element(block, of.b, j, k, of.type == OF_E4M3);
      for (uint32_t half = 0; half < columns; half++) b[half][k][j] = as_float(of.type, bits, half);
    }
  for (uint32_t m = 0; m < PART_ROWS; m++) {
    for (uint32_t j = 0; j < n; j++) sums[j] = 0.0f;
    for (uint32_t k = 0; k < 16; k++) {
      const uint16_t bits = *values ? (uint16_t)(values[m % 8 * 4 + k % 8 / 2][m / 8 + k / 8 * 2] >> k % 2 * 16)
                                    : element(block, of.a, part * PART_ROWS + m, k);
      for (uint32_t half = 0; half < columns; half++) {
        const float by = as_float(of.type, bits, half), *row = b[half][k];
        for (uint32_t j = 0; j < n; j++) sums[j] += by * row[j];
      }
    }
    for (uint32_t j = 0; j < n; j++) {
      const uint32_t thread = part * WARP_LANES + m % 8 * 4 + j % 8 / 2;
      float &d = of.d[thread][j / 8 * 4 + m / 8 * 2 + j % 2];
      d = of.add ? d + sums[j] : sums[j];
    }
  }
}

void draw_next(Block &block, Group &group, uint32_t part) {
  const uint64_t at = group.next[part] - group.done;
  if (group.drawn[part] || at >= group.under_way.size() || group.under_way[at].there[part] < WARP_LANES) return;
  group.drawn[part] = true;
  later({&block, [&block, &group, part](Event &) {
           Instruction &of = group.under_way[group.next[part]++ - group.done];
           multiply_part(block, of, part);
           group.drawn[part] = false;
           of.done++;
           while (!group.under_way.empty() && group.under_way.front().done == PARTS) {
             group.under_way.pop_front();
             group.done++;
             wake(&group);
           }
           draw_next(block, group, part);
           return true;
         }});
}

Group &my_group() { return groups[self().block->place][self().index / GMMA_GROUP]; }

std::string describe_group(const Fiber &fiber) {
  return text("its warpgroup's matrix instruction %u, where %ju are done", fiber.detail,
              (uintmax_t)groups[fiber.block->place][fiber.index / GMMA_GROUP].done);
}
}  // namespace

void begin_products(const Block &block) {
  for (Group &group : groups[block.place])
    if (group.done || !group.under_way.empty()) group = {};
}

/* ---- matrix instructions of a warp */

void load_matrices(uint32_t *to, uint32_t count, const void *row, bool transposed) {
  words()[lane()] = (uint64_t)row;
  meet_warp(0xffffffffu);
  const uint32_t g = lane() / 4, q = lane() % 4;
  for (uint32_t i = 0; i < count; i++) {
    auto at = [&](uint32_t r, uint32_t c) { return ((const uint16_t *)words()[8 * i + r])[c]; };
    const uint32_t low = transposed ? at(2 * q, g) : at(g, 2 * q), high = transposed ? at(2 * q + 1, g) : at(g, 2 * q + 1);
    to[i] = low | high << 16;
  }
  meet_warp(0xffffffffu);
}

void store_matrices(const uint32_t *from, uint32_t count, void *row, bool transposed) {
  words()[lane()] = (uint64_t)row;
  meet_warp(0xffffffffu);
  const uint32_t g = lane() / 4, q = lane() % 4;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = 0; j < 2; j++) {
      const uint32_t row = transposed ? 2 * q + j : g, column = transposed ? g : 2 * q + j;
      ((uint16_t *)words()[8 * i + row])[column] = (uint16_t)(from[i] >> 16 * j);
    }
  meet_warp(0xffffffffu);
}

void multiply(Operand type, float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
  WarpState &warp = self().block->warps[self().index / WARP_LANES];
  uint32_t *own = warp.operands[lane()];
  for (uint32_t i = 0; i < 4; i++) own[i] = a[i];
  own[4] = b0, own[5] = b1;
  meet_warp(0xffffffffu);
  const uint32_t g = lane() / 4, q = lane() % 4;
  for (uint32_t i = 0; i < 4; i++) {
    float sum = 0.0f;
    for (uint32_t k = 0; k < 16; k++) {
      const uint32_t pair = k % 8 / 2, shift = k % 2 * 16;
      const uint32_t of_a = warp.operands[g * 4 + pair][i / 2 + k / 8 * 2], of_b = warp.operands[(2 * q + i % 2) * 4 + pair][4 + k / 8];
      sum += as_float(type, (uint16_t)(of_a >> shift)) * as_float(type, (uint16_t)(of_b >> shift));
    }
    c[i] += sum;
  }
  meet_warp(0xffffffffu);
}

/* ---- matrix instructions of a warpgroup */

void group_multiply(Operand type, uint32_t n, float *d, const uint32_t *values, uint32_t a, uint32_t b, bool transposed, bool add) {
  pause();
  Group &group = my_group();
  const uint64_t number = work().issued++ - group.done;
  if (number == group.under_way.size()) group.under_way.push_back({type, n, a, b, transposed, add, {}, 0, {}, {}});
  Instruction &of = group.under_way[number];
  if (of.n != n || of.a != a || of.b != b || of.transposed != transposed || of.add != add) stop("the warps of a group issue matrix instructions that differ");
  of.d[self().index % GMMA_GROUP] = d, of.values[self().index % GMMA_GROUP] = values;
  const uint32_t part = self().index % GMMA_GROUP / WARP_LANES;
  of.there[part]++;
  draw_next(*self().block, group, part);
}

void group_commit() { work().committed.push_back(work().issued); }

void group_wait(uint32_t pending) {
  pause();
  pending += is_mutant(SHORT_GROUP_WAIT);
  const std::vector<uint64_t> &committed = work().committed;
  const uint64_t until = committed.size() > pending ? committed[committed.size() - 1 - pending] : 0;
  Group &group = my_group();
  while (group.done < until) park(&group, (uint32_t)until, describe_group);
}
}  // namespace simt
