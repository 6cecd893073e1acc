#define _GNU_SOURCE
#include "memory/holdings.h"

#include <stdlib.h>

#include "driver/real.h"
#include "process/fork_mutex.h"

/* Open addressing: a holding lies at the first free place from the one that its key says. A power of two, at most half full. */
static struct holding *places;
static size_t room, count;
/* Whether there ever was a green context: few programs have any. */
static _Atomic bool any_green;

static void forget_all(void)
{
    for (size_t i = 0; i < room; i++)
        places[i].kind = HOLDING_NONE;
    count = 0;
}
MUTEX_ACROSS_FORK(mutex, forget_all)

static size_t home_of(enum holding_kind kind, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)kind << 58) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 20) & (room - 1);
}

/* Where it is, or where it would be put. */
static struct holding *place_for(enum holding_kind kind, uint64_t key)
{
    size_t at = home_of(kind, key);
    while (places[at].kind != HOLDING_NONE && (places[at].kind != kind || places[at].key != key))
        at = (at + 1) & (room - 1);
    return &places[at];
}

static struct holding *find(enum holding_kind kind, uint64_t key)
{
    struct holding *place = room ? place_for(kind, key) : NULL;
    return place && place->kind != HOLDING_NONE ? place : NULL;
}

static bool grow(void)
{
    struct holding *old = places;
    size_t old_room = room, wanted = room ? room * 2 : 32;
    struct holding *fresh = calloc(wanted, sizeof *fresh);
    if (!fresh)
        return false;
    places = fresh;
    room = wanted;
    for (size_t i = 0; i < old_room; i++) {
        if (old[i].kind != HOLDING_NONE)
            *place_for(old[i].kind, old[i].key) = old[i];
    }
    free(old);
    return true;
}

/* Closes the gap: whatever lies behind it and could lie in it moves there. */
static void take_out(struct holding *place)
{
    size_t gap = (size_t)(place - places);
    for (size_t at = (gap + 1) & (room - 1); places[at].kind != HOLDING_NONE; at = (at + 1) & (room - 1)) {
        size_t from_home = (at - home_of(places[at].kind, places[at].key)) & (room - 1);
        if (from_home >= ((at - gap) & (room - 1))) {
            places[gap] = places[at];
            gap = at;
        }
    }
    places[gap].kind = HOLDING_NONE;
    count--;
}

bool holding_put(const struct holding *holding)
{
    pthread_mutex_lock(&mutex);
    bool fits = (count + 1) * 2 <= room || grow();
    if (fits) {
        struct holding *place = place_for(holding->kind, holding->key);
        count += place->kind == HOLDING_NONE;
        *place = *holding;
    }
    pthread_mutex_unlock(&mutex);
    if (holding->kind == HOLDING_GREEN)
        atomic_store(&any_green, true);
    return fits;
}

enum holding_shared holding_share(const struct holding *fresh)
{
    enum holding_shared shared = HOLDING_NO_ROOM;
    pthread_mutex_lock(&mutex);
    struct holding *found = find(fresh->kind, fresh->key);
    if (found) {
        found->users++;
        shared = HOLDING_SHARED;
    } else if ((count + 1) * 2 <= room || grow()) {
        found = place_for(fresh->kind, fresh->key);
        *found = *fresh;
        found->users = 1;
        count++;
        shared = HOLDING_FRESH;
    }
    pthread_mutex_unlock(&mutex);
    return shared;
}

bool holding_take(enum holding_kind kind, uint64_t key, struct holding *taken)
{
    pthread_mutex_lock(&mutex);
    struct holding *found = find(kind, key);
    if (found) {
        *taken = *found;
        take_out(found);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool holding_look(enum holding_kind kind, uint64_t key, struct holding *copy)
{
    pthread_mutex_lock(&mutex);
    struct holding *found = find(kind, key);
    if (found)
        *copy = *found;
    pthread_mutex_unlock(&mutex);
    return found;
}

int holding_users(enum holding_kind kind, uint64_t key, int change, struct holding *left)
{
    int users = -1;
    pthread_mutex_lock(&mutex);
    struct holding *found = find(kind, key);
    if (found) {
        users = (int)(found->users += (unsigned)change);
        if (!users) {
            if (left)
                *left = *found;
            take_out(found);
        }
    }
    pthread_mutex_unlock(&mutex);
    return users;
}

bool holding_charged(enum holding_kind kind, uint64_t key, int gpu, uint64_t bytes, unsigned shared)
{
    pthread_mutex_lock(&mutex);
    struct holding *found = find(kind, key);
    if (found) {
        found->gpu = gpu;
        found->bytes = bytes;
        found->shared = shared;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static bool fits(const struct holding *holding, enum holding_kind kind, CUcontext context)
{
    return holding->kind != HOLDING_NONE && (kind == HOLDING_NONE || holding->kind == kind) &&
           (!context || holding->context == context);
}

void holdings_each(enum holding_kind kind, CUcontext context, void (*each)(const struct holding *, void *), void *argument)
{
    pthread_mutex_lock(&mutex);
    struct holding *copy = count ? malloc(count * sizeof *copy) : NULL;
    size_t copied = 0;
    for (size_t i = 0; copy && i < room; i++) {
        if (fits(&places[i], kind, context))
            copy[copied++] = places[i];
    }
    pthread_mutex_unlock(&mutex);
    for (size_t i = 0; i < copied; i++)
        each(&copy[i], argument);
    free(copy);
}

CUcontext context_with_memory(void)
{
    struct holding held;
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    if (context && atomic_load_explicit(&any_green, memory_order_relaxed) &&
        holding_look(HOLDING_GREEN, (uintptr_t)context, &held))
        return held.context;
    return context;
}
