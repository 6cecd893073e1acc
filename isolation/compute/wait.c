#define _GNU_SOURCE
#include "compute/wait.h"

#include <time.h>

#include "compute/watch.h"

/* Without an arbiter: how far ahead of its share a container may be. */
#define ALONE_AHEAD_NS UINT64_C(20000000)
/* So much of it is not lost by threads that wake up late. */
#define ALONE_LATE_NS UINT64_C(20000000)
/* A debt beyond this is not one of kernels. */
#define ALONE_DEBT_NS UINT64_C(600000000000)
/* Work that does not end (a kernel that waits for the program) must not keep the program from going on: one more piece
 * is let by after so long. */
#define DEPTH_MOST_NS UINT64_C(500000000)
/* So much may be on the GPU that the page does not tell of yet. */
#define BATCH_MOST_NS UINT64_C(100000)
#define PAUSE_LEAST_NS UINT64_C(100000)
#define PAUSE_MOST_NS UINT64_C(25000000)

/* A node's arbiter finds a new container within this: what is put on the GPU before would be in another's turn. */
#define FOUND_WITHIN_NS UINT64_C(100000000)

enum verdict {
    GO,
    FULL,       /* enough is on the GPU for now */
    NOT_NOW,    /* the arbiter must say */
    ENDING,     /* what is there fills the rest of the turn */
    TOO_MUCH,   /* no arbiter, and the share is used up */
};

/* How much predicted work of this process may wait on the GPU. */
static uint64_t depth_ns(const struct flow *flow)
{
    uint64_t granted_ns = atomic_load_explicit(&flow->page->ahead_ns, memory_order_relaxed);
    return (granted_ns && granted_ns < FLOW_DEPTH_NS ? granted_ns : FLOW_DEPTH_NS) / flow->sharing;
}

static enum verdict judge(const struct flow *flow, uint64_t now_ns, unsigned launches_most)
{
    struct turn_page *page = flow->page;
    uint64_t ahead_ns = flow_ahead_ns(flow, now_ns);
    if (!atomic_load_explicit(&page->arbiter_version, memory_order_relaxed) && now_ns < flow->begun_ns + FOUND_WITHIN_NS)
        return NOT_NOW;
    if (!flow_has_arbiter(flow, now_ns)) {
        uint64_t alone_ns = atomic_load_explicit(&page->alone_ns, memory_order_relaxed);
        if (alone_ns > now_ns + ALONE_AHEAD_NS)
            return TOO_MUCH;
    } else {
        uint64_t until_ns = atomic_load_explicit(&page->until_ns, memory_order_relaxed);
        uint64_t left_ns = atomic_load_explicit(&page->allowed_ns, memory_order_relaxed) -
                           atomic_load_explicit(&page->used_ns, memory_order_relaxed);
        if (until_ns <= now_ns || (int64_t)left_ns <= 0)
            return NOT_NOW;
        if (ahead_ns && now_ns + ahead_ns >= until_ns)
            return ENDING;
    }
    if (flow->mark_count && flow->launches - flow->reached_launches >= launches_most)
        return FULL;
    return ahead_ns >= depth_ns(flow) || flow->unknown >= FLOW_UNKNOWN_MOST ? FULL : GO;
}

static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t from_to(uint64_t a, uint64_t b) { return a < b ? b - a : 0; }

/* What all the questions of `judge` leave, and what comes before the next mark. */
void flow_allow_batch(struct flow *flow, uint64_t now_ns)
{
    const struct turn_page *page = flow->page;
    uint64_t ahead_ns = flow_ahead_ns(flow, now_ns);
    flow->batch_ns = 0;
    flow->batch_at_ns = now_ns;
    if (!flow_has_arbiter(flow, now_ns) || flow->unknown)
        return;
    uint64_t room_ns = less(from_to(ahead_ns, depth_ns(flow)), from_to(flow->put_ns - flow->marked_put_ns, FLOW_MARK_NS));
    int64_t left_ns = (int64_t)(atomic_load_explicit(&page->allowed_ns, memory_order_relaxed) -
                                atomic_load_explicit(&page->used_ns, memory_order_relaxed));
    room_ns = less(room_ns, from_to(now_ns + ahead_ns, atomic_load_explicit(&page->until_ns, memory_order_relaxed)));
    room_ns = less(room_ns, left_ns > 0 ? (uint64_t)left_ns / flow->sharing : 0);
    flow->batch_ns = less(room_ns, BATCH_MOST_NS);
}

static void pause_ns(struct flow *flow, uint64_t time_ns)
{
    flow_unlock(flow);
    nanosleep(&(struct timespec){(time_t)(time_ns / 1000000000u), (long)(time_ns % 1000000000u)}, NULL);
    pthread_mutex_lock(&flow->mutex);
}

static void wait_for_room(struct flow *flow, uint64_t now_ns)
{
    uint64_t ahead_ns = flow_ahead_ns(flow, now_ns), low_ns = depth_ns(flow) * 3 / 4;
    uint64_t time_ns = ahead_ns > low_ns ? ahead_ns - low_ns : 0;
    time_ns = time_ns < PAUSE_LEAST_NS ? PAUSE_LEAST_NS : time_ns;
    pause_ns(flow, time_ns < PAUSE_MOST_NS ? time_ns : PAUSE_MOST_NS);
}

static void wait_for_grant(struct flow *flow, uint32_t seen, uint64_t now_ns, bool ring)
{
    struct turn_page *page = flow->page;
    uint64_t until_ns = atomic_load(&page->until_ns);
    flow_publish(flow, now_ns);
    flow->waiting++;
    atomic_store(&flow->slot->wants_until_ns, now_ns + TURN_WISH_NS);
    if (ring)
        turn_wake(&page->requests);
    flow_unlock(flow);
    turn_sleep(&page->grants, seen, !ring && until_ns < now_ns + TURN_REPEAT_NS ? until_ns : now_ns + TURN_REPEAT_NS);
    pthread_mutex_lock(&flow->mutex);
    flow->waiting--;
}

/* The moment from which on there is more to use must not lie in a past that would count as savings, but for what a thread that wakes up late
 * has slept too long; nor in a future that comes of what was borrowed while an arbiter was there. */
static void catch_up(struct flow *flow, uint64_t now_ns)
{
    struct turn_page *page = flow->page;
    uint64_t alone_ns = atomic_load(&page->alone_ns), least_ns = now_ns - ALONE_LATE_NS, most_ns = now_ns + ALONE_DEBT_NS;
    if (flow_has_arbiter(flow, now_ns)) {
        least_ns = now_ns;
        most_ns = now_ns + ALONE_AHEAD_NS;
    }
    while (alone_ns < least_ns || alone_ns > most_ns) {
        if (atomic_compare_exchange_weak(&page->alone_ns, &alone_ns, alone_ns < least_ns ? least_ns : now_ns))
            return;
    }
}

uint64_t flow_wait(struct flow *flow, uint64_t now_ns, unsigned launches_most)
{
    uint64_t full_since_ns = 0, waits_since_ns = 0;
    bool waited = false;
    for (;; now_ns = turn_now_ns()) {
        uint32_t seen = atomic_load(&flow->page->grants);
        enum verdict verdict = judge(flow, now_ns, launches_most);
        if (verdict == FULL && !full_since_ns)
            full_since_ns = now_ns;
        if (verdict == GO || (verdict == FULL && now_ns > full_since_ns + DEPTH_MOST_NS))
            break;
        if (flow_look(flow, now_ns))
            flow_watch();
        if (verdict == FULL) {
            if (judge(flow, now_ns, launches_most) == FULL)
                wait_for_room(flow, now_ns);
            continue;
        }
        waited = true;
        waits_since_ns = waits_since_ns ? waits_since_ns : now_ns;
        full_since_ns = 0;
        if (verdict == NOT_NOW || verdict == ENDING) {
            wait_for_grant(flow, seen, now_ns, verdict == NOT_NOW);
        } else {
            /* Until all of it is paid: only back-to-back work shows how long it takes, occasional work does not. */
            uint64_t more_ns = from_to(now_ns, atomic_load(&flow->page->alone_ns));
            flow->waiting++;
            pause_ns(flow, more_ns < TURN_REPEAT_NS ? more_ns + PAUSE_LEAST_NS : TURN_REPEAT_NS);
            flow->waiting--;
        }
    }
    if (waits_since_ns)
        atomic_fetch_add_explicit(&flow->page->waited_ns, now_ns - waits_since_ns, memory_order_relaxed);
    catch_up(flow, now_ns);
    if (waited && !flow->waiting)
        atomic_store(&flow->slot->wants_until_ns, 0);
    return now_ns;
}
