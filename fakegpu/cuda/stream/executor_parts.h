/* An executor from inside; for cuda/stream/executor.c and cuda/stream/stream.c. */
#ifndef FAKEGPU_CUDA_EXECUTOR_PARTS_H
#define FAKEGPU_CUDA_EXECUTOR_PARTS_H

#include <pthread.h>

#include "cuda/stream/executor.h"

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
    MOVER_GIVES,  /* whoever gives work: must not be held up */
    MOVER_WAITS,  /* whoever waits for work has time to copy bytes */
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
