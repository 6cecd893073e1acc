#define _GNU_SOURCE
#include "compute/watch.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "compute/flow.h"
#include "files/limits.h"
#include "process/log.h"

/* While no mark is ahead the thread sleeps, but not at once: to wake it costs a program that waits for each of its marks more than the mark does. */
enum { STACK_BYTES = 256 << 10, PAUSE_NS = 1500000, PAUSES_AWAKE = 16 };

static _Atomic bool started;
static _Atomic uint32_t changes;   /* futex word */
static _Atomic bool asleep;
/* Held during a look, of which none begins once the program ends: the driver is torn down then. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static bool ended;

/* A child of fork has no such thread. */
static void in_child(void)
{
    pthread_mutex_init(&looking, NULL);
    atomic_store(&started, false);
    atomic_store(&asleep, false);
}

static void end(void)
{
    pthread_mutex_lock(&looking);
    ended = true;
    pthread_mutex_unlock(&looking);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* The work of a turn that is over is through: the arbiter need not wait until the moment that was predicted. */
static void look(struct flow *flow, bool *ahead)
{
    uint64_t now_ns = turn_now_ns();
    uint64_t before_ns = flow_ahead_ns(flow, now_ns);
    if (!flow->mark_count)
        return;
    *ahead |= flow_look(flow, now_ns);
    if (flow_ahead_ns(flow, now_ns) + FLOW_MARK_NS / 4 < before_ns && atomic_load(&flow->page->until_ns) <= now_ns)
        turn_wake(&flow->page->requests);
}

/* False: there is nothing to look at any more. `*ahead`: marks are. */
static bool look_at_all(bool *ahead)
{
    pthread_mutex_lock(&looking);
    for (int i = 0; !ended && i < LIMITED_GPUS_MAX; i++) {
        struct flow *flow = flow_unattended(i, turn_now_ns(), PAUSE_NS, ahead);
        if (!flow)
            continue;
        look(flow, ahead);
        flow_unlock(flow);
    }
    bool goes_on = !ended;
    pthread_mutex_unlock(&looking);
    return goes_on;
}

static void *watch(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "gpushare");
    prctl(PR_SET_TIMERSLACK, 1UL);
    marks_beside_captures();
    for (unsigned quiet = 0;;) {
        uint32_t seen = atomic_load(&changes);
        bool ahead = false;
        if (!look_at_all(&ahead))
            return NULL;
        quiet = ahead ? 0 : quiet + 1;
        if (quiet <= PAUSES_AWAKE) {
            nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
            continue;
        }
        atomic_store(&asleep, true);
        if (atomic_load(&changes) == seen)
            turn_sleep(&changes, seen, UINT64_MAX);
        atomic_store(&asleep, false);
    }
}

static void start(void)
{
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    /* The driver's own handlers are there since cuInit, so that this one runs first. */
    atexit(end);
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    /* The program's signals are the program's threads'. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attributes, watch, NULL))
        log_message("no thread could be started to watch the GPU's work; turns may end late");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void flow_watch(void)
{
    if (!atomic_load_explicit(&started, memory_order_relaxed) && !atomic_exchange(&started, true))
        start();
    atomic_fetch_add(&changes, 1);
    if (atomic_load(&asleep))
        turn_wake(&changes);
}
