#define _GNU_SOURCE
#include "process/container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "process/fork_mutex.h"
#include "process/log.h"
#include "process/place.h"

static struct container container = {.file = -1};
static _Atomic(const struct container *) ready;

static void same_in_child(void) {}
MUTEX_ACROSS_FORK(mutex, same_in_child)

enum { PATH_BYTES = 512 };

/* Path of the file `name` of this container. */
static void path_of(const char *name, char path[PATH_BYTES])
{
    const char *directory = RUN_DIRECTORY;
#ifdef GPUSHARE_RUN_FROM_ENVIRONMENT
    if (getenv("GPUSHARE_RUN"))
        directory = getenv("GPUSHARE_RUN");
#endif
    snprintf(path, PATH_BYTES, "%.400s/%.64s", directory, name);
}

static const char *claim_header(struct region_header *header)
{
    uint64_t magic = 0;
    uint32_t version = 0;
    /* The version first: a process that sees the magic sees it too. Processes that race write the same. */
    if (!atomic_load(&header->magic)) {
        atomic_compare_exchange_strong(&header->version, &version, REGION_VERSION);
        atomic_compare_exchange_strong(&header->magic, &magic, REGION_MAGIC);
    }
    if (atomic_load(&header->magic) != REGION_MAGIC)
        return "not a usage file";
    if (atomic_load(&header->version) != REGION_VERSION)
        return "of another version than this library; restart the container";
    return NULL;
}

/* The descriptor stays open where it fails, too: closing it would drop the lock of the process's other library. */
static const char *map_usage(const char *path)
{
    if (container.file < 0)
        container.file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (container.file < 0)
        return strerror(errno);
    off_t size = lseek(container.file, 0, SEEK_END);
    if (size < (off_t)REGION_BYTES)
        return "smaller than a usage file; it was cut off, or the node agent is older than this library";
    void *mapped = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, container.file, 0);
    if (mapped == MAP_FAILED)
        return strerror(errno);
    const char *problem = claim_header(&((struct region *)mapped)->header);
    if (problem) {
        munmap(mapped, REGION_BYTES);
        return problem;
    }
    container.region = mapped;
    return NULL;
}

static const char *map_allowance(const char *path)
{
    enum { BYTES = LIMITED_GPUS_MAX * sizeof(uint64_t) };
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (file < 0)
        return strerror(errno);
    const char *problem = lseek(file, 0, SEEK_END) < BYTES ? "smaller than an allowance file; it was cut off" : NULL;
    if (!problem) {
        void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED)
            problem = strerror(errno);
        else
            container.allowance_bytes = mapped;
    }
    close(file);
    return problem;
}

static const struct container *open_container(void)
{
    char path[PATH_BYTES], message[LIMITS_MESSAGE_MAX];
    path_of("limits", path);
    if (!limits_read_file(path, &container.limits, message)) {
        log_message("%s; the GPU cannot be used until the limits can be read", message);
        return NULL;
    }
    path_of("allowance", path);
    const char *problem = container.limits.allowance && !container.allowance_bytes ? map_allowance(path) : NULL;
    if (!problem) {
        path_of("usage", path);
        problem = map_usage(path);
    }
    if (problem) {
        log_message("%s: %s; the GPU cannot be used without it", path, problem);
        return NULL;
    }
    return &container;
}

const struct container *container_here(void)
{
    const struct container *here = atomic_load_explicit(&ready, memory_order_acquire);
    if (here)
        return here;
    pthread_mutex_lock(&mutex);
    here = atomic_load_explicit(&ready, memory_order_relaxed);
    if (!here && (here = open_container()))
        atomic_store_explicit(&ready, here, memory_order_release);
    pthread_mutex_unlock(&mutex);
    return here;
}

int container_gpu(const struct container *here, const char *uuid)
{
    for (unsigned i = 0; i < here->limits.gpu_count; i++) {
        if (!strcmp(here->limits.gpus[i].uuid, uuid))
            return (int)i;
    }
    return -1;
}

uint64_t container_allowed_bytes(const struct container *here, int gpu)
{
    if (here->allowance_bytes)
        return atomic_load_explicit(&here->allowance_bytes[gpu], memory_order_relaxed);
    return here->limits.gpus[gpu].memory_bytes;
}

uint64_t container_memory_bytes(const struct container *here, int gpu)
{
    uint64_t allowed_bytes = container_allowed_bytes(here, gpu), request_bytes = here->limits.gpus[gpu].memory_bytes;
    return allowed_bytes > request_bytes ? allowed_bytes : request_bytes;
}
