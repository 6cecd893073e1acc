/* Runs the work of this process on one GPU: submitted work waits here, in order, for its piece of the GPU's time.
 *
 * Work is done ahead of its time: once the engine's calendar (node/engine.h) has a piece for it, its moment of end is known
 * and its effects (copied bytes, a recorded event) happen at once, while a waiting thread sleeps until that moment.
 * So one sleep per slice is enough, whatever the kernels' durations, and an end is exact though threads wake late.
 *
 * Any thread that gives work moves things on itself when the GPU is free for it; otherwise the executor's own thread does, which
 * sleeps unless there is something to do. One mutex guards an executor and everything in it. */
#ifndef FAKEGPU_CUDA_STREAM_EXECUTOR_H
#define FAKEGPU_CUDA_STREAM_EXECUTOR_H

#include <pthread.h>

#include "cuda/context/context.h"
#include "node/engine.h"

/* A point in streams that others wait for: an event's record, the end of what a synchronisation covers. */
struct mark {
    _Atomic uint32_t references;
    _Atomic uint32_t reached; /* futex word; 1: end_ns is known */
    _Atomic uint32_t pending; /* points not reached yet */
    _Atomic uint32_t pokes;   /* ordinals of devices whose work waits for it, as bits */
    _Atomic uint64_t end_ns;  /* the latest of its points */
};

struct mark *mark_make(uint32_t points);
struct mark *mark_keep(struct mark *mark);
void mark_drop(struct mark *mark);
void mark_reach(struct mark *mark, uint64_t end_ns);
/* Whether it is over by now. */
bool mark_over(struct mark *mark);
/* Whether its end is known; if not, the device's executor is poked when it will be. */
bool mark_known(struct mark *mark, unsigned ordinal);
/* Sleeps until it is over. */
void mark_wait(struct mark *mark);

enum work_kind {
    WORK_TIMED,  /* takes duration_ns of the GPU; then `act`, if any */
    WORK_AFTER,  /* `call`, on the executor's thread */
    WORK_HOST,   /* `call`, on the thread for host functions, not before its moment; the stream waits for its return */
    WORK_MARK,   /* `mark` is reached */
    WORK_WAIT,   /* until `mark` is over */
    WORK_VALUE,  /* until `test` says so: waits for a value in memory */
};

struct work {
    enum work_kind kind;
    bool is_launch;          /* counts against the launches that may be queued */
    bool onlooker;           /* a mark of who waits for what is there, without a place in the order of streams */
    bool small;              /* the submitting thread may run `act` itself */
    uint64_t duration_ns;
    /* Timed: called after each part of the duration, with nothing locked; the last time with done_ns = duration_ns. */
    void (*act)(void *argument, uint64_t done_ns, uint64_t duration_ns);
    void (*call)(void *argument);
    bool (*test)(void *argument);
    void *argument;
    bool argument_owned;     /* freed with the work */
    struct mark *mark;
    /* The executor's own. */
    struct work *next;
    uint64_t sequence, given_ns, done_ns;
};

struct executor;

enum { LAUNCHES_MAX = 1024 }; /* queued in one stream; the next launch blocks */

struct CUstream_st {
    _Atomic uint32_t magic;
    CUcontext context, part; /* part: of a green context, NULL for others */
    bool detached;           /* that part has ended */
    struct executor *executor;
    unsigned flags;
    int priority;
    uint64_t id;
    bool blocking; /* ordered with the legacy stream */
    struct capture *capture; /* NULL: not capturing (cuda/graph/capture.c) */
    uint64_t owner;          /* of a per-thread stream: its thread */
    /* Guarded by the executor's mutex. */
    struct work *first, *last;
    uint64_t tail_ns;    /* moment at which everything done so far ends */
    unsigned launches;
    bool busy;           /* an action of its first work runs */
    bool active;         /* is in the executor's list */
    bool ending;         /* destroyed; goes when empty */
    struct CUstream_st *next_active, *previous_active;
    struct CUstream_st *next; /* of the context's streams, or of the free ones */
};

/* Streams of a context. */
struct stream_set {
    CUstream legacy;
    CUstream streams; /* all, legacy included */
    bool ending; /* nothing is waited for any more but the GPU and host functions; guarded by the executor's mutex */
    _Atomic unsigned capturing; /* of those that are in order with the legacy one */
};

/* The device's executor; made at first use. NULL: no thread could be started. */
struct executor *executor_of(struct device *device);

void executor_lock(struct executor *executor);
void executor_unlock(struct executor *executor);

/* Gives a stream work and moves on what can be. `work` is copied. */
CUresult stream_give(CUstream stream, const struct work *work);

/* The same for several pieces of work that nothing may come between. */
CUresult stream_give_all(CUstream stream, const struct work *work, size_t count);

/* Whether all submitted work is over; under lock. */
bool stream_idle(CUstream stream, uint64_t now_ns);

/* Has the executor's thread look at its work. */
void executor_poke(unsigned ordinal);

/* Runs `call` on the thread for host functions (cuda/stream/hostcalls.c); `returned` follows there. */
bool hostcall(void (*call)(void *), void *argument, void (*returned)(void *), void *stream);

/* --- an executor from inside; for cuda/stream/executor.c and cuda/stream/stream.c ------------------------------------- */

/* How often a value in memory that work waits for is looked at. */
#define LOOK_AGAIN_NS UINT64_C(100000)

struct executor {
    _Atomic bool running;
    struct device *device;
    struct engine *engine;
    unsigned slot;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t room; /* for another launch */
    uint64_t thread_until_ns; /* until when the thread sleeps at most; 0: it runs */
    CUstream active;
    uint64_t sequence;
    uint64_t cursor_ns, piece_end_ns; /* what is left of this process's piece of the calendar */
    bool wanting;
    struct engine_wait wait;
    struct work *free_work;
    unsigned free_count;
};

/* Who moves work on. */
enum mover {
    MOVER_GIVES,  /* a thread that submits work: must not be held up */
    MOVER_WAITS,  /* a thread that waits for work has time to copy bytes */
    MOVER_THREAD, /* the executor's thread: anything */
};

/* Does what can be done now, and sees that the thread does the rest. Under lock, which it lets go while work acts. */
void executor_move(struct executor *executor, enum mover mover);

/* Puts a copy of the work behind what the stream has; under lock. False: no memory. */
bool stream_append(CUstream stream, const struct work *work, uint64_t now_ns);

/* A destroyed stream has done its last work; under lock. */
void stream_gone(CUstream stream);

void stream_hostcall_returned(void *stream);

#endif
