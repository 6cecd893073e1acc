/* The container that this process lives in: its limits and its files, read and mapped once.
 *
 * Where either cannot be had, everything limited is refused with CUDA_ERROR_SYSTEM_NOT_READY and the reason is logged
 * (process/log.h); the next call tries again. */
#ifndef ISOLATION_PROCESS_CONTAINER_H
#define ISOLATION_PROCESS_CONTAINER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "files/limits.h"
#include "files/region.h"

struct container {
    struct limits limits;
    struct region *region; /* mapped until the process ends */
    int file;              /* of the usage file; never closed */
    const _Atomic uint64_t *allowance_bytes; /* by GPU; changed by the node agent at any time. NULL: limits.gpus holds */
};

/* NULL: refused. A few nanoseconds once it is there. */
const struct container *container_here(void);

/* Index of a GPU in the limits, by its UUID as NVML spells it; -1: not allocated to this container. */
int container_gpu(const struct container *container, const char *uuid);

/* What the container may take of a GPU at this moment: its request, more while the GPU has it free, or less until others give it back. */
uint64_t container_allowed_bytes(const struct container *container, int gpu);

/* How large the GPU looks to the container's programs: what it may take, and at least its request. */
uint64_t container_memory_bytes(const struct container *container, int gpu);

#endif
