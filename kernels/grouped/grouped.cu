// build: sm_90a types e4m3
/* grouped.cu: grouped/grouped.cuh for the experts' feed-forwards, up to what tg_combine_* sums.
 *
 *   y[p,:] = silu(w1_e x) * w3_e x     p: a place of the token sort, e its expert, x its row of x[R,H]; y[R k,I]
 *   partial[i,:] = w2_e y[p,:]         i: the pair of a row and one of its k experts that is at p; [R k,H], f32 or, of many rows, rounded
 *
 * chosen[R,k] are each row's experts, ascending; k is at most MAX_TOP_K. tile_rows is a multiple of 8, and expert tiles are at most
 * TG_GROUPED_MOST_TILES. tile.cuh has the maps of the packed weights. A launch takes the first instance with room for R and tile_rows:
 *
 *   tg_grouped_…_TYPE    | R, at most | tile_rows, at most | loaders | down's sums
 *   experts              | 256        | 64, of f32 rows 32 | 3       | f32; taken up to 16 rows of 16 bits, or with fewer than 5 stages
 *   experts_many         | 256        | 64, of f32 rows 32 | 5       | f32
 *   experts_tall         | 256        | 96                 | 5       | f32; f32 rows have neither this nor the next ones
 *   experts_512, _1024   | as named   | 96                 | 5       | rounded
 *   experts_…_tallest    | as named   | 128                | 5       | rounded
 *
 * Weights in 8 bits (TYPE bf16_e4m3 and f32_e4m3) have all but experts_512 and experts_1024.
 *
 * Launch: grid = a block an SM, at most TG_GROUPED_MOST_BLOCKS, block = the instance's threads, stages at least as many as it has loaders,
 * shared = stages * grouped_stage_bytes(tile_rows) + GMMA_ATOM_BYTES.
 * Bound: memory, the weights of the experts that have rows. What SMs take in comes near it with many rows: of 32 experts of 2048 x 1792,
 * four a row, 1.1 GB at 512 rows in tiles of 128, 1.8 GB at 1,024, where L2 gives all SMs 9 TB/s and the memory has 705 MB to give
 * (profiles/log/experts.md). Measured on an H200 in bf16, 32 experts of 2048 x 1792, in the model (floor, of which some has come before it
 * begins; how: profiles/README.md): 154.2 us (155.2) at 64 rows, 158.8 at 128, 162.0 at 256 in tiles of 96, 172.8 at 512 in tiles of 128.
 * On an H100 243.6 (227) at 509 in tiles of 128.
 */
#include "common/launch.cuh"
#include "grouped/grouped.cuh"

/* Registers a thread, so few that other kernels' blocks find room: one of router/norm_router.cu beside each with 3 loaders. Higher tiles
 * have more sums. A quarter of an SM has 16,384 registers, and so four warps 128 each. */
[[maybe_unused]] constexpr int GROUPED_REGISTERS = 112, GROUPED_TALL_REGISTERS = 128;

/* EACH: rows that a thread sorts. For the launcher: rows of a step and of a tile, at most; loaders, threads, static shared memory,
 * whether down's sums are rounded, as they are in the instances for 512 rows and more, where tg_combine_* is bound by what it reads. */
#define GROUPED(NAME, EACH, REGISTERS, LOADERS, COUNTER, ...)                                                                  \
  LAUNCH_CONSTANTS(tg_grouped_##NAME##_tile, 6, GroupedSort<EACH>::ROWS, __VA_ARGS__::MOST_ROWS, LOADERS,                      \
                   (GROUPED_CONSUMERS + LOADERS + COUNTER + 1) * WARP, GROUPED_STATIC_BYTES<EACH>, __VA_ARGS__::ROUNDS)        \
  extern "C" __global__ void __maxnreg__(REGISTERS) tg_grouped_##NAME(const __grid_constant__ TensorMap gate_up,               \
                                                                      const __grid_constant__ TensorMap down,                  \
                                                                      const tg_grouped_args a) {                               \
    grouped<__VA_ARGS__, LOADERS, COUNTER, EACH>(gate_up, down, a);                                                            \
  }

#define GROUPED_HALF(TYPE, T)                                                                                                \
  GROUPED(experts_##TYPE, 1, GROUPED_REGISTERS, 3, false, GroupedTile<Direct<T>, 64>)                                        \
  GROUPED(experts_many_##TYPE, 1, GROUPED_REGISTERS, 5, true, GroupedTile<Direct<T>, 64>)                                    \
  GROUPED(experts_tall_##TYPE, 1, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<Direct<T>, 96>)                               \
  GROUPED(experts_512_##TYPE, 2, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<Direct<T>, 96, T>)                             \
  GROUPED(experts_512_tallest_##TYPE, 2, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<Direct<T>, 128, T>)                    \
  GROUPED(experts_1024_##TYPE, TG_GROUPED_MOST_EACH, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<Direct<T>, 96, T>)         \
  GROUPED(experts_1024_tallest_##TYPE, TG_GROUPED_MOST_EACH, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<Direct<T>, 128, T>)
FOR_HALF_TYPES(GROUPED_HALF)
OF_BF16_E4M3(
  GROUPED(experts_bf16_e4m3, 1, GROUPED_REGISTERS, 3, false, GroupedTile<WeightsE4m3<Direct<__nv_bfloat16>>, 64>)
  GROUPED(experts_many_bf16_e4m3, 1, GROUPED_REGISTERS, 5, true, GroupedTile<WeightsE4m3<Direct<__nv_bfloat16>>, 64>)
  GROUPED(experts_tall_bf16_e4m3, 1, GROUPED_TALL_REGISTERS, 5, true, GroupedTile<WeightsE4m3<Direct<__nv_bfloat16>>, 96>)
  GROUPED(experts_512_tallest_bf16_e4m3, 2, GROUPED_TALL_REGISTERS, 5, true,
          GroupedTile<WeightsE4m3<Direct<__nv_bfloat16>>, 128, __nv_bfloat16>)
  GROUPED(experts_1024_tallest_bf16_e4m3, TG_GROUPED_MOST_EACH, GROUPED_TALL_REGISTERS, 5, true,
          GroupedTile<WeightsE4m3<Direct<__nv_bfloat16>>, 128, __nv_bfloat16>))
OF_F32_E4M3(
  GROUPED(experts_f32_e4m3, 1, GROUPED_REGISTERS, 3, false, GroupedTile<WeightsE4m3<Bf16x3>, TG_GROUPED_BF16X3_ROWS>)
  GROUPED(experts_many_f32_e4m3, 1, GROUPED_REGISTERS, 5, true, GroupedTile<WeightsE4m3<Bf16x3>, TG_GROUPED_BF16X3_ROWS>))
OF_F32(GROUPED(experts_f32, 1, GROUPED_REGISTERS, 3, false, GroupedTile<Bf16x3, TG_GROUPED_BF16X3_ROWS>))
OF_F32(GROUPED(experts_many_f32, 1, GROUPED_REGISTERS, 5, true, GroupedTile<Bf16x3, TG_GROUPED_BF16X3_ROWS>))
