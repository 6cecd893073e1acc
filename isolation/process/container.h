/* The container that this process lives in: its limits and its usage file, read and mapped once.
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
};

/* NULL: refused. A few nanoseconds once it is there. */
const struct container *container_here(void);

/* Index of a GPU in the limits, by its UUID as NVML spells it; -1: not allocated to this container. */
int container_gpu(const struct container *container, const char *uuid);

#endif
