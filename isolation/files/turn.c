#define _GNU_SOURCE
#include "files/turn.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t turn_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool turn_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, until_ns == UINT64_MAX ? NULL : &until, NULL,
                          FUTEX_BITSET_MATCH_ANY);
    return result == 0 || errno == EAGAIN || errno == EINTR;
}

void turn_wake(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE, TURN_EVERYBODY, NULL, NULL, 0);
}

static bool abandoned(struct turn_slot *slot, uint64_t now_ns)
{
    /* A moment in the future is no reason to believe that anybody lives. */
    return atomic_load(&slot->seen_ns) + TURN_LEASE_NS < now_ns || atomic_load(&slot->seen_ns) > now_ns + TURN_LEASE_NS;
}

struct turn_slot *turn_take_slot(struct turn_page *page, uint64_t owner, uint64_t now_ns)
{
    for (unsigned i = 0; i < TURN_SLOTS; i++) {
        if (atomic_load(&page->slots[i].owner) == owner) {
            atomic_store(&page->slots[i].seen_ns, now_ns);
            return &page->slots[i];
        }
    }
    for (unsigned i = 0; i < TURN_SLOTS; i++) {
        struct turn_slot *slot = &page->slots[i];
        uint64_t before = atomic_load(&slot->owner);
        if (before && !abandoned(slot, now_ns))
            continue;
        /* Seen first: another that looks for a slot must not take it for abandoned in between. */
        atomic_store(&slot->seen_ns, now_ns);
        if (!atomic_compare_exchange_strong(&slot->owner, &before, owner))
            continue;
        atomic_store(&slot->busy_until_ns, 0);
        atomic_store(&slot->wants_until_ns, 0);
        return slot;
    }
    return NULL;
}
