#define _GNU_SOURCE
#include "memory/beyond.h"

#include <time.h>
#include <unistd.h>

#include "files/account.h"
#include "files/members.h"
#include "memory/measure.h"
#include "process/fork_mutex.h"

/* Between two comparisons, at least. Before allocations also a hundred times what the last one took, as far as that is not a busy machine's doing. */
#define TELLING_PAUSE_NS UINT64_C(1000000)
#define TAKING_PAUSE_NS UINT64_C(20000000)
#define TAKING_PAUSE_MOST_NS UINT64_C(200000000)
enum { TAKING_SHARE = 100 };

/* Of one GPU, as it was found last. */
struct found {
    _Atomic uint64_t bytes, before_bytes; /* by the last comparison, and by the one before */
    _Atomic uint64_t at_ns, took_ns;
    _Atomic unsigned events;              /* that were known of then */
};
static struct found found[LIMITED_GPUS_MAX];
/* Of each process, by its slot, what the driver counted less what was charged, and whose the slot was: holds while its account changes too
 * fast to be compared. */
static struct { uint64_t owner; int64_t bytes; } known[LIMITED_GPUS_MAX][REGION_SLOTS];
static _Atomic unsigned events;
/* This process's slot, and the most that it was charged since the comparison under way began. */
static _Atomic unsigned own_slot = REGION_SLOTS;
static _Atomic uint64_t most_units[LIMITED_GPUS_MAX];

/* A child of fork has another number in the list, or none. */
static void forget_all(void)
{
    atomic_store(&own_slot, REGION_SLOTS);
    for (unsigned i = 0; i < LIMITED_GPUS_MAX; i++) {
        atomic_store(&found[i].at_ns, 0);
        atomic_store(&found[i].bytes, 0);
        atomic_store(&found[i].before_bytes, 0);
    }
}
MUTEX_FRESH_IN_CHILD(mutex, forget_all)

void beyond_expect(void)
{
    atomic_fetch_add_explicit(&events, 1, memory_order_relaxed);
}

void beyond_note_held(int gpu, unsigned slot, uint64_t units)
{
    atomic_store_explicit(&own_slot, slot, memory_order_relaxed);
    if (units > atomic_load_explicit(&most_units[gpu], memory_order_relaxed))
        atomic_store(&most_units[gpu], units);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* --- one comparison ----------------------------------------------------------------------------------------------- */

/* Accounts before the driver was asked. */
static struct account_reading before[REGION_SLOTS];

static unsigned slots_used(const struct region *region)
{
    unsigned used = atomic_load(&region->header.slots_used);
    return used < REGION_SLOTS ? used : REGION_SLOTS;
}

/* The most that a slot was charged while the driver was asked; false: it changed too often to say. */
static bool most_of(const struct region *region, unsigned gpu, unsigned slot, uint64_t *bytes)
{
    struct account_reading after = account_read(region, gpu, slot);
    uint64_t units = after.units > before[slot].units ? after.units : before[slot].units;
    bool own = atomic_load(&own_slot) == slot;
    if (own && atomic_load(&most_units[gpu]) > units)
        units = atomic_load(&most_units[gpu]);
    *bytes = units * UNIT_BYTES;
    return own || account_changes(before[slot], after) <= 1;
}

/* Of one process in the driver's list: what the driver counts less what was charged. One that has no slot is not of this container. A dead one of
 * the same number may have a slot yet, which then counts with it. */
static int64_t difference(const struct region *region, unsigned gpu, unsigned used, uint64_t namespace,
                          const struct measured *process)
{
    uint64_t charged_bytes = 0, one_bytes;
    bool sure = true;
    unsigned slot = REGION_SLOTS;
    for (unsigned i = 0; i < used; i++) {
        if (atomic_load_explicit(&region->slots[i].pid, memory_order_relaxed) != (int32_t)process->pid ||
            !atomic_load(&region->slots[i].owner) || atomic_load(&region->slots[i].shared) || atomic_load(&region->slots[i].pid_namespace) != namespace)
            continue;
        sure = most_of(region, gpu, i, &one_bytes) && sure;
        charged_bytes += one_bytes;
        slot = slot < REGION_SLOTS ? slot : i;
    }
    if (slot == REGION_SLOTS)
        return 0;
    uint64_t owner = atomic_load(&region->slots[slot].owner);
    if (sure || known[gpu][slot].owner != owner) {
        known[gpu][slot].owner = owner;
        known[gpu][slot].bytes = sure ? (int64_t)(process->bytes - charged_bytes) : 0;
    }
    return known[gpu][slot].bytes;
}

/* What several processes have open is charged in slots of its own; the driver counts it for one of them, whichever. */
static int64_t shared_bytes(const struct region *region, unsigned gpu, unsigned used)
{
    uint64_t sum_bytes = 0, one_bytes;
    for (unsigned i = 0; i < used; i++) {
        if (!atomic_load(&region->slots[i].owner) || !atomic_load(&region->slots[i].shared))
            continue;
        most_of(region, gpu, i, &one_bytes);
        sum_bytes += one_bytes;
    }
    return (int64_t)sum_bytes;
}

/* With the mutex. Where the driver does not say, what was found before holds. */
static void compare(const struct container *container, unsigned gpu)
{
    static struct measured processes[MEASURED_MAX];
    const struct region *region = container->region;
    struct found *last = &found[gpu];
    bool open = measure_open();
    unsigned used = slots_used(region), count;
    uint64_t begun_ns = now_ns();
    int64_t sum_bytes = 0;
    atomic_store(&last->events, atomic_load(&events));
    atomic_store(&most_units[gpu], 0);
    for (unsigned i = 0; i < used; i++)
        before[i] = account_read(region, gpu, i);
    if (open && measure_each(container->limits.gpus[gpu].uuid, processes, &count)) {
        uint64_t namespace = member_namespace();
        for (unsigned i = 0; i < count; i++)
            sum_bytes += difference(region, gpu, used, namespace, &processes[i]);
        sum_bytes -= shared_bytes(region, gpu, used);
        atomic_store(&last->before_bytes, atomic_load(&last->bytes));
        atomic_store(&last->bytes, sum_bytes > 0 ? (uint64_t)sum_bytes : 0);
    }
    uint64_t ended_ns = now_ns();
    atomic_store(&last->took_ns, ended_ns - begun_ns);
    atomic_store(&last->at_ns, ended_ns);
}

/* --- when ----------------------------------------------------------------------------------------------------------- */

static uint64_t taking_pause_ns(const struct found *last)
{
    uint64_t pause_ns = atomic_load_explicit(&last->took_ns, memory_order_relaxed) * TAKING_SHARE;
    if (pause_ns > TAKING_PAUSE_MOST_NS)
        return TAKING_PAUSE_MOST_NS;
    return pause_ns > TAKING_PAUSE_NS ? pause_ns : TAKING_PAUSE_NS;
}

static bool is_due(struct found *last, enum beyond_why why)
{
    uint64_t at_ns = atomic_load_explicit(&last->at_ns, memory_order_relaxed), now = 0;
    if (why == BEYOND_REFUSING || atomic_load_explicit(&events, memory_order_relaxed) != atomic_load(&last->events))
        return true;
    now = now_ns();
    if (why == BEYOND_REPORTING)
        return now - at_ns >= TELLING_PAUSE_NS;
    if (at_ns)
        return now - at_ns >= taking_pause_ns(last);
    atomic_store(&last->at_ns, now); /* the first time nothing has been taken yet */
    return false;
}

/* What is charged before the driver takes it hides as much of what is beyond; so before an allocation that must have gone in two comparisons. */
static uint64_t answer(const struct found *last, enum beyond_why why)
{
    uint64_t bytes = atomic_load(&last->bytes), before_bytes = atomic_load(&last->before_bytes);
    return why != BEYOND_REPORTING && before_bytes > bytes ? before_bytes : bytes;
}

uint64_t beyond_bytes(const struct container *container, int gpu, enum beyond_why why)
{
    struct found *last = &found[gpu];
    if (!is_due(last, why))
        return answer(last, why);
    if (why != BEYOND_TAKING)
        pthread_mutex_lock(&mutex);
    else if (pthread_mutex_trylock(&mutex))
        return answer(last, why);
    if (is_due(last, why))
        compare(container, (unsigned)gpu);
    pthread_mutex_unlock(&mutex);
    return answer(last, why);
}
