/* tensor_map.h: what cuTensorMapEncodeTiled of the stand-in driver (driver.c) leaves in a CUtensorMap, for hopper.cpp's copies. */
#ifndef TEST_TENSOR_MAP_H
#define TEST_TENSOR_MAP_H

#include <stdint.h>

#define TENSOR_MAP_SIGN 0x70616d726f736e65u

struct tensor_map {
  uint64_t sign;
  uint64_t at;
  uint64_t size[5];    /* elements, innermost first; of dimensions that are not there 1 */
  uint64_t stride[4];  /* bytes from one to the next, of all dimensions but the first */
  uint16_t box[5];     /* elements of a box */
  uint16_t element;    /* bytes */
  uint32_t swizzled;   /* pieces of 16 bytes that change places, less one: 7 of CU_TENSOR_MAP_SWIZZLE_128B, 3 of _64B */
  uint8_t pad[24];
};

#endif
