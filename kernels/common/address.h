/* address.h: the type of an address on the device, in the structs that kernels are launched with (FAMILY/args.h). Those are plain C for
 * both sides: kernels include them, and Rust has them through bindgen.
 *
 * The host fills these structs and kernels read them. To a kernel an address is a pointer, with the type of what lies there. To the
 * host, which has the headers as C, through bindgen, it is a number: nobody there may follow it, it comes from sums of offsets, and
 * a struct of numbers may go from thread to thread. A number on both sides would lose the type where it is used; a pointer on both
 * would be a cast wherever one is filled in. Arrays of the type that a kernel is a template over are void: one struct serves all
 * its types, and the kernel casts once.
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
