/* How processes count a GPU's memory together (node/state.h): who may take some more, and who holds how much. */
#define _GNU_SOURCE /* nanosleep */
#include <sched.h>
#include <time.h>

#include "node/state.h"

enum { SPINS = 100 /* rounds of looking again before each takes a pause */ };
/* How long a reservation that does not fit waits for others that are about to decide: they may be starved, or stopped. */
#define PATIENCE_NS UINT64_C(1000000000)
#define PAUSE_NS 20000

uint64_t state_held_bytes(const struct state *state)
{
    uint64_t sum = 0;
    unsigned used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++)
        sum += atomic_load(&state->held_bytes[i]);
    return sum;
}

/* What some processes may hold together: all (cgroup 0), or those in a cgroup. */
struct bound {
    uint64_t cgroup;
    uint64_t limit_bytes;
};

enum { BOUNDS_MAX = 1 + CGROUPS_DEEP };

/* The GPU's own limit, and those of the process's cgroups. */
static unsigned bounds_of(const struct state *state, unsigned own, uint64_t limit_bytes, struct bound bounds[BOUNDS_MAX])
{
    unsigned count = 0, used = atomic_load(&state->limits_used);
    bounds[count++] = (struct bound){0, limit_bytes};
    for (unsigned i = 0; i < used && i < LIMITS_MAX && count < BOUNDS_MAX; i++) {
        const struct limit *limit = &state->limits[i];
        uint64_t cgroup = atomic_load(&limit->cgroup), hard_bytes = atomic_load(&limit->hard_bytes);
        /* Asked again: the entry may have become another cgroup's. */
        if (cgroup && state_is_below(state, own, cgroup) && atomic_load(&limit->cgroup) == cgroup)
            bounds[count++] = (struct bound){cgroup, hard_bytes};
    }
    return count;
}

static bool counts(const struct state *state, unsigned slot, const struct bound *bound)
{
    return !bound->cgroup || state_is_below(state, slot, bound->cgroup);
}

/* All slots that count for a bound at one glance, as far as that is possible without a lock. */
struct glance {
    uint64_t held_bytes;
    uint64_t undecided_bytes; /* of that, what others may take back any moment */
    bool goes_first;          /* none of those others has a lower slot */
    bool steady;              /* nothing was granted, taken back or released meanwhile */
};

static struct glance look(const struct state *state, unsigned own, const struct bound *bound)
{
    struct glance glance = {.goes_first = true};
    uint64_t before = atomic_load(&state->changes);
    unsigned used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++)
        glance.held_bytes += counts(state, i, bound) ? atomic_load(&state->held_bytes[i]) : 0;
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++) {
        uint64_t trying = i == own || !counts(state, i, bound) ? 0 : atomic_load(&state->slots[i].trying_bytes);
        glance.undecided_bytes += trying;
        if (trying && i < own)
            glance.goes_first = false;
    }
    glance.steady = atomic_load(&state->changes) == before;
    return glance;
}

/* Whether `bytes` more than what is settled fit, or once they are `added`, whether all that is held does; for the first bound
 * that they do not fit into, its glance. */
static bool fits(const struct state *state, unsigned own, uint64_t bytes, bool added, const struct bound *bounds,
                 unsigned count, struct glance *glance)
{
    for (unsigned i = 0; i < count; i++) {
        *glance = look(state, own, &bounds[i]);
        uint64_t settled = glance->held_bytes > glance->undecided_bytes ? glance->held_bytes - glance->undecided_bytes : 0;
        if (added ? glance->held_bytes > bounds[i].limit_bytes : settled > bounds[i].limit_bytes - bytes)
            return false;
    }
    return true;
}

/* In this order: who reads the bytes held before and the undecided ones after sees the change between them. */
static void take_back(struct state *state, unsigned own, uint64_t bytes)
{
    atomic_fetch_sub(&state->held_bytes[own], bytes);
    atomic_fetch_add(&state->changes, 1);
    atomic_fetch_sub(&state->slots[own].trying_bytes, bytes);
}

/* Whether a process died between adding and deciding. */
static bool undecided_dead(const struct state_files *files)
{
    unsigned used = atomic_load(&files->state->slots_used);
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++) {
        if (atomic_load(&files->state->slots[i].trying_bytes) && !state_alive(files, i, NULL))
            return true;
    }
    return false;
}

/* False when there is no use in waiting longer. */
static bool wait_for_others(const struct state_files *files, int round, uint64_t *deadline_ns)
{
    if (round < SPINS) {
        sched_yield();
        return true;
    }
    if (round == SPINS) {
        *deadline_ns = monotonic_ns() + PATIENCE_NS;
        if (undecided_dead(files))
            return false;
    }
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    return monotonic_ns() < *deadline_ns;
}

/* Add, then look at the sum. The last to add of all that hold something saw all other parts, so
 * what was granted never passes the limit, without any lock that a stopped or killed process could keep.
 *
 * The price: two that fit one at a time but not both see each other's part, and neither would get it. So what is not
 * decided yet is kept apart (trying_bytes), and of several the one with the lowest slot keeps its part while the others take
 * theirs back and try again. And since slots are read one after the other, memory that moves from one to another meanwhile
 * is seen twice: "does not fit" counts only when nothing moved (`changes` rises with each move).
 *
 * A cgroup's limit is held in the same way as the GPU's, over the slots that are in it. */
bool state_reserve(const struct state_files *files, unsigned own, uint64_t bytes, uint64_t limit_bytes)
{
    struct state *state = files->state;
    struct bound bounds[BOUNDS_MAX];
    unsigned count = bounds_of(state, own, limit_bytes, bounds);
    bool added = false;
    uint64_t deadline_ns = 0;
    for (unsigned i = 0; i < count; i++) {
        if (bytes > bounds[i].limit_bytes)
            return false;
    }
    for (int round = 0;;) {
        struct glance glance;
        bool room = fits(state, own, bytes, added, bounds, count, &glance);
        if (room && !added) {
            atomic_fetch_add(&state->slots[own].trying_bytes, bytes);
            atomic_fetch_add(&state->held_bytes[own], bytes);
            added = true;
            continue;
        }
        if (room) {
            atomic_fetch_add(&state->changes, 1);
            atomic_fetch_sub(&state->slots[own].trying_bytes, bytes);
            return true;
        }
        if (!added && glance.steady)
            return false;
        if (added && (!glance.goes_first || (glance.steady && !glance.undecided_bytes))) {
            take_back(state, own, bytes);
            added = false;
            if (glance.goes_first)
                return false;
        }
        if (!wait_for_others(files, round++, &deadline_ns))
            break;
    }
    if (added)
        take_back(state, own, bytes);
    return false;
}

void state_within_limits(const struct state *state, unsigned slot, uint64_t *total_bytes, uint64_t *free_bytes)
{
    struct bound bounds[BOUNDS_MAX];
    unsigned count = bounds_of(state, slot, *total_bytes, bounds);
    for (unsigned i = 1; i < count; i++) {
        uint64_t held_bytes = look(state, slot, &bounds[i]).held_bytes, limit_bytes = bounds[i].limit_bytes;
        uint64_t left_bytes = held_bytes < limit_bytes ? limit_bytes - held_bytes : 0;
        *total_bytes = limit_bytes < *total_bytes ? limit_bytes : *total_bytes;
        *free_bytes = left_bytes < *free_bytes ? left_bytes : *free_bytes;
    }
}

/* One reading of all slots, and whether nothing moved meanwhile. */
static bool read_settled(const struct state *state, uint64_t settled[SLOTS_MAX], uint64_t *sum)
{
    uint64_t before = atomic_load(&state->changes);
    unsigned used = atomic_load(&state->slots_used);
    *sum = 0;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        uint64_t held = i < used ? atomic_load(&state->held_bytes[i]) : 0;
        uint64_t trying = held ? atomic_load(&state->slots[i].trying_bytes) : 0;
        settled[i] = held > trying ? held - trying : 0;
        *sum += settled[i];
    }
    return atomic_load(&state->changes) == before;
}

uint64_t state_settled_bytes(const struct state *state, uint64_t settled[SLOTS_MAX])
{
    uint64_t sum;
    for (int round = 0; round < 100 * SPINS && !read_settled(state, settled, &sum); round++)
        sched_yield();
    return sum;
}

/* The generations are read before and after: where one has risen, what the slot held belonged to a process that is dead by now. */
unsigned state_holders(const struct state_files *files, struct state_holder holders[SLOTS_MAX])
{
    const struct state *state = files->state;
    uint64_t generations[SLOTS_MAX], settled[SLOTS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        generations[i] = atomic_load(&state->slots[i].generation);
    state_settled_bytes(state, settled);
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        pid_t pid;
        if (settled[i] && state_alive(files, i, &pid) && atomic_load(&state->slots[i].generation) == generations[i])
            holders[count++] = (struct state_holder){pid, i, settled[i]};
    }
    return count;
}

void state_release(struct state *state, unsigned slot, uint64_t bytes)
{
    atomic_fetch_add(&state->changes, 1);
    atomic_fetch_sub(&state->held_bytes[slot], bytes);
}
