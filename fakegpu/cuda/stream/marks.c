#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda/stream/executor.h"

struct mark *mark_make(uint32_t points)
{
    struct mark *mark = calloc(1, sizeof *mark);
    if (mark) {
        mark->references = 1;
        mark->pending = points;
    }
    return mark;
}

struct mark *mark_keep(struct mark *mark)
{
    atomic_fetch_add_explicit(&mark->references, 1, memory_order_relaxed);
    return mark;
}

void mark_drop(struct mark *mark)
{
    if (mark && atomic_fetch_sub(&mark->references, 1) == 1)
        free(mark);
}

void mark_reach(struct mark *mark, uint64_t end_ns)
{
    uint64_t before_ns = atomic_load(&mark->end_ns);
    while (before_ns < end_ns && !atomic_compare_exchange_weak(&mark->end_ns, &before_ns, end_ns))
        ;
    if (atomic_fetch_sub(&mark->pending, 1) != 1)
        return;
    /* From 2 on a thread sleeps on it. */
    if (atomic_exchange(&mark->reached, 1) == 2)
        syscall(SYS_futex, &mark->reached, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    for (uint32_t pokes = atomic_exchange(&mark->pokes, 0); pokes; pokes &= pokes - 1)
        executor_poke((unsigned)__builtin_ctz(pokes));
}

static bool reached(struct mark *mark)
{
    return atomic_load(&mark->reached) == 1;
}

bool mark_over(struct mark *mark)
{
    return reached(mark) && atomic_load(&mark->end_ns) <= monotonic_ns();
}

bool mark_known(struct mark *mark, unsigned ordinal)
{
    if (reached(mark))
        return true;
    atomic_fetch_or(&mark->pokes, 1u << ordinal);
    return reached(mark);
}

void mark_wait(struct mark *mark)
{
    /* Looked at again each second, so that no lost wake-up can hang a program. */
    const struct timespec second = {.tv_sec = 1};
    uint32_t expected = 0;
    sleep_precisely();
    while (!reached(mark)) {
        expected = 0;
        if (atomic_compare_exchange_strong(&mark->reached, &expected, 2) || expected == 2)
            syscall(SYS_futex, &mark->reached, FUTEX_WAIT_PRIVATE, 2, &second, NULL, 0);
    }
    uint64_t end_ns = atomic_load(&mark->end_ns);
    if (end_ns > monotonic_ns())
        sleep_until_ns(end_ns);
}
