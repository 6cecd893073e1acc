#include "compute/estimate.h"

#include <stdatomic.h>

__extension__ typedef unsigned __int128 wide;

enum { PLACES = 4096, TRIES = 8, SURE = 1, UNEVEN = 2, LONGER_DOUBTED = 128, EVEN_AGAIN = 255, TRUST_MOST = 255 };
/* How much GPU time an uneven kind's rate is the mean of. */
#define STRETCH_NS UINT64_C(16000000)
/* Smaller differences are the measurement's own. */
#define ODD_LEAST_NS UINT64_C(10000)

/* `rate`: 2^20 times nanoseconds per unit of amount; its lowest bits say whether a sure measurement is in it, and whether the kind is
 * uneven. 0: unknown. */
struct kind {
    _Atomic uint64_t key, rate;
};
static struct kind kinds[PLACES];
/* How many measurements in a row, of each place: unsure ones that were longer than the rate; or, where the kind is uneven, near it. */
static _Atomic unsigned char in_a_row[PLACES];
/* How many measurements confirmed the rate. */
static _Atomic unsigned char trust[PLACES];

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
    /* Full here: another kind is evicted, and learned again if it returns. */
    unsigned place = (first + (unsigned)(key % TRIES)) % PLACES;
    atomic_store_explicit(&kinds[place].rate, 0, memory_order_relaxed);
    atomic_store_explicit(&in_a_row[place], 0, memory_order_relaxed);
    atomic_store_explicit(&trust[place], 0, memory_order_relaxed);
    atomic_store_explicit(&kinds[place].key, key, memory_order_relaxed);
    return place;
}

bool estimate_of(unsigned place, uint64_t amount, uint64_t *time_ns)
{
    uint64_t rate = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    *time_ns = (uint64_t)(((wide)rate * amount) >> 20);
    return rate;
}

/* A sample with others' work in it can only be too long, so a shorter one counts. Longer ones count after many in a row: a turn's beginning is
 * shared with the end of another's, and where turns are short all pieces are put there. */
static uint64_t learn_unsure(unsigned place, uint64_t before, uint64_t present)
{
    unsigned char doubted = atomic_load_explicit(&in_a_row[place], memory_order_relaxed);
    bool was_sure = before & SURE, is_longer = before && present > before;
    if (is_longer && (was_sure || doubted < LONGER_DOUBTED)) {
        atomic_store_explicit(&in_a_row[place], (unsigned char)(doubted + !was_sure), memory_order_relaxed);
        return before;
    }
    if (is_longer)
        return before + before / 16 < present ? before + before / 16 : present;
    atomic_store_explicit(&in_a_row[place], 0, memory_order_relaxed);
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
    present = (present & ~(uint64_t)(SURE | UNEVEN)) | (sure || was_sure ? SURE : 0) | (before & UNEVEN);
    atomic_store_explicit(&kinds[place].rate, present ? present : 4, memory_order_relaxed);
}

bool estimate_uneven(unsigned place)
{
    return atomic_load_explicit(&kinds[place].rate, memory_order_relaxed) & UNEVEN;
}

unsigned estimate_trust(unsigned place)
{
    return atomic_load_explicit(&trust[place], memory_order_relaxed);
}

static void confirm(unsigned place, unsigned more)
{
    unsigned before = estimate_trust(place);
    atomic_store_explicit(&trust[place], (unsigned char)(before + more < TRUST_MOST ? before + more : TRUST_MOST), memory_order_relaxed);
}

void estimate_set_uneven(unsigned place)
{
    if (!(atomic_fetch_or_explicit(&kinds[place].rate, UNEVEN, memory_order_relaxed) & UNEVEN))
        atomic_store_explicit(&trust[place], 0, memory_order_relaxed);
    atomic_store_explicit(&in_a_row[place], 0, memory_order_relaxed);
}

void estimate_compare(unsigned place, uint64_t amount, uint64_t time_ns, bool sure, bool visit)
{
    uint64_t rate = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed), before_ns;
    unsigned char near = atomic_load_explicit(&in_a_row[place], memory_order_relaxed);
    bool known = estimate_of(place, amount, &before_ns);
    bool longer = time_ns > 2 * before_ns && time_ns - before_ns > ODD_LEAST_NS;
    bool shorter = time_ns < before_ns / 2 && before_ns - time_ns > ODD_LEAST_NS;
    /* Others' work beside makes samples of even kinds differ, too. */
    if (known && (longer || shorter) && (visit || !sure))
        return;
    if (known && (longer || shorter)) {
        estimate_set_uneven(place);
        return;
    }
    confirm(place, 1);
    if (!(rate & UNEVEN))
        return;
    if (near == EVEN_AGAIN)
        atomic_fetch_and_explicit(&kinds[place].rate, ~(uint64_t)UNEVEN, memory_order_relaxed);
    atomic_store_explicit(&in_a_row[place], near == EVEN_AGAIN ? 0 : (unsigned char)(near + 1), memory_order_relaxed);
}

void estimate_stretch(unsigned place, uint64_t amount, uint64_t was_ns, uint64_t time_ns, uint64_t charged_ns)
{
    uint64_t before = atomic_load_explicit(&kinds[place].rate, memory_order_relaxed);
    uint64_t was = (uint64_t)(((wide)was_ns << 20) / (amount ? amount : 1));
    /* Of all that were charged before this was known each says the same: they must not add up. */
    uint64_t present = (uint64_t)(((wide)before * STRETCH_NS + (wide)was * time_ns) / (STRETCH_NS + charged_ns));
    if (before && was)
        atomic_store_explicit(&kinds[place].rate, (present & ~(uint64_t)SURE) | UNEVEN | (before & SURE), memory_order_relaxed);
    if (time_ns > 2 * charged_ns + STRETCH_NS / 4)
        atomic_store_explicit(&trust[place], 0, memory_order_relaxed);
    else
        confirm(place, 4);
}

void estimates_forget(void)
{
    for (unsigned i = 0; i < PLACES; i++) {
        atomic_store(&kinds[i].key, 0);
        atomic_store(&kinds[i].rate, 0);
        atomic_store(&in_a_row[i], 0);
        atomic_store(&trust[i], 0);
    }
}
