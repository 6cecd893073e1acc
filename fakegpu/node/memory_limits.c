#define _GNU_SOURCE /* nanosleep */
#include "node/memory_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>

#include "node/cgroups.h"

enum { LOCKED_BYTE = 2 * SLOTS_MAX };
#define PATIENCE_NS UINT64_C(1000000000)

static int lock_call(int file, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCKED_BYTE, .l_len = 1};
    return fcntl(file, F_SETLK, &lock);
}

/* A second at most: who has it may be stopped. */
static bool lock_table(int file)
{
    uint64_t deadline_ns = monotonic_ns() + PATIENCE_NS;
    while (lock_call(file, F_WRLCK)) {
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || monotonic_ns() >= deadline_ns)
            return false;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return true;
}

static struct limit *find(struct state *state, uint64_t cgroup)
{
    uint32_t used = atomic_load(&state->limits_used);
    for (uint32_t i = 0; i < used && i < LIMITS_MAX; i++) {
        if (atomic_load(&state->limits[i].cgroup) == cgroup)
            return &state->limits[i];
    }
    return NULL;
}

static void forget_gone(struct state *state)
{
    uint32_t used = atomic_load(&state->limits_used);
    for (uint32_t i = 0; i < used && i < LIMITS_MAX; i++) {
        struct limit *limit = &state->limits[i];
        uint64_t cgroup = atomic_load(&limit->cgroup);
        if (cgroup && cgroup_id(limit->path) != cgroup)
            atomic_store(&limit->cgroup, 0);
    }
}

static struct limit *free_entry(struct state *state)
{
    struct limit *found = find(state, 0);
    uint32_t used = atomic_load(&state->limits_used);
    if (found || used >= LIMITS_MAX)
        return found;
    atomic_store(&state->limits_used, used + 1);
    return &state->limits[used];
}

static void write_values(struct limit *limit, uint64_t soft_bytes, uint64_t hard_bytes)
{
    atomic_store(&limit->soft_bytes, soft_bytes);
    atomic_store(&limit->hard_bytes, hard_bytes);
}

static enum limit_error set_locked(struct state *state, uint64_t cgroup, const char *path, uint64_t soft_bytes,
                                   uint64_t hard_bytes)
{
    forget_gone(state);
    struct limit *limit = find(state, cgroup);
    if (!soft_bytes && hard_bytes == LIMIT_NONE) {
        if (limit)
            atomic_store(&limit->cgroup, 0);
        return LIMIT_OK;
    }
    if (limit) {
        write_values(limit, soft_bytes, hard_bytes);
        return LIMIT_OK;
    }
    limit = free_entry(state);
    if (!limit)
        return LIMIT_FULL;
    write_values(limit, soft_bytes, hard_bytes);
    snprintf(limit->path, sizeof limit->path, "%s", path);
    atomic_store(&limit->cgroup, cgroup);
    return LIMIT_OK;
}

enum limit_error limits_set(const struct state_files *files, uint64_t cgroup, const char *path, uint64_t soft_bytes,
                            uint64_t hard_bytes)
{
    if (!lock_table(files->lock_file))
        return LIMIT_BUSY;
    enum limit_error error = set_locked(files->state, cgroup, path, soft_bytes, hard_bytes);
    lock_call(files->lock_file, F_UNLCK);
    return error;
}

void limits_get(const struct state *state, uint64_t cgroup, uint64_t *soft_bytes, uint64_t *hard_bytes)
{
    const struct limit *limit = find((struct state *)state, cgroup);
    *soft_bytes = limit ? atomic_load(&limit->soft_bytes) : 0;
    *hard_bytes = limit ? atomic_load(&limit->hard_bytes) : LIMIT_NONE;
}

unsigned limits_count(const struct state *state)
{
    uint32_t used = atomic_load(&state->limits_used);
    unsigned count = 0;
    for (uint32_t i = 0; i < used && i < LIMITS_MAX; i++)
        count += atomic_load(&state->limits[i].cgroup) != 0;
    return count;
}
