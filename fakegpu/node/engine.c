#define _GNU_SOURCE
#include "node/engine.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A calendar further ahead than this is of an earlier boot, or scribbled over: it is taken back to the present. */
#define STALE_NS UINT64_C(1000000000)

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *until)
{
    return syscall(SYS_futex, word, operation, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static struct timespec moment(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

void sleep_precisely(void)
{
    static _Thread_local bool done;
    if (!done)
        prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    done = true;
}

void sleep_until_ns(uint64_t moment_ns)
{
    struct timespec until = moment(moment_ns);
    sleep_precisely();
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

uint32_t engine_seen(struct engine *engine, unsigned slot)
{
    return atomic_load(&engine->turns[slot].wake);
}

void engine_sleep(struct engine *engine, unsigned slot, uint32_t seen, uint64_t until_ns)
{
    struct engine_turn *turn = &engine->turns[slot];
    struct timespec until = moment(until_ns);
    atomic_store(&turn->waiting, 1);
    if (atomic_load(&turn->wake) == seen)
        futex(&turn->wake, FUTEX_WAIT_BITSET, seen, until_ns == ENGINE_NEVER ? NULL : &until);
    atomic_store(&turn->waiting, 0);
}

void engine_poke(struct engine *engine, unsigned slot)
{
    struct engine_turn *turn = &engine->turns[slot];
    atomic_fetch_add(&turn->wake, 1);
    if (atomic_load(&turn->waiting))
        futex(&turn->wake, FUTEX_WAKE, INT_MAX, NULL);
}

/* Whether one who wants comes before another, where the calendar ends at `calendar_ns`. */
static bool before(struct engine_turn *turn, struct engine_turn *other, uint64_t calendar_ns)
{
    uint64_t ready_ns = atomic_load(&turn->ready_ns), other_ready_ns = atomic_load(&other->ready_ns);
    if (ready_ns <= calendar_ns && other_ready_ns <= calendar_ns)
        return atomic_load(&turn->until_ns) < atomic_load(&other->until_ns);
    return ready_ns < other_ready_ns;
}

/* Of those who want, the one whose turn it is; SLOTS_MAX: none wants. */
static unsigned next_in_turn(struct state *state, uint64_t calendar_ns)
{
    struct engine *engine = engine_of(state);
    unsigned used = atomic_load(&state->slots_used), chosen = SLOTS_MAX;
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++) {
        struct engine_turn *turn = &engine->turns[i];
        if (atomic_load(&turn->wants) && (chosen == SLOTS_MAX || before(turn, &engine->turns[chosen], calendar_ns)))
            chosen = i;
    }
    return chosen;
}

/* Only a sleeper needs to be woken: the others are running, or will ask at the end of their own piece. */
static void wake_next(struct state *state, unsigned slot)
{
    unsigned next = next_in_turn(state, atomic_load(&engine_of(state)->calendar_ns));
    if (next != SLOTS_MAX && next != slot)
        engine_poke(engine_of(state), next);
}

/* Whether waiting for `other` is over: it is dead, or was awaited long enough. */
static bool pass_over(const struct state_files *files, unsigned other, uint64_t now_ns, struct engine_wait *wait)
{
    uint64_t other_until_ns = atomic_load(&engine_of(files->state)->turns[other].until_ns);
    if (!wait->asked || wait->for_slot != other || wait->for_until_ns != other_until_ns) {
        *wait = (struct engine_wait){.asked = true,
                                     .for_slot = other,
                                     .for_until_ns = other_until_ns,
                                     .patience_ns = now_ns + ENGINE_PATIENCE_NS};
    }
    if (now_ns < wait->patience_ns && state_alive(files, other, NULL))
        return false;
    uint32_t wanted = 1;
    atomic_compare_exchange_strong(&engine_of(files->state)->turns[other].wants, &wanted, 0);
    wait->asked = false;
    return true;
}

bool engine_reserve(const struct state_files *files, unsigned slot, uint64_t ready_ns, uint64_t length_ns, bool more,
                    struct engine_wait *wait, uint64_t *start_ns, uint64_t *end_ns)
{
    struct engine *engine = engine_of(files->state);
    struct engine_turn *turn = &engine->turns[slot];
    if (length_ns > ENGINE_SLICE_NS) {
        length_ns = ENGINE_SLICE_NS;
        more = true;
    }
    atomic_store(&turn->ready_ns, ready_ns);
    atomic_store(&turn->wants, 1);
    for (;;) {
        uint64_t now_ns = monotonic_ns();
        uint64_t calendar_ns = atomic_load(&engine->calendar_ns);
        if (calendar_ns > now_ns + STALE_NS) {
            atomic_compare_exchange_strong(&engine->calendar_ns, &calendar_ns, now_ns);
            continue;
        }
        unsigned next = next_in_turn(files->state, calendar_ns);
        if (next != slot && next != SLOTS_MAX) {
            if (pass_over(files, next, now_ns, wait))
                continue;
            wait->until_ns = now_ns + ENGINE_LOOK_NS;
            return false;
        }
        if (calendar_ns > now_ns + ENGINE_AHEAD_NS) {
            wait->asked = false;
            wait->until_ns = calendar_ns - ENGINE_AHEAD_NS;
            return false;
        }
        *start_ns = calendar_ns > ready_ns ? calendar_ns : ready_ns;
        *end_ns = *start_ns + length_ns;
        if (!atomic_compare_exchange_strong(&engine->calendar_ns, &calendar_ns, *end_ns))
            continue;
        wait->asked = false;
        atomic_store(&turn->until_ns, *end_ns);
        if (!more)
            atomic_store(&turn->wants, 0);
        wake_next(files->state, slot);
        return true;
    }
}

bool engine_give_back(struct engine *engine, unsigned slot, uint64_t end_ns, uint64_t from_ns)
{
    if (!atomic_compare_exchange_strong(&engine->calendar_ns, &end_ns, from_ns))
        return false;
    atomic_store(&engine->turns[slot].until_ns, from_ns);
    return true;
}

void engine_announce(struct engine *engine, unsigned slot, uint64_t ready_ns)
{
    atomic_store(&engine->turns[slot].ready_ns, ready_ns);
    atomic_store(&engine->turns[slot].wants, 1);
}

void engine_withdraw(struct state *state, unsigned slot)
{
    if (atomic_exchange(&engine_of(state)->turns[slot].wants, 0))
        wake_next(state, slot);
}

void engine_begin(struct engine *engine, unsigned slot)
{
    struct engine_turn *turn = &engine->turns[slot];
    atomic_store(&turn->wants, 0);
    atomic_store(&turn->waiting, 0);
    atomic_store(&turn->until_ns, 0);
    atomic_store(&turn->ready_ns, 0);
}
