/* A set of address ranges that do not overlap, found by any address within them: a treap. Not thread-safe by itself. */
#ifndef FAKEGPU_CUDA_MEMORY_RANGES_H
#define FAKEGPU_CUDA_MEMORY_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
    uintptr_t start;
    size_t size; /* not 0 */
    struct range *left, *right;
    uint32_t priority;
};

struct ranges {
    struct range *root;
    uint32_t seed;
};

/* The range must stay where it is until removed, and overlap none. */
void ranges_insert(struct ranges *ranges, struct range *range);
void ranges_remove(struct ranges *ranges, struct range *range);

/* The range that holds the address, or NULL. */
struct range *ranges_at(const struct ranges *ranges, uintptr_t address);

/* The first range that ends after the address, or NULL: ranges_at, or the next one above. */
struct range *ranges_from(const struct ranges *ranges, uintptr_t address);

#endif
