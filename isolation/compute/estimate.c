#include "compute/estimate.h"

#include <stdatomic.h>

__extension__ typedef unsigned __int128 wide;

enum { PLACES = 4096, TRIES = 8, SURE = 1, LONGER_DOUBTED = 128 };

/* `rate`: 2^20 times nanoseconds per unit of amount; its lowest bit says whether a sure measurement is in it. 0: unknown. */
struct kind {
    _Atomic uint64_t key, rate;
};
static struct kind kinds[PLACES];
/* How many unsure measurements in a row were longer than the rate, of each place. */
static _Atomic unsigned char longer[PLACES];

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
    atomic_store_explicit(&longer[place], 0, memory_order_relaxed);
    atomic_store_explicit(&kinds[place].key, key, memory_order_relaxed);
    return place;
}

bool estimate_of(unsigned place, uint64_t amount, uint64_t *time_ns)
{
    uint64_t rate = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    *time_ns = (uint64_t)(((wide)rate * amount) >> 20);
    return rate;
}

/* What others' work is in can only be too long: a shorter one is news. Longer ones are where many come in a row: a turn's beginning is
 * shared with the end of another's, and where turns are short all pieces are put there. */
static uint64_t learn_unsure(unsigned place, uint64_t before, uint64_t present)
{
    unsigned char in_a_row = atomic_load_explicit(&longer[place], memory_order_relaxed);
    bool was_sure = before & SURE, is_longer = before && present > before;
    if (is_longer && (was_sure || in_a_row < LONGER_DOUBTED)) {
        atomic_store_explicit(&longer[place], (unsigned char)(in_a_row + !was_sure), memory_order_relaxed);
        return before;
    }
    if (is_longer)
        return before + before / 16 < present ? before + before / 16 : present;
    atomic_store_explicit(&longer[place], 0, memory_order_relaxed);
    return was_sure ? before - (before - present) / 32 : present;
}

void estimate_learn(unsigned place, uint64_t amount, uint64_t time_ns, bool sure)
{
    uint64_t before = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    uint64_t present = (uint64_t)(((wide)time_ns << 20) / (amount ? amount : 1));
    bool was_sure = before & SURE;
    if (!sure)
        present = learn_unsure(place, before, present);
    else if (was_sure)
        present = present > before ? before + (present - before) / 4 : before - (before - present) / 4;
    present = (present & ~(uint64_t)SURE) | (sure || was_sure ? SURE : 0);
    atomic_store_explicit(&kinds[place].rate, present ? present : 2, memory_order_relaxed);
}

void estimates_forget(void)
{
    for (unsigned i = 0; i < PLACES; i++) {
        atomic_store(&kinds[i].key, 0);
        atomic_store(&kinds[i].rate, 0);
        atomic_store(&longer[i], 0);
    }
}
