/* address.h: the type of an address on the device, in the structs that kernels are launched with, by value (FAMILY/args.h). Those are plain
 * C for both sides: kernels include them, and Rust has them through bindgen.
 *
 * To a kernel an address is a pointer, with the type of what lies there. To the host it is a number: nobody there may follow it, and a
 * struct of numbers may go from thread to thread. Arrays of the type that a kernel is a template over are void: one struct serves all its
 * types, and the kernel casts once. Tensor maps are arguments of their own: the driver makes them of what a call only describes.
 */
#ifndef TAILGRAPH_ADDRESS_H
#define TAILGRAPH_ADDRESS_H

#include <stdint.h>

#ifdef __cplusplus
#define TG_ADDRESS(T) T *
static_assert(sizeof(void *) == sizeof(uint64_t), "structs have one layout on both sides");
#else
#define TG_ADDRESS(T) uint64_t
#endif

#endif
