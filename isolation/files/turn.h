/* One GPU's page of the usage file: where a container asks for the GPU's time and the node's arbiter grants it.
 *
 * The arbiter writes the first line, the container's processes the rest; both may write anything at any time, and be gone
 * at any time. All moments are CLOCK_MONOTONIC in nanoseconds. A page of zeros is valid: nothing was requested or granted.
 *
 * A container may put work on the GPU while `until_ns` lies ahead and `used_ns` is below `allowed_ns`. Nothing is returned: a turn
 * is over when its moment has passed, a process's work when the moment that it said itself has passed. So one that
 * dies or is stopped leaves nothing behind to clean up. */
#ifndef ISOLATION_FILES_TURN_H
#define ISOLATION_FILES_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    TURN_VERSION = 1, /* of this layout, and of what its words mean */
    TURN_EVERYBODY = 0x7fffffff, /* how many a futex wakes */
    TURN_SLOTS = 120, /* processes that have work or wait at the same time; more go unseen by the arbiter, not unlimited */
};
/* A slot whose process has not been seen for so long is free. */
#define TURN_LEASE_NS UINT64_C(3000000000)
/* A wish holds for so long, and is repeated as long as a thread waits. */
#define TURN_WISH_NS UINT64_C(400000000)
#define TURN_REPEAT_NS UINT64_C(100000000)
/* An arbiter that without a heartbeat for so long is gone: each container then keeps to its share by itself. */
#define TURN_SILENCE_NS UINT64_C(1000000000)
#define TURN_HEARTBEAT_NS UINT64_C(200000000)

/* Of one process. */
struct turn_slot {
    _Atomic uint64_t owner;          /* 0: none */
    _Atomic uint64_t seen_ns;        /* when its owner last used it */
    _Atomic uint64_t busy_until_ns;  /* when the work that it put on the GPU will be through */
    _Atomic uint64_t wants_until_ns; /* it waits, unless that moment has passed */
};

struct turn_page {
    /* The arbiter's. */
    _Atomic uint32_t arbiter_version; /* 0: there was none yet */
    _Atomic uint32_t grants;          /* futex word; changes when one of the two below changes for those who wait */
    _Atomic uint64_t heartbeat_ns;
    _Atomic uint64_t until_ns;
    _Atomic uint64_t allowed_ns;
    _Atomic uint64_t began_ns;        /* when the turn that is running began or went on, or the last one did */
    _Atomic uint64_t ahead_ns;        /* how much work may wait on the GPU at most; 0: the library's own measure */
    _Atomic uint64_t beside_ns;       /* GPU time that others had beside this container's work so far, with what they have there now; 0: not known, or a visit */
    unsigned char rest_of_arbiter[8];
    /* The container's. */
    _Atomic uint32_t library_version;
    _Atomic uint32_t requests;        /* futex word; changes when there is something to say to the arbiter */
    _Atomic uint64_t used_ns;         /* GPU time of all the work that was put on the GPU, as estimated and corrected */
    _Atomic uint64_t alone_ns;        /* without an arbiter: the moment from which on there is more to use */
    _Atomic uint64_t waited_ns;       /* how long threads waited for the container's share, added up; for people to see */
    unsigned char rest_of_container[32];
    struct turn_slot slots[TURN_SLOTS];
};
_Static_assert(sizeof(struct turn_slot) == 32 && sizeof(struct turn_page) == 128 + 32 * TURN_SLOTS &&
               sizeof(struct turn_page) <= 4096, "the layout is a file's");

uint64_t turn_now_ns(void);

/* Sleeps while `*word` is `seen`, until it is woken or the moment `until_ns`. True: it may have changed. False: the moment came, or
 * the word's memory is gone. */
bool turn_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns);

/* Changes the word and wakes everybody who sleeps on it. */
void turn_wake(_Atomic uint32_t *word);

/* A slot for `owner` (unique in the container, never 0): the one that it has, or a free or abandoned one. NULL: all are taken. */
struct turn_slot *turn_take_slot(struct turn_page *page, uint64_t owner, uint64_t now_ns);

#endif
