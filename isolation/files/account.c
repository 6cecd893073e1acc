#define _GNU_SOURCE
#include "files/account.h"

#define NUMBERS (UINT64_C(1) << 18)
#define UNITS_MOST ((UINT64_C(1) << 36) - 1)
#define GIVES (UINT64_C(1) << 63)

_Static_assert(REGION_SLOTS == 1 << 10, "a slot's number has ten bits in the total");

static uint64_t number_in(uint64_t word) { return word & (NUMBERS - 1); }
static unsigned slot_in(uint64_t word) { return (unsigned)(word >> 18) & (REGION_SLOTS - 1); }
static uint64_t units_in(uint64_t word) { return word >> 28 & UNITS_MOST; }
static uint64_t word_of(uint64_t units, unsigned slot, uint64_t number)
{
    return units << 28 | (uint64_t)slot << 18 | (number & (NUMBERS - 1));
}

uint64_t units_of(uint64_t bytes)
{
    uint64_t units = bytes / UNIT_BYTES + (bytes % UNIT_BYTES != 0);
    return units < UNITS_MOST ? units : UNITS_MOST;
}

/* Notes that the change that the total names is in it; numbers go round, so "later" is less than half a round ahead. */
static void note_applied(struct region *region, unsigned gpu, uint64_t total)
{
    _Atomic uint64_t *applied = &region->slots[slot_in(total)].accounts[gpu].applied;
    uint64_t known = atomic_load(applied);
    for (;;) {
        uint64_t ahead = (number_in(total) - known) & (NUMBERS - 1);
        if (!ahead || ahead >= NUMBERS / 2 || atomic_compare_exchange_weak(applied, &known, number_in(total)))
            return;
    }
}

static bool change(struct region *region, unsigned gpu, unsigned slot, uint64_t units, bool give, uint64_t limit_units)
{
    struct region_account *mine = &region->slots[slot].accounts[gpu];
    uint64_t held = atomic_load_explicit(&mine->held, memory_order_relaxed);
    uint64_t number = number_in(held) + 1;
    uint64_t total = atomic_load(&region->gpus[gpu].total);
    atomic_store(&mine->intent, (give ? GIVES : 0) | word_of(units, 0, number));
    for (;;) {
        uint64_t sum = units_in(total);
        if (!give && (units > limit_units || sum > limit_units - units))
            return false;
        /* Less than what is released can only be there if the file was overwritten. */
        sum = !give ? sum + units : sum > units ? sum - units : 0;
        note_applied(region, gpu, total);
        if (atomic_compare_exchange_weak(&region->gpus[gpu].total, &total, word_of(sum, slot, number)))
            break;
    }
    uint64_t has = units_in(held);
    atomic_store(&mine->held, word_of(give ? has - units : has + units, 0, number));
    return true;
}

bool account_take(struct region *region, unsigned gpu, unsigned slot, uint64_t units, uint64_t limit_units)
{
    if (limit_units > UNITS_MOST)
        limit_units = UNITS_MOST;
    return change(region, gpu, slot, units, false, limit_units);
}

void account_give(struct region *region, unsigned gpu, unsigned slot, uint64_t units)
{
    uint64_t has = account_held_units(region, gpu, slot);
    change(region, gpu, slot, units < has ? units : has, true, 0);
}

/* Whether the change that the slot had in mind came into the total. The total is read first: once it names another
 * change, the note has been made. */
static bool was_applied(struct region *region, unsigned gpu, unsigned slot, uint64_t number)
{
    uint64_t total = atomic_load(&region->gpus[gpu].total);
    return (slot_in(total) == slot && number_in(total) == number) ||
           atomic_load(&region->slots[slot].accounts[gpu].applied) == number;
}

static void finish(struct region *region, unsigned gpu, unsigned slot)
{
    struct region_account *account = &region->slots[slot].accounts[gpu];
    uint64_t held = atomic_load(&account->held), intent = atomic_load(&account->intent);
    uint64_t number = (number_in(held) + 1) & (NUMBERS - 1), has = units_in(held), units = units_in(intent & ~GIVES);
    if (number_in(intent) != number || !was_applied(region, gpu, slot, number))
        return;
    if (intent & GIVES)
        has = has > units ? has - units : 0;
    else
        has = has + units < UNITS_MOST ? has + units : UNITS_MOST;
    atomic_store(&account->held, word_of(has, 0, number));
}

void account_clear(struct region *region, unsigned slot)
{
    for (unsigned gpu = 0; gpu < LIMITED_GPUS_MAX; gpu++) {
        finish(region, gpu, slot);
        uint64_t has = account_held_units(region, gpu, slot);
        if (has)
            account_give(region, gpu, slot, has);
    }
}

struct account_reading account_read(const struct region *region, unsigned gpu, unsigned slot)
{
    uint64_t held = atomic_load(&region->slots[slot].accounts[gpu].held);
    return (struct account_reading){units_in(held), number_in(held)};
}

uint64_t account_changes(struct account_reading earlier, struct account_reading later)
{
    return (later.number - earlier.number) & (NUMBERS - 1);
}

uint64_t account_total_units(const struct region *region, unsigned gpu)
{
    return units_in(atomic_load(&region->gpus[gpu].total));
}

uint64_t account_held_units(const struct region *region, unsigned gpu, unsigned slot)
{
    return units_in(atomic_load(&region->slots[slot].accounts[gpu].held));
}
