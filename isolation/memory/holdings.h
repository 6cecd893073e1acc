/* What this process got of the driver, by its handle or address, and what was charged for it: so that giving back one gives
 * back the other. Safe from any thread; empty in a child of fork. */
#ifndef ISOLATION_MEMORY_HOLDINGS_H
#define ISOLATION_MEMORY_HOLDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"

enum holding_kind {
    HOLDING_NONE,
    HOLDING_LINEAR,  /* an address: plain, pitched, managed */
    HOLDING_SLAB,    /* a page that small pieces share, by its number; `users` of them */
    HOLDING_PHYSICAL,/* a handle of cuMemCreate, or imported; `users`: handles and mappings that keep it; `size` 1: of unknown size */
    HOLDING_MAPPING, /* an address of cuMemMap; `other`: the handle behind it; `bytes`: its length */
    HOLDING_OPENED,  /* an address of cuIpcOpenMemHandle; `users`: how often it was opened */
    HOLDING_ARRAY,   /* arrays and mipmapped arrays */
    HOLDING_POOL,    /* a memory pool; `bytes`: what of its reserved memory is charged */
    HOLDING_GRAPHS,  /* a device's memory for graphs, by the device; `bytes` as with pools */
    HOLDING_EXEC,    /* an instantiated graph; `other`: what its nodes allocate, in bytes */
    HOLDING_GREEN,   /* a green context, by its CUcontext; `context`: the primary one; `other`: the device */
    HOLDING_CONTEXT, /* a context; `size`: what of it is for stacks */
};

struct holding {
    uint64_t key;
    enum holding_kind kind;
    int gpu;           /* as in driver/gpus.h */
    uint64_t bytes;    /* charged; 0: others are charged for it */
    uint64_t other, size;
    unsigned users;
    unsigned shared;   /* 0: charged to this process; else one more than the slot that it is charged in (memory/shared.h) */
    CUcontext context; /* with which it ends; NULL: with the process */
};

/* Keeps one, in the place of an older one of the same kind and key. False: no host memory. */
bool holding_put(const struct holding *holding);

/* One more user of a holding like `fresh`, or, where there is none, `fresh` with one user. */
enum holding_shared { HOLDING_SHARED, HOLDING_FRESH, HOLDING_NO_ROOM };
enum holding_shared holding_share(const struct holding *fresh);

/* Takes one out. False: there is none. */
bool holding_take(enum holding_kind kind, uint64_t key, struct holding *taken);

bool holding_look(enum holding_kind kind, uint64_t key, struct holding *found);

/* Adds to a holding's users, and takes it out (into *left, if not NULL) when none is left. Returns how many there are now; -1:
 * there is no such holding. */
int holding_users(enum holding_kind kind, uint64_t key, int change, struct holding *left);

/* Says what of a holding is charged, and where. False: there is no such holding. */
bool holding_charged(enum holding_kind kind, uint64_t key, int gpu, uint64_t bytes, unsigned shared);

/* Calls `each` for every holding of the kind (any: HOLDING_NONE) and the context (any: NULL). It may put and take. */
void holdings_each(enum holding_kind kind, CUcontext context, void (*each)(const struct holding *, void *), void *argument);

/* The context that memory belongs to which is made now: the current one, or the primary one of a green context. NULL: none. */
CUcontext context_with_memory(void);

#endif
