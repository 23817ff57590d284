/* hopper.h: in place of kernels/common's mma.cuh, barrier.cuh, wgmma.cuh, bulk.cuh and global.cuh, their functions as a C++
 * compiler takes them (simt.h): barriers with phases, arrivals and bytes; clusters; copies that come at a later time, drawn at random; matrix
 * instructions of a warp, and of a warpgroup that read their operands at some time until the group has waited. What each does
 * and what its arguments mean stands in the file that it is in place of. */
#ifndef TEST_HOPPER_H
#define TEST_HOPPER_H

#include "simt.h"

#define TAILGRAPH_MMA_CUH
#define TAILGRAPH_BARRIER_CUH
#define TAILGRAPH_WGMMA_CUH
#define TAILGRAPH_BULK_CUH
#define TAILGRAPH_GLOBAL_CUH
#include "common/base.cuh"
#include "common/operands.cuh"

namespace simt {
enum Operand { OF_BF16, OF_F16, OF_E4M3 };
template <class T>
constexpr Operand operand() {
  return std::is_same<T, E4m3x2>::value ? OF_E4M3 : std::is_same<T, __half>::value ? OF_F16 : OF_BF16;
}
void copy16(void *to, const void *from, bool valid);
void copies_commit();
void copies_wait(uint32_t pending);
void load_matrices(uint32_t *to, uint32_t count, const void *row, bool transposed);
void store_matrices(const uint32_t *from, uint32_t count, void *row, bool transposed);
void multiply(Operand type, float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void wait_parity(uint32_t barrier, uint32_t parity);
void meet_named(uint32_t id, uint32_t threads, bool waits);
void group_multiply(Operand type, uint32_t n, float *d, const uint32_t *values, uint32_t a, uint32_t b, bool transposed, bool add);
void group_commit();
void group_wait(uint32_t pending);
void tensor_box(void *to, const TensorMap *map, const uint32_t *at, uint32_t dimensions, uint64_t *barrier, uint32_t blocks);
void bulk(void *to, const void *from, uint32_t bytes);
void bulk_to_shared(void *to, const void *from, uint32_t bytes, uint64_t *barrier);
void bulk_commit();
void bulk_wait(bool written);
void cluster_arrive();
void cluster_wait();
uint32_t rank();
uint32_t blocks();
void store_and_count(uint32_t to, uint32_t rank, const float *v, uint32_t count, uint32_t barrier);
uint32_t load_word(const uint32_t *at);
uint64_t load_word(const uint64_t *at);
uint4 load_word(const uint4 *at);
template <class T>
void store_word(T *at, T word) {
  pause();
  *at = word;
  stored();
}
}  // namespace simt

/* ---- mma.cuh */

uint32_t shared_address(const void *p);
template <uint32_t FIRST>
uint32_t signed_bytes(uint32_t word) {
  auto number = [&](uint32_t byte) { return (uint32_t)(uint16_t)(int8_t)(word >> 8 * byte); };
  return number(FIRST) | number(FIRST + 1) << 16;
}
inline uint2 f16_of_e4m3(uint32_t word) {
  auto pair = [&](uint32_t byte) {
    const uint32_t bits = signed_bytes<0>(word >> 8 * byte) << 7 & 0xbf80bf80u;  /* 2^-8 of each */
    const __half2 pair = __hmul2(*reinterpret_cast<const __half2 *>(&bits), __float2half2_rn(256.0f));
    return *reinterpret_cast<const uint32_t *>(&pair);
  };
  return make_uint2(pair(0), pair(2));
}
inline void copy16_async(void *to, const void *from, bool valid) { simt::copy16(to, from, valid); }
inline void copy16_async(void *to, const void *from, bool valid, uint64_t) { simt::copy16(to, from, valid); }
inline uint64_t cache_policy(bool) { return 0; }
inline void copy_commit() { simt::copies_commit(); }
template <int PENDING>
void copy_wait() { simt::copies_wait(PENDING); }
inline void load_matrix_x4(uint32_t (&r)[4], const void *row) { simt::load_matrices(r, 4, row, false); }
inline void load_matrix_x2(uint32_t (&r)[2], const void *row) { simt::load_matrices(r, 2, row, false); }
inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void *row) { simt::load_matrices(r, 4, row, true); }
template <typename T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { simt::multiply(simt::operand<T>(), c, a, b0, b1); }
inline uint32_t transposed(uint32_t pair) {
  const uint32_t lane = simt::lane(), shift = lane / 4 % 2 * 16, from = lane % 4 * 8 + lane / 8;
  const uint32_t low = simt::exchange(0xffffffffu, pair, from), high = simt::exchange(0xffffffffu, pair, from + 4);
  return (low >> shift & 0xffff) | (high >> shift & 0xffff) << 16;
}

/* ---- barrier.cuh */

void barrier_init(uint64_t *barrier, uint32_t arrivals);
inline void barriers_ready() {}
void barrier_arrive(uint32_t barrier);
inline void barrier_arrive(uint64_t *barrier) { barrier_arrive(shared_address(barrier)); }
void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes);
void barrier_arrive_at_block(uint64_t *barrier, uint32_t rank);
inline void barrier_wait(uint32_t barrier, uint32_t parity) { simt::wait_parity(barrier, parity); }
inline void barrier_wait(uint64_t *barrier, uint32_t parity) { simt::wait_parity(shared_address(barrier), parity); }
inline bool barrier_passed(uint32_t, uint32_t) { return false; }
inline void barrier_wait_unless(bool, uint32_t barrier, uint32_t parity) { simt::wait_parity(barrier, parity); }
inline void barrier_wait_cluster(uint64_t *barrier, uint32_t parity) { simt::wait_parity(shared_address(barrier), parity); }
template <uint32_t THREADS>
void threads_meet(uint32_t id) { simt::meet_named(id, THREADS, true); }
template <uint32_t THREADS, uint32_t ID>
void threads_meet() { simt::meet_named(ID, THREADS, true); }
template <uint32_t THREADS>
void threads_arrive(uint32_t id) { simt::meet_named(id, THREADS, false); }
template <uint32_t THREADS, uint32_t ID>
void threads_arrive() { simt::meet_named(ID, THREADS, false); }

/* ---- wgmma.cuh */

inline uint32_t kept(uint32_t value) { return value; }
template <typename T>
T *kept(T *value) { return value; }
inline void gmma_fence() {}
inline void gmma_commit() { simt::group_commit(); }
template <int PENDING>
void gmma_wait() { simt::group_wait(PENDING); }
template <int N>
void gmma_settle(float (&)[N]) {}
inline void gmma_settle(uint32_t (&)[4]) {}
template <typename T, int N>
void gmma(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) { simt::group_multiply(simt::operand<T>(), N, d, nullptr, a, b, false, add); }
template <typename T, int N>
void gmma(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b, bool add) { simt::group_multiply(simt::operand<T>(), N, d, a, 0, b, false, add); }
template <typename T>
void gmma_values(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) { simt::group_multiply(simt::operand<T>(), 64, d, a, 0, b, true, add); }
template <bool TRANSPOSED>
void store_matrix_x4(void *row, const uint32_t (&r)[4]) { simt::store_matrices(r, 4, row, TRANSPOSED); }
template <uint32_t REGISTERS>
void give_registers() {}
template <uint32_t REGISTERS>
void take_registers() {}
inline void __nanosleep(uint32_t) { simt::pause(); }
inline float power_of_two(float v) { return exp2f(v); }

inline void tensor_copy(void *to, const TensorMap *map, uint32_t column, uint32_t row, uint64_t *barrier, uint64_t) {
  const uint32_t at[2] = {column, row};
  simt::tensor_box(to, map, at, 2, barrier, 1u << simt::rank());
}
inline void tensor_copy(void *to, const TensorMap *map, const uint32_t (&at)[5], uint64_t *barrier, uint64_t) {
  simt::tensor_box(to, map, at, 5, barrier, 1u << simt::rank());
}
inline void tensor_multicast(void *to, const TensorMap *map, uint32_t column, uint32_t row, uint64_t *barrier, uint32_t blocks, uint64_t) {
  const uint32_t at[2] = {column, row};
  simt::tensor_box(to, map, at, 2, barrier, blocks);
}
inline void tensor_multicast(void *to, const TensorMap *map, const uint32_t (&at)[5], uint64_t *barrier, uint32_t blocks, uint64_t) {
  simt::tensor_box(to, map, at, 5, barrier, blocks);
}
inline void tensor_prefetch(const TensorMap *, uint32_t, uint32_t) {}
inline void tensor_prefetch(const TensorMap *, const uint32_t (&)[5]) {}
inline void tensor_map_prefetch(const TensorMap *) {}
inline void operands_written() {}

inline uint32_t cluster_rank() { return simt::rank(); }
inline uint32_t cluster_blocks() { return simt::blocks(); }
inline void cluster_arrive() { simt::cluster_arrive(); }
inline void cluster_wait() { simt::cluster_wait(); }
inline void store4_to_block(uint32_t p, uint32_t rank, float4 v, uint32_t barrier) { simt::store_and_count(p, rank, &v.x, 4, barrier); }
inline void store_to_block(float *p, uint32_t rank, float v, uint64_t *barrier) {
  simt::store_and_count(shared_address(p), rank, &v, 1, shared_address(barrier));
}

/* ---- bulk.cuh */

inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) { simt::bulk_to_shared(to, from, bytes, barrier); }
inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t) { simt::bulk_to_shared(to, from, bytes, barrier); }
inline void bulk_store(void *to, const void *from, uint32_t bytes) { simt::bulk(to, from, bytes); }
inline void add4(void *to, uint4 v) {
  float *at = (float *)to, by[4];
  memcpy(by, &v, sizeof by);
  for (int i = 0; i < 4; i++) at[i] += by[i];
}
inline void bulk_commit() { simt::bulk_commit(); }
inline void bulk_read() { simt::bulk_wait(false); }
inline void bulk_done() { simt::bulk_wait(true); }

/* ---- global.cuh */

template <class T>
T load_now(const T *at) { return *at; }
inline uint4 load16(const void *p) { return *(const uint4 *)p; }
inline uint64_t read_once() { return 0; }
inline uint4 read_weights(const void *from, uint64_t) { return load16(from); }
inline uint32_t blocks_now() { return gridDim.x; }
template <class T>
T load_relaxed(const T *at) { return simt::load_word(at); }
template <class T>
void store_relaxed(T *at, T word) { simt::store_word(at, word); }
void await_count(const uint32_t *at, uint32_t count);
uint32_t count_and_know(uint32_t *at);
inline void count_release(uint32_t *at) { count_and_know(at); }

#endif
