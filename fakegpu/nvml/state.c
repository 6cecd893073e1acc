#define _GNU_SOURCE
#include "nvml/state.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "description/mig.h"
#include "node/memory_limits.h"
#include "nvml/answers.h"

#define SECOND_NS UINT64_C(1000000000)

/* The states that this process has open. Nothing of it is ever closed: the process may hold slots of its own, through the
 * other library, and closing any descriptor of a lock file would drop them. */
enum { OPENED_MAX = 256 };
static struct opened {
    char uuid[41];
    char directory[STATE_DIRECTORY_MAX];
    struct state_files files;
} opened[OPENED_MAX];
static unsigned opened_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool reported;

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* Whether the files are still those that a CUDA process would open. */
static bool still_there(const struct opened *entry)
{
    struct stat status;
    return !fstat(entry->files.lock_file, &status) && status.st_nlink;
}

static struct opened *find(const char *directory, const char *uuid)
{
    for (unsigned i = 0; i < opened_count; i++) {
        if (!strcmp(opened[i].uuid, uuid) && !strcmp(opened[i].directory, directory))
            return &opened[i];
    }
    return NULL;
}

/* Under lock. False: nobody has used the GPU, and its state was not to be made, or cannot be. */
static bool open_state(const struct gpu *gpu, bool create, struct state_files *files)
{
    char directory[STATE_DIRECTORY_MAX], message[STATE_MESSAGE_MAX];
    if (node_state_directory(directory) != NVML_SUCCESS)
        return false;
    struct opened *entry = find(directory, gpu->uuid);
    if (!entry && opened_count == OPENED_MAX)
        return false;
    if (!entry || !still_there(entry)) {
        struct state_files fresh;
        enum state_error error = state_open(directory, gpu->uuid, create, &fresh, message);
        if (error == STATE_UNUSABLE && !reported) {
            reported = true;
            dprintf(STDERR_FILENO, "fakegpu: %s\n", message);
        }
        if (error != STATE_OK)
            return false;
        if (!entry) {
            entry = &opened[opened_count++];
            strcpy(entry->uuid, gpu->uuid);
            strcpy(entry->directory, directory);
        }
        entry->files = fresh;
    }
    *files = entry->files;
    return true;
}

static bool state_of(const struct gpu *gpu, struct state_files *files)
{
    pthread_mutex_lock(&mutex);
    bool found = open_state(gpu, false, files);
    pthread_mutex_unlock(&mutex);
    return found;
}

static unsigned percent(const struct busy_ring *ring, uint64_t window_ns)
{
    uint64_t now_ns = monotonic_ns(), counted_ns;
    if (window_ns < BUSY_BUCKET_NS)
        window_ns = BUSY_BUCKET_NS;
    if (window_ns > SECOND_NS)
        window_ns = SECOND_NS;
    uint64_t busy_ns = busy_between(ring, now_ns > window_ns ? now_ns - window_ns : 0, now_ns, &counted_ns);
    return counted_ns ? (unsigned)((busy_ns * 100 + counted_ns / 2) / counted_ns) : 0;
}

unsigned gpu_users(const struct gpu *gpu, uint64_t window_ns, struct gpu_user users[SLOTS_MAX], uint64_t *held_bytes)
{
    struct state_files files;
    struct state_holder holders[SLOTS_MAX];
    *held_bytes = 0;
    if (!state_of(gpu, &files))
        return 0;
    unsigned count = state_holders(&files, holders);
    for (unsigned i = 0; i < count; i++) {
        *held_bytes += holders[i].held_bytes;
        if (users)
            users[i] = (struct gpu_user){holders[i].pid, holders[i].held_bytes,
                                         percent(&files.state->slots[holders[i].slot].busy, window_ns)};
    }
    return count;
}

nvmlReturn_t gpu_limit(const struct gpu *gpu, uint64_t cgroup, const char *path, uint64_t soft_bytes, uint64_t hard_bytes)
{
    struct state_files files;
    enum limit_error error = LIMIT_OK;
    pthread_mutex_lock(&mutex);
    bool found = open_state(gpu, true, &files) && files.writable;
    if (found)
        error = limits_set(&files, cgroup, path, soft_bytes, hard_bytes);
    pthread_mutex_unlock(&mutex);
    if (!found)
        return NVML_ERROR_NO_PERMISSION;
    return error == LIMIT_OK ? NVML_SUCCESS : error == LIMIT_BUSY ? NVML_ERROR_IN_USE : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

void gpu_limits(const struct gpu *gpu, uint64_t cgroup, uint64_t *soft_bytes, uint64_t *hard_bytes, uint64_t *held_bytes)
{
    struct state_files files;
    struct state_holder holders[SLOTS_MAX];
    *soft_bytes = *held_bytes = 0;
    *hard_bytes = LIMIT_NONE;
    if (!state_of(gpu, &files))
        return;
    limits_get(files.state, cgroup, soft_bytes, hard_bytes);
    unsigned count = state_holders(&files, holders);
    for (unsigned i = 0; i < count; i++)
        *held_bytes += state_is_below(files.state, holders[i].slot, cgroup) ? holders[i].held_bytes : 0;
}

unsigned gpu_busy_percent(const struct gpu *gpu)
{
    struct state_files files;
    unsigned sum = gpu->gpu_percent;
    if (state_of(gpu, &files))
        sum += percent(&files.state->busy, SECOND_NS);
    return sum < 100 ? sum : 100;
}

static uint64_t held_bytes_of(const struct gpu *gpu)
{
    struct gpu device;
    uint64_t held_bytes, sum_bytes = 0;
    gpu_users(gpu, 0, NULL, &held_bytes);
    for (uint32_t i = 0; mig_device(gpu, i, &device); i++)
        sum_bytes += held_bytes_of(&device);
    return held_bytes + sum_bytes;
}

bool gpu_is_used(const struct gpu *gpu)
{
    return held_bytes_of(gpu);
}

uint64_t gpu_used_bytes(const struct gpu *gpu)
{
    return gpu_used_mib(gpu) * MIB + held_bytes_of(gpu);
}
