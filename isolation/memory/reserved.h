/* Memory that the driver reserves in advance and by its own rules: pools, and the memory that a device keeps for graphs. Charged is
 * what the driver says that it has reserved, or is about to. */
#ifndef ISOLATION_MEMORY_RESERVED_H
#define ISOLATION_MEMORY_RESERVED_H

#include <stdatomic.h>

#include "memory/holdings.h"

/* What the driver takes at a time. */
#define RESERVE_CHUNK_BYTES (UINT64_C(32) << 20)

/* The most that one allocation can make the driver reserve. */
uint64_t reserve_growth_bytes(uint64_t bytes);

/* Pool (HOLDING_POOL, by handle) or memory for graphs (HOLDING_GRAPHS, by device). `taken_bytes` were charged for it just now;
 * what is charged becomes what is reserved, but not less than `least_bytes`. CUDA_ERROR_OUT_OF_MEMORY: the driver has reserved more
 * than the container has left; charged is then what it was, without `taken_bytes`. One thread at a time. */
CUresult reserved_settle(enum holding_kind kind, uint64_t key, int gpu, uint64_t taken_bytes, uint64_t least_bytes);

/* What a pool has, in bytes: one of its attributes. */
CUresult pool_ask(CUmemoryPool pool, int attribute, uint64_t *bytes);

/* Of all pools. */
extern struct reserved_counts {
    /* How often something was freed, and of those what has been settled for good. */
    _Atomic uint64_t freed, settled;
    /* Pieces that were allocated, and those of them that were freed and may not be gone yet. What else is freed without being known may be
     * counted here, too: then there seem to be fewer than there are. */
    _Atomic int64_t pieces, going;
} reserved_counts;

/* Of memory that the program frees in order with a stream, or that may be a pool's (`pieces` of it): settle at the next chance. */
void reserved_note_freed(unsigned pieces);

/* In a child of fork: nothing is reserved. */
void reserved_forget(void);

#endif
