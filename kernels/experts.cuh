/* experts.cuh: what the router's token sort hands to the grouped matrix products. */
#ifndef TAILGRAPH_EXPERTS_CUH
#define TAILGRAPH_EXPERTS_CUH

#include <stdint.h>

/* Rows that one block multiplies with one expert's weights: places `first .. first + rows` of the token sort. */
struct alignas(16) ExpertTile {
  uint32_t expert;
  uint32_t first;
  uint32_t rows;
  uint32_t pad;
};

#endif
