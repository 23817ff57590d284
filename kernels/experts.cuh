/* experts.cuh: what the router, the token sort and the grouped matrix products agree on. */
#ifndef TAILGRAPH_EXPERTS_CUH
#define TAILGRAPH_EXPERTS_CUH

#include <stdint.h>

constexpr int MAX_EXPERTS = 128;

/* Rows that one block multiplies with one expert's weights: places `first .. first + rows` of the token sort. */
struct alignas(16) ExpertTile {
  uint32_t expert;
  uint32_t first;
  uint32_t rows;
  uint32_t pad;
};

#endif
