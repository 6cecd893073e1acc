#include "compute_estimate.h"

#include <stdatomic.h>

__extension__ typedef unsigned __int128 wide;

enum { PLACES = 4096, TRIES = 8, SURE = 1 };

/* `rate`: 2^20 times nanoseconds per unit of amount; its lowest bit says whether a sure measurement is in it. 0: unknown. */
struct kind {
    _Atomic uint64_t key, rate;
};
static struct kind kinds[PLACES];

unsigned estimate_place(uint64_t key)
{
    uint64_t hash = (key ^ (key >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    unsigned first = (unsigned)(hash >> 52) % PLACES;
    key = key ? key : 1;
    for (unsigned i = 0; i < TRIES; i++) {
        unsigned place = (first + i) % PLACES;
        uint64_t found = atomic_load_explicit(&kinds[place].key, memory_order_relaxed);
        if (found == key)
            return place;
        if (!found && atomic_compare_exchange_strong(&kinds[place].key, &found, key))
            return place;
        if (found == key)
            return place;
    }
    /* Crowded here: another kind goes, which is learned anew if it comes again. */
    unsigned place = (first + (unsigned)(key % TRIES)) % PLACES;
    atomic_store_explicit(&kinds[place].rate, 0, memory_order_relaxed);
    atomic_store_explicit(&kinds[place].key, key, memory_order_relaxed);
    return place;
}

bool estimate_of(unsigned place, uint64_t amount, uint64_t *time_ns)
{
    uint64_t rate = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    *time_ns = (uint64_t)(((wide)rate * amount) >> 20);
    return rate;
}

void estimate_learn(unsigned place, uint64_t amount, uint64_t time_ns, bool sure)
{
    uint64_t before = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    uint64_t present = (uint64_t)(((wide)time_ns << 20) / (amount ? amount : 1));
    bool was_sure = before & SURE;
    /* What others' work is in can only be too long: a shorter one is news, a longer one hardly. */
    if (!sure && before && present > before)
        present = was_sure || before + before / 16 < present ? before + (was_sure ? 0 : before / 16) : present;
    uint64_t inertia = sure ? 4 : 32;
    if (was_sure)
        present = present > before ? before + (present - before) / inertia : before - (before - present) / inertia;
    present = (present & ~(uint64_t)SURE) | (sure || was_sure ? SURE : 0);
    atomic_store_explicit(&kinds[place].rate, present ? present : 2, memory_order_relaxed);
}

void estimates_forget(void)
{
    for (unsigned i = 0; i < PLACES; i++) {
        atomic_store(&kinds[i].key, 0);
        atomic_store(&kinds[i].rate, 0);
    }
}
