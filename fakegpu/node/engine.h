/* The engine of one GPU: a calendar of its time, in which processes take turns.
 *
 * `calendar_ns` is the moment (CLOCK_MONOTONIC) up to which the GPU's time is reserved. A process with work reserves the next
 * piece behind it, a slice at most, by one compare-exchange, so no moment is reserved twice and a process that dies costs
 * the others its slice at most: there is no owner, and nothing to repair. Time counts from when the work was ready,
 * even if its process comes late to ask (a busy machine): pieces then lie in the past, and no GPU time is lost.
 *
 * Turns: of those who had work at the calendar's end, the one whose last piece ended first is next; the others wait for
 * it, each on its own futex word, and the process that reserved wakes the next. (Not simply of those who have work: where the
 * calendar is behind the clock, work that came since must not end it before those who had work earlier have had that time.) One that does not come is passed over, at once if it is dead, and after
 * ENGINE_PATIENCE_NS if it is only slow (stopped, or starved of CPU); it loses that turn. The calendar is never filled
 * further than ENGINE_AHEAD_NS ahead, so a newcomer waits for two slices, not for everybody's.
 *
 * These functions are the part that is shared between processes, and keep nothing of a process; fakegpu/cuda/stream/executor.c
 * is what uses them. A state of all zero is right. */
#ifndef FAKEGPU_NODE_ENGINE_H
#define FAKEGPU_NODE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/state.h"

#define ENGINE_SLICE_NS UINT64_C(2000000)
#define ENGINE_AHEAD_NS ENGINE_SLICE_NS
#define ENGINE_PATIENCE_NS UINT64_C(100000000)
#define ENGINE_LOOK_NS UINT64_C(20000000) /* how often who waits looks whether the other one lives */
#define ENGINE_NEVER UINT64_MAX

/* Of one process; every word is written by its owner, except `wants` (cleared by who passes it over) and `wake`. */
struct engine_turn {
    _Atomic uint64_t until_ns; /* end of the last piece */
    _Atomic uint64_t ready_ns; /* since when there is work beyond it */
    _Atomic uint32_t wants;    /* 1: has work beyond that piece */
    _Atomic uint32_t wake;     /* futex word: changed when it may be this one's turn, or its process has news */
    _Atomic uint32_t waiting;  /* 1: sleeps on `wake` */
    uint32_t unused;
};

struct engine {
    _Atomic uint64_t calendar_ns;
    _Alignas(64) struct engine_turn turns[SLOTS_MAX];
};
_Static_assert(sizeof(struct engine) <= ENGINE_BYTES, "the engine's place in the state");

static inline struct engine *engine_of(struct state *state)
{
    return (struct engine *)(void *)state->engine;
}

/* What a process remembers of a turn that it waits for. */
struct engine_wait {
    uint64_t until_ns;       /* ask again then at the latest */
    bool asked;              /* the rest says something */
    unsigned for_slot;       /* whose turn it was */
    uint64_t for_until_ns;   /* its last piece then */
    uint64_t patience_ns;    /* when it is passed over */
};

/* Reserves up to `length_ns` (a slice at most) for work that was ready at `ready_ns`; `more` says whether there
 * is work beyond it. True: the piece is `*start_ns` to `*end_ns`. False: it is another's turn, or too early; call again
 * when the slot's word changes (engine_sleep) or at wait->until_ns, with the same `wait`. A process's next piece may be
 * asked for when its last one is over. */
bool engine_reserve(const struct state_files *files, unsigned slot, uint64_t ready_ns, uint64_t length_ns, bool more,
                    struct engine_wait *wait, uint64_t *start_ns, uint64_t *end_ns);

/* Gives back the end of one's piece, from `from_ns` on, if nothing lies behind it in the calendar. */
bool engine_give_back(struct engine *engine, unsigned slot, uint64_t end_ns, uint64_t from_ns);

/* Says that there will be work after the piece that is running, ready since `ready_ns`: others then leave the turn free. */
void engine_announce(struct engine *engine, unsigned slot, uint64_t ready_ns);

/* The opposite: there is no more work (for now); the next one is woken. */
void engine_withdraw(struct state *state, unsigned slot);

/* A slot newly taken: nothing of its former owner counts. */
void engine_begin(struct engine *engine, unsigned slot);

/* Sleeps until the slot's word is no longer `seen`, or the moment `until_ns` (ENGINE_NEVER: no limit). */
void engine_sleep(struct engine *engine, unsigned slot, uint32_t seen, uint64_t until_ns);
uint32_t engine_seen(struct engine *engine, unsigned slot);

/* Ends a sleep of the slot's process, now or the one about to begin. */
void engine_poke(struct engine *engine, unsigned slot);

/* Sleeps until a moment of CLOCK_MONOTONIC to the timer's precision, not to the 50 us by which the kernel may be late. */
void sleep_until_ns(uint64_t moment_ns);

/* The calling thread's sleeps end on time from here on. */
void sleep_precisely(void);

#endif
