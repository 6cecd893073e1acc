#define _GNU_SOURCE
#include "memory/charge.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "driver/gpus.h"
#include "files/account.h"
#include "files/members.h"
#include "files/own_process.h"
#include "memory/beyond.h"
#include "memory/shared.h"
#include "process/fork_mutex.h"
#include "process/log.h"

/* How long who wants to measure what a context costs waits for another one that does. */
enum { MEASURING_MOST_S = 10 };
/* How long a container waits for the part of its request that other containers have to give back. */
enum { GIVEN_BACK_MOST_S = 120 };

static struct member self = {.slot = -1};
/* What this process has, by its own reckoning: put into a new slot when the old one was taken from it. */
static uint64_t had_units[LIMITED_GPUS_MAX];

/* What the parent has in the driver is not the child's. */
static void forget_all(void)
{
    self.slot = -1;
    for (unsigned i = 0; i < LIMITED_GPUS_MAX; i++)
        had_units[i] = 0;
}
MUTEX_ACROSS_FORK(mutex, forget_all)

/* With the mutex. */
static bool joined(const struct container *here)
{
    if (member_holds(here->region, &self))
        return true;
    bool lost = self.slot >= 0 && own_process();
    if (lost)
        slot_leave(here, &self);
    if (!slot_join(here, &self)) {
        self.slot = -1;
        log_message("%d processes use GPUs in this container already; no more get any", REGION_SLOTS);
        return false;
    }
    for (unsigned i = 0; lost && i < LIMITED_GPUS_MAX; i++) {
        if (had_units[i])
            account_take(here->region, i, (unsigned)self.slot, had_units[i], UINT64_MAX);
    }
    return true;
}

/* `beyond_bytes` are in use in addition to what the accounts say. */
static bool take(const struct container *here, int gpu, uint64_t units, uint64_t beyond_bytes)
{
    uint64_t limit_bytes = container_allowed_bytes(here, gpu);
    uint64_t limit_units = limit_bytes > beyond_bytes ? (limit_bytes - beyond_bytes) / UNIT_BYTES : 0;
    unsigned slot = (unsigned)self.slot, index = (unsigned)gpu;
    if (!account_take(here->region, index, slot, units, limit_units)) {
        if (!slots_sweep(here, &self) || !account_take(here->region, index, slot, units, limit_units))
            return false;
    }
    had_units[gpu] += units;
    beyond_note_held(gpu, slot, had_units[gpu]);
    return true;
}

/* `taken_bytes` the driver has already, so they are beyond what was charged. Before anything is refused the driver is asked as often as it takes for
 * what is beyond to become less. */
static bool take_beside(const struct container *here, int gpu, uint64_t bytes, uint64_t taken_bytes)
{
    enum { COMPARED = 2 };
    uint64_t beyond = beyond_bytes(here, gpu, BEYOND_TAKING);
    for (int compared = 0;; compared++) {
        beyond -= taken_bytes < beyond ? taken_bytes : beyond;
        pthread_mutex_lock(&mutex);
        bool mine = joined(here), taken = mine && take(here, gpu, units_of(bytes), beyond);
        pthread_mutex_unlock(&mutex);
        if (taken || !mine || !beyond || compared == COMPARED)
            return taken;
        beyond = beyond_bytes(here, gpu, BEYOND_REFUSING);
    }
}

bool charge_await_request(int gpu)
{
    const struct container *here = container_here();
    struct timespec pause = {0, 10000000}, now;
    if (!here || gpu < 0 || container_allowed_bytes(here, gpu) >= here->limits.gpus[gpu].memory_bytes)
        return true;
    log_message("waiting up to %d s for memory of %.48s that other containers have to give back", GIVEN_BACK_MOST_S,
        here->limits.gpus[gpu].uuid);
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t patience_s = now.tv_sec + GIVEN_BACK_MOST_S;
    while (container_allowed_bytes(here, gpu) < here->limits.gpus[gpu].memory_bytes) {
        if (now.tv_sec >= patience_s)
            return false;
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    return true;
}

static CUresult charge(int gpu, uint64_t bytes, uint64_t taken_bytes)
{
    const struct container *here = container_here();
    if (!here)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (gpu == GPU_NOT_ALLOCATED) {
        log_message("no memory of a GPU that is not allocated to this container");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!bytes)
        return CUDA_SUCCESS;
    bool taken = take_beside(here, gpu, bytes, taken_bytes);
    /* What the driver has taken already cannot wait. */
    if (!taken && !taken_bytes && container_allowed_bytes(here, gpu) < here->limits.gpus[gpu].memory_bytes)
        taken = charge_await_request(gpu) && take_beside(here, gpu, bytes, 0);
    if (!taken) {
        atomic_fetch_add_explicit(&here->region->gpus[gpu].refused, 1, memory_order_relaxed);
        log_message("%llu bytes of %.48s: more than is left of the container's %llu MiB", (unsigned long long)bytes,
            here->limits.gpus[gpu].uuid, (unsigned long long)container_allowed_bytes(here, gpu) >> 20);
    }
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_take(int gpu, uint64_t bytes)
{
    return charge(gpu, bytes, 0);
}

CUresult charge_taken(int gpu, uint64_t bytes)
{
    return charge(gpu, bytes, bytes);
}

void charge_give(int gpu, uint64_t bytes)
{
    const struct container *here = container_here();
    if (!here || gpu == GPU_NOT_ALLOCATED || !bytes)
        return;
    uint64_t units = units_of(bytes);
    pthread_mutex_lock(&mutex);
    if (joined(here)) {
        account_give(here->region, (unsigned)gpu, (unsigned)self.slot, units);
        had_units[gpu] -= units < had_units[gpu] ? units : had_units[gpu];
    }
    pthread_mutex_unlock(&mutex);
}

void holding_pay_back(const struct holding *held)
{
    if (held->shared)
        shared_leave((int)held->shared - 1);
    else
        charge_give(held->gpu, held->bytes);
}

CUresult charge_look(int gpu, uint64_t *limit_bytes, uint64_t *used_bytes)
{
    const struct container *here = container_here();
    *limit_bytes = *used_bytes = 0;
    if (!here)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (gpu == GPU_NOT_ALLOCATED)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (!own_process())
        self.slot = -1;
    slots_sweep(here, &self);
    pthread_mutex_unlock(&mutex);
    *limit_bytes = container_memory_bytes(here, gpu);
    *used_bytes = beyond_bytes(here, gpu, BEYOND_REPORTING);
    *used_bytes += account_total_units(here->region, (unsigned)gpu) * UNIT_BYTES;
    return CUDA_SUCCESS;
}

/* --- what a context costs ------------------------------------------------------------------------------------- */

uint64_t charge_context_bytes(int gpu)
{
    const struct container *here = container_here();
    return here && gpu >= 0 ? atomic_load(&here->region->gpus[gpu].context_bytes) : 0;
}

void charge_measuring(int gpu, bool begin)
{
    const struct container *here = container_here();
    struct timespec pause = {0, 2000000}, now;
    if (!here || gpu < 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t patience_s = now.tv_sec + MEASURING_MOST_S;
    struct flock lock = {.l_type = begin ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET,
                         .l_start = REGION_LOCK_FIRST_CONTEXT + gpu, .l_len = 1};
    while (fcntl(here->file, F_SETLK, &lock) && begin && now.tv_sec < patience_s) {
        if (charge_context_bytes(gpu))
            return;
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
}

void charge_context_measured(int gpu, uint64_t bytes)
{
    const struct container *here = container_here();
    uint64_t none = 0;
    if (here && gpu >= 0 && bytes)
        atomic_compare_exchange_strong(&here->region->gpus[gpu].context_bytes, &none, bytes);
}
