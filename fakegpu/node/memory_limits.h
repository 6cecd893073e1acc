/* What cgroups may hold of a GPU's memory: a table in the GPU's state (node/state.h), which state_reserve keeps to.
 *
 * Limits are set under a lock of the kernel's (a byte of the lock file), which ends with the process that has it, and read without.
 * An entry is filled before it names its cgroup, and marked free before it is filled again, so that a process that dies while it
 * sets one leaves the old limit or the new one. A limit ends with its cgroup: setting another one clears those whose directory is gone,
 * and no process can be in them. */
#ifndef FAKEGPU_NODE_MEMORY_LIMITS_H
#define FAKEGPU_NODE_MEMORY_LIMITS_H

#include "node/state.h"

#define LIMIT_NONE UINT64_MAX

enum limit_error {
    LIMIT_OK,
    LIMIT_FULL, /* LIMITS_MAX cgroups have one */
    LIMIT_BUSY, /* another process holds the lock for too long */
};

/* `path` is the cgroup's directory as this process and others that set limits have it, `cgroup` what cgroup_id says of it.
 * No soft limit (0) and no hard one (LIMIT_NONE) take its entry away. One thread of a process at a time. */
enum limit_error limits_set(const struct state_files *files, uint64_t cgroup, const char *path, uint64_t soft_bytes,
                            uint64_t hard_bytes);

/* What is set on the cgroup itself. */
void limits_get(const struct state *state, uint64_t cgroup, uint64_t *soft_bytes, uint64_t *hard_bytes);

/* How many cgroups have a limit; removed ones included, until one is set. */
unsigned limits_count(const struct state *state);

#endif
