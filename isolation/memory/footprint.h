/* What an allocation costs on the GPU, which is what the driver takes of it and not what the program asked for. */
#ifndef ISOLATION_MEMORY_FOOTPRINT_H
#define ISOLATION_MEMORY_FOOTPRINT_H

#include <stdbool.h>
#include <stdint.h>

/* Device memory comes in pages of this size; pieces smaller than SMALL_BYTES share pages. */
#define GRANULE_BYTES (UINT64_C(2) << 20)
#define SMALL_BYTES (UINT64_C(1) << 20)

/* Rounded up to whole pages; UINT64_MAX where that is more than a number holds. */
static inline uint64_t whole_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - GRANULE_BYTES ? UINT64_MAX : (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
}

/* a * b, or UINT64_MAX. */
static inline uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

#endif
