/* hopper.cpp: barriers, clusters and copies, by fibers and events. See hopper.h and fibers.h. */
#include "hopper.h"
#include "fibers.h"
#include "tensor_map.h"

#include <memory>

namespace simt {
namespace {
char *in_block(Block &block, uint32_t address) { return block.shared + (int32_t)(address - FIRST_SHARED); }
Block &block_of(uint32_t rank) {
  if (rank >= cluster().size()) stop(text("block %u of a cluster of %zu is used", rank, cluster().size()));
  return *cluster()[rank];
}

/* ---- barriers: a word in shared memory */

struct Barrier {
  uint16_t expected, pending; /* arrivals of a phase; that are still to come */
  int32_t bytes : 24;         /* that are still to come; below 0 before they are expected */
  uint32_t phase : 8;
};
static_assert(sizeof(Barrier) == 8, "a word");

Barrier &barrier(Block &block, uint32_t address) { return *(Barrier *)in_block(block, address); }

const char *wrong(const Barrier &of) {
  return of.expected == 0 || of.expected == 0xffff ? "a barrier is used that was never set up" : nullptr;
}

void settle(Barrier &of) {
  if (of.pending || of.bytes) return;
  of.pending = of.expected;
  of.phase++;
  wake(&of);
}

/* Says what is wrong with it. */
const char *arrive(Barrier &of) {
  if (wrong(of)) return wrong(of);
  if (!of.pending) return "a barrier has more arrivals than its phase expects";
  of.pending--;
  settle(of);
  return nullptr;
}

const char *count_bytes(Barrier &of, int32_t bytes) {
  if (wrong(of)) return wrong(of);
  of.bytes -= bytes;
  settle(of);
  return nullptr;
}

std::string describe_barrier(const Fiber &fiber) {
  const Barrier &of = *(const Barrier *)fiber.key;
  return text("the barrier at shared byte %td, of parity %u: it is in phase %u, %u of %u arrivals and %d bytes to come",
              (const char *)fiber.key - fiber.block->shared, fiber.detail, of.phase, of.pending, of.expected, of.bytes);
}

/* ---- barriers of a block by number, and the cluster's */

struct Named {
  uint32_t arrived, turns;
} named[MOST_BLOCKS][16];

struct Whole {
  uint32_t arrived, turns;
} wholes[MOST_BLOCKS]; /* by the place of the first block */
Whole &whole() { return wholes[self().block->first]; }
/* How often each thread had come to the cluster's barrier, and whether it arrived and has not waited. */
uint32_t turn_of[MOST_BLOCKS][MOST_THREADS];

void settle_cluster() {
  uint32_t there = 0;
  for (const Block *block : cluster()) there += block->alive;
  Whole &of = whole();
  if (of.arrived < there || !of.arrived) return;
  of.arrived = 0;
  of.turns++;
  wake(&of);
}

std::string describe_named(const Fiber &fiber) {
  return text("barrier %u of the block, where %u threads are", fiber.detail, named[fiber.block->place][fiber.detail].arrived);
}

/* ---- tensor copies */

struct Box {
  tensor_map map;
  int32_t at[5];

  /* Reads it from memory and writes it as it lies at `to`, which has this address in its block's shared memory. */
  void copy(char *to, uint32_t address) const {
    const uint32_t row_bytes = map.box[0] * map.element;
    uint32_t row = 0;
    for (uint32_t e = 0; e < map.box[4]; e++)
      for (uint32_t d = 0; d < map.box[3]; d++)
        for (uint32_t c = 0; c < map.box[2]; c++)
          for (uint32_t b = 0; b < map.box[1]; b++, row++) {
            const int64_t outer[4] = {(int64_t)at[1] + b, (int64_t)at[2] + c, (int64_t)at[3] + d, (int64_t)at[4] + e};
            bool inside = true;
            uint64_t from = map.at;
            for (uint32_t i = 0; i < 4; i++) {
              inside = inside && outer[i] >= 0 && (uint64_t)outer[i] < map.size[i + 1];
              from += outer[i] * map.stride[i];
            }
            copy_row((const char *)from, inside, to, address, row * row_bytes, row_bytes);
          }
  }

  void copy_row(const char *from, bool inside, char *to, uint32_t address, uint32_t offset, uint32_t row_bytes) const {
    for (uint32_t piece = 0; piece < row_bytes; piece += 16) {
      char bytes[16] = {};
      for (uint32_t i = 0; inside && i < 16; i += map.element) {
        const int64_t column = (int64_t)at[0] + (piece + i) / map.element;
        if (column >= 0 && (uint64_t)column < map.size[0]) memcpy(bytes + i, from + column * map.element, map.element);
      }
      const uint32_t linear = address + offset + piece;
      const uint32_t place = linear ^ (linear >> 7 & map.swizzled) << 4;
      memcpy(to + (int32_t)(place - address), bytes, sizeof bytes);
    }
  }

  uint32_t bytes() const { return map.box[0] * map.box[1] * map.box[2] * map.box[3] * map.box[4] * map.element; }
};
}  // namespace

void begin_block(const Block &block) {
  memset(named[block.place], 0, sizeof named[block.place]);
  wholes[block.place] = {};
  begin_products(block);
}

void thread_ended() { settle_cluster(); }

/* ---- copies of 16 bytes by a thread */

void copy16(void *to, const void *from, bool valid) {
  work().uncommitted.push_back([to, from, valid] {
    if (valid) memcpy(to, from, 16);
    else memset(to, 0, 16);
  });
}

void copies_commit() {
  Work &mine = work();
  const size_t number = mine.copied.size();
  mine.copied.push_back(mine.uncommitted.empty());
  if (mine.uncommitted.empty()) return;
  auto all = std::make_shared<std::vector<std::function<void()>>>(std::move(mine.uncommitted));
  mine.uncommitted.clear();
  later({self().block, [&mine, number, all](Event &) {
           for (const auto &copy : *all) copy();
           mine.copied[number] = true;
           wake(&mine.copied);
           return true;
         }});
}

void copies_wait(uint32_t pending) {
  pause();
  if (is_mutant(NO_COPY_WAIT)) return;
  Work &mine = work();
  for (size_t i = 0; i + pending < mine.copied.size(); i++)
    while (!mine.copied[i]) park(&mine.copied, 0, [](const Fiber &) { return std::string("its copies of 16 bytes"); });
}

/* ---- waiting */

void wait_parity(uint32_t address, uint32_t parity) {
  pause();
  Barrier &of = barrier(*self().block, address);
  for (;;) {
    if (wrong(of)) stop(wrong(of));
    if ((of.phase & 1) != parity) return;
    park(&of, parity, describe_barrier);
  }
}

void meet_named(uint32_t id, uint32_t threads, bool waits) {
  pause();
  if (is_mutant(NO_NAMED_BARRIER)) return;
  Named &of = named[self().block->place][id];
  const uint32_t turn = of.turns;
  if (++of.arrived == threads) {
    of.arrived = 0;
    of.turns++;
    return wake(&of);
  }
  while (waits && of.turns == turn) park(&of, id, describe_named);
}

void cluster_arrive() {
  pause();
  turn_of[self().block->place][self().index] = whole().turns;
  whole().arrived++;
  settle_cluster();
}

void cluster_wait() {
  pause();
  if (is_mutant(NO_CLUSTER_WAIT)) return;
  while (whole().turns == turn_of[self().block->place][self().index]) park(&whole(), 0, [](const Fiber &) { return std::string("the cluster"); });
}

uint32_t rank() { return self().block->rank; }
uint32_t blocks() { return (uint32_t)cluster().size(); }

/* ---- the copy engine */

void tensor_box(void *to, const TensorMap *map, const uint32_t *at, uint32_t dimensions, uint64_t *barrier_word, uint32_t blocks) {
  pause();
  auto box = std::make_shared<Box>();
  memcpy(&box->map, map, sizeof box->map);
  if (box->map.sign != TENSOR_MAP_SIGN) stop("a tensor copy by what is no tensor map");
  for (uint32_t i = 0; i < 5; i++) box->at[i] = i < dimensions ? (int32_t)at[i] : 0;
  const uint32_t address = shared_address(to), barrier_address = shared_address(barrier_word);
  if (box->map.swizzled ? address % GMMA_ROW_BYTES : address % 16) stop(text("a tensor copy to shared byte %u", address));
  for (uint32_t rank = 0; rank < 16; rank++) {
    if (!(blocks >> rank & 1)) continue;
    Block &block = block_of(rank);
    later({&block, [&block, box, address, barrier_address](Event &) {
             box->copy(in_block(block, address), address);
             if (const char *why = count_bytes(barrier(block, barrier_address), (int32_t)box->bytes())) fail(why);
             return true;
           }});
  }
}

/* Reads first and writes at another time. */
void bulk(void *to, const void *from, uint32_t bytes) {
  pause();
  if ((uint64_t)to % 16 || shared_address(from) % 16 || bytes % 16) stop(text("a bulk copy of %u bytes", bytes));
  Work &mine = work();
  auto read = std::make_shared<std::string>();
  mine.bulk.push_back([&mine, to, from, bytes, read](Event &event) {
    if (event.uses) {
      read->assign((const char *)from, bytes);
      event.uses = nullptr;
      if (--mine.unread == 0) wake(&mine.unread);
      return false;
    }
    memcpy(to, read->data(), bytes);
    if (--mine.unwritten == 0) wake(&mine.unwritten);
    return true;
  });
}

void bulk_to_shared(void *to, const void *from, uint32_t bytes, uint64_t *barrier_word) {
  pause();
  if (shared_address(to) % 16 || (uint64_t)from % 16 || bytes % 16) stop(text("a bulk copy of %u bytes", bytes));
  later({self().block, [to, from, bytes, barrier_word](Event &) {
           memcpy(to, from, bytes);
           if (const char *why = count_bytes(*(Barrier *)barrier_word, (int32_t)bytes)) fail(why);
           return true;
         }});
}

void bulk_commit() {
  Work &mine = work();
  for (auto &copy : mine.bulk) {
    mine.unread++, mine.unwritten++;
    later({self().block, std::move(copy)});
  }
  mine.bulk.clear();
}

void bulk_wait(bool written) {
  pause();
  if (is_mutant(NO_BULK_WAIT)) return;
  Work &mine = work();
  const uint32_t &left = written ? mine.unwritten : mine.unread;
  while (left) park(&left, 0, [](const Fiber &) { return std::string("its bulk copies"); });
}

void store_and_count(uint32_t to, uint32_t rank, const float *v, uint32_t count, uint32_t barrier_address) {
  pause();
  Block &block = block_of(rank);
  float values[4];
  memcpy(values, v, count * sizeof *v);
  const float4 kept = {values[0], values[1], values[2], values[3]};
  later({&block, [&block, to, kept, count, barrier_address](Event &) {
           memcpy(in_block(block, to), &kept, count * sizeof(float));
           if (const char *why = count_bytes(barrier(block, barrier_address), (int32_t)(count * sizeof(float)))) fail(why);
           return true;
         }});
}
/* ---- words in global memory */

/* Mutants take words that are there as if they were not, or the other way. */
uint32_t load_word(const uint32_t *at) {
  look(at);
  return is_mutant(NO_LOOK_BEFORE_STORE) ? 0xffffffffu : *at;
}
uint64_t load_word(const uint64_t *at) {
  look(at);
  return is_mutant(NO_WORD_WAIT) && !*at ? 1ull << 32 : *at;
}
uint4 load_word(const uint4 *at) {
  look(at);
  uint4 words = *at;
  for (uint32_t *word : {&words.x, &words.y, &words.z, &words.w})
    if (is_mutant(NO_WORD_WAIT) && *word == 0xffffffffu) *word = 0;
  return words;
}
}  // namespace simt

void await_count(const uint32_t *at, uint32_t count) {
  do simt::look(at);
  while (*at < count && !simt::is_mutant(simt::NO_WORD_WAIT));
}

uint32_t count_and_know(uint32_t *at) {
  simt::pause();
  const uint32_t before = (*at)++;
  simt::stored();
  return before + simt::is_mutant(simt::EARLY_COUNT);
}

/* ---- barriers */

uint32_t shared_address(const void *p) { return (uint32_t)((const char *)p - simt::self().block->shared) + simt::FIRST_SHARED; }

void barrier_init(uint64_t *barrier, uint32_t arrivals) {
  *(simt::Barrier *)barrier = {(uint16_t)arrivals, (uint16_t)arrivals, 0, 0};
}

void barrier_arrive(uint32_t barrier) {
  simt::pause();
  if (const char *why = simt::arrive(simt::barrier(*simt::self().block, barrier))) simt::stop(why);
}

void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes) {
  simt::pause();
  simt::Barrier &of = *(simt::Barrier *)barrier;
  of.bytes += bytes;
  if (const char *why = simt::arrive(of)) simt::stop(why);
}

/* Under way for a while, to the own block too. */
void barrier_arrive_at_block(uint64_t *barrier, uint32_t rank) {
  simt::pause();
  simt::Block &block = simt::block_of(rank);
  const uint32_t address = shared_address(barrier);
  simt::later({&block, [&block, address](simt::Event &) {
                 if (const char *why = simt::arrive(simt::barrier(block, address))) simt::fail(why);
                 return true;
               }});
}
