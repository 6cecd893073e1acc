/* Marks in streams: events of our own around a piece of work, by which its time is measured and its end is seen. */
#ifndef ISOLATION_COMPUTE_MARKS_H
#define ISOLATION_COMPUTE_MARKS_H

#include <stdbool.h>

#include "driver/driver.h"

/* An event and the context that it belongs to. */
struct mark {
    CUevent event;
    CUcontext context;
};

enum mark_state { MARK_REACHED, MARK_AHEAD, MARK_LOST };

/* A pool keeps events for use again. Not thread-safe: a pool is one GPU's, and its lock is held. */
enum { MARKS_KEPT = 64 };
struct mark_pool {
    struct mark marks[MARKS_KEPT];
    unsigned count;
};

/* Puts a mark behind what the stream has so far. False: the stream cannot have one (it is being captured, its context is
 * broken); nothing has changed then. */
bool mark_put(struct mark_pool *pool, CUstream stream, struct mark *mark);

enum mark_state mark_look(const struct mark *mark);

/* GPU time from one mark to another that is reached; false: unknown. */
bool mark_between(const struct mark *before, const struct mark *after, uint64_t *time_ns);

/* The same, signed: below 0 where `before` was reached later. */
bool mark_distance(const struct mark *before, const struct mark *after, int64_t *time_ns);

/* Back into the pool, or destroyed if that is full. */
void mark_drop(struct mark_pool *pool, const struct mark *mark);

/* The context has ended. Its events in the pool are the `heir`'s, or (NULL) went with it. */
void marks_end_context(struct mark_pool *pool, CUcontext ended, CUcontext heir);

/* Whether what is put into the stream now is captured instead of done. */
bool stream_is_captured(CUstream stream);

/* A capture of this process begins (1) or ends (-1): what is put into a captured stream is no work. */
void captures_count(int more);

/* This thread's calls on marks disturb no capture of another thread. */
void marks_beside_captures(void);

#endif
