/* What the processes of a machine share of one GPU: who holds how much memory, whose turn the engine is.
 *
 * One file per GPU, mapped by every process that uses it, and one lock file beside it:
 *
 *   DIRECTORY/<uuid>        struct state
 *   DIRECTORY/<uuid>.lock   byte N is locked (POSIX record lock) while the owner of slot N lives; byte SLOTS_MAX + N while
 *                           a process clears slot N, or is about to become its owner; byte 2 * SLOTS_MAX while one sets
 *                           a limit (node/memory_limits.h)
 *
 * DIRECTORY is $FAKEGPU_STATE, else <description>.state; where the driver counts as installed, <root>/run/fakegpu.
 *
 * The kernel takes a process's record locks away when it ends, however it ends, so a slot whose byte
 * is not locked belongs to a dead process: what it holds no longer counts. A process that takes a slot empties it before its own
 * lock says that the slot is in use, so at no moment does a process appear to hold what a dead one had. Everything here follows from
 * that; no value needs a second one to be changed along with it, so death between any two instructions leaves nothing to
 * repair. Asking (state_alive) uses open-file-description locks, which see the locks of one's own process too: both stand-in libraries may live in one process, each with its own copy of this code.
 *
 * A process must not close any descriptor of the lock file: that would drop its own lock.
 *
 * Memory is counted without a lock: a process adds to its own slot first and sums all slots afterwards, so of
 * two that race past the limit the later one sees both. See state_reserve. */
#ifndef FAKEGPU_NODE_STATE_H
#define FAKEGPU_NODE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "node/cgroups.h"

enum {
    SLOTS_MAX = 512,           /* processes that hold something of one GPU at the same time */
    ENGINE_BYTES = 64 << 10,   /* of each state, for struct engine (node/engine.h); all zero at first */
    BUSY_BUCKETS = 64,         /* of each ring */
    LIMITS_MAX = 256,          /* cgroups that have a limit on one GPU at the same time */
    CGROUP_PATH_MAX = 1000,    /* bytes of a cgroup's path with its end */
    STATE_VERSION = 3,         /* of this layout; another one is refused */
};
#define BUSY_BUCKET_NS UINT64_C(50000000)
/* What the driver counts in: device memory comes in pages of this size. */
#define GRANULE_BYTES (UINT64_C(2) << 20)

/* How long the engine was busy in the last seconds: one word per bucket of BUSY_BUCKET_NS, CLOCK_MONOTONIC / BUSY_BUCKET_NS
 * in its upper 38 bits and nanoseconds in its lower 26. */
struct busy_ring {
    _Atomic uint64_t buckets[BUSY_BUCKETS];
};

/* Of one process. Written by its owner only, except that a process that finds it dead clears it. */
struct slot {
    _Atomic uint64_t trying_bytes; /* the part of held_bytes that state_reserve has not decided about */
    _Atomic uint64_t busy_ns;      /* GPU time since the slot was taken */
    _Atomic uint64_t generation;   /* rises each time the slot is taken, once it is empty; distinguishes two owners */
    _Atomic int32_t pid;           /* as the owner knows itself; for people; state_alive is authoritative */
    _Atomic uint64_t cgroups[CGROUPS_DEEP]; /* that it is in, its own first; 0 after the last one */
    struct busy_ring busy;
};

/* What the processes at and below one cgroup may hold together; node/memory_limits.h has its rules. */
struct limit {
    _Atomic uint64_t cgroup; /* 0: the entry is free */
    _Atomic uint64_t soft_bytes, hard_bytes;
    char path[CGROUP_PATH_MAX]; /* as those know it who set limits */
};

struct state {
    _Atomic uint32_t magic, version;
    _Atomic uint32_t slots_used; /* slots from here on were never taken */
    _Atomic uint32_t limits_used; /* entries from here on were never taken */
    _Atomic uint64_t busy_ns;    /* of the GPU, all processes, since the file was made */
    _Atomic uint64_t changes;    /* rises when memory is granted, taken back or released */
    struct busy_ring busy;       /* of the GPU */
    /* Memory of each slot's process, contexts and decided or undecided reservations included. */
    _Atomic uint64_t held_bytes[SLOTS_MAX];
    struct slot slots[SLOTS_MAX];
    struct limit limits[LIMITS_MAX];
    _Alignas(4096) unsigned char engine[ENGINE_BYTES];
};

/* One GPU's files as this process has them open; they stay open and mapped until it ends. */
struct state_files {
    struct state *state; /* NULL: not opened */
    int lock_file;
    bool writable;
};

enum state_error {
    STATE_OK,
    STATE_ABSENT,    /* there is no such file, and none was to be made */
    STATE_UNUSABLE,  /* cannot be made, opened, mapped, or is of another version; `message` says which */
};

enum { STATE_MESSAGE_MAX = 512 };

/* Opens (and with `create` makes) the files of the GPU `uuid` in `directory`. Without `create` the state may be read-only
 * (files->writable). `message` gets one line for STATE_UNUSABLE. */
enum state_error state_open(const char *directory, const char *uuid, bool create, struct state_files *files,
                            char message[STATE_MESSAGE_MAX]);

/* Takes a slot for this process, clearing what a dead owner left; -1 when all are taken. Not thread-safe. */
int state_take_slot(const struct state_files *files);

/* Says which cgroups this process is in (node/cgroups.h); before it holds anything, else no limit of theirs counts what it held before. */
void state_enter_cgroups(struct state *state, unsigned slot, const uint64_t cgroups[CGROUPS_DEEP]);

/* Whether the slot's process is in the cgroup, or in one below it. */
bool state_is_below(const struct state *state, unsigned slot, uint64_t cgroup);

/* Whether the slot's owner lives. `pid` (may be NULL) gets its process id as this process's pid namespace has it, 0 if it
 * has none there. One system call. */
bool state_alive(const struct state_files *files, unsigned slot, pid_t *pid);

/* Clears every slot whose owner is dead; returns how many there were. `cleared` (may be NULL) is called for each before,
 * while no process can take the slot; again, if its caller dies meanwhile. Not thread-safe, nor beside state_take_slot. */
unsigned state_reap(const struct state_files *files, void (*cleared)(unsigned slot, void *argument), void *argument);

/* Adds to what the slot of this process holds, unless all would hold more than `limit_bytes` together, or those in one of its cgroups
 * more than that one's hard limit; false then, with nothing changed. One thread of a process at a time. */
bool state_reserve(const struct state_files *files, unsigned slot, uint64_t bytes, uint64_t limit_bytes);

/* Makes what is reported of a GPU as small as the limits of the process's cgroups: all that it may hold, and what it may still take. */
void state_within_limits(const struct state *state, unsigned slot, uint64_t *total_bytes, uint64_t *free_bytes);

/* Gives back what state_reserve gave. */
void state_release(struct state *state, unsigned slot, uint64_t bytes);

/* What all slots hold together, undecided reservations and the dead's included: an upper bound. */
uint64_t state_held_bytes(const struct state *state);

/* What each slot held at one and the same moment, what is not decided left out; returns the sum, which never passes the
 * limit. Of the dead too, until state_reap. */
uint64_t state_settled_bytes(const struct state *state, uint64_t settled[SLOTS_MAX]);

/* Of one living process. */
struct state_holder {
    pid_t pid; /* as state_alive has it */
    unsigned slot;
    uint64_t held_bytes;
};

/* Who holds memory, each with what it held at one and the same moment; who was alive then and is now. So their sum never
 * passes the limit, nor whatever smaller one the processes keep to among themselves. A system call for each. Returns how many. */
unsigned state_holders(const struct state_files *files, struct state_holder holders[SLOTS_MAX]);

/* Notes that the engine worked for the slot from one moment of CLOCK_MONOTONIC to another (at most BUSY_BUCKETS buckets
 * later). Any process may call it for any slot. */
void state_add_busy(struct state *state, unsigned slot, uint64_t from_ns, uint64_t to_ns);

/* Nanoseconds that a ring has noted between two moments of CLOCK_MONOTONIC, to the precision of its buckets: the bucket of
 * `to_ns` is left out, that of `from_ns` is whole. `window_ns` gets the time that the counted buckets span. */
uint64_t busy_between(const struct busy_ring *ring, uint64_t from_ns, uint64_t to_ns, uint64_t *window_ns);

uint64_t monotonic_ns(void);

#endif
