/* Events, for streams, captures and graphs. */
#ifndef FAKEGPU_CUDA_STREAM_EVENTS_H
#define FAKEGPU_CUDA_STREAM_EVENTS_H

#include "cuda/stream/streams.h"

/* An event holds the mark of its last record. */
struct CUevent_st {
    _Atomic uint32_t magic;
    CUcontext context;
    unsigned flags;
    _Atomic bool shared;          /* with another process */
    struct mark *mark;            /* NULL: never recorded */
    struct capture_point *point;  /* of its record in a capture, which counts instead; NULL: none */
    CUevent next;                 /* among those that live, or are free */
    CUevent *link;                /* to it, while it lives */
};

bool event_valid(CUevent event);

/* The mark of the last record, kept for the caller; NULL: none. */
struct mark *event_mark(CUevent event);

/* Makes a new record of the event: work that reaches it. NULL mark: no memory. */
struct work event_record(CUevent event);

/* The work that waits for the event's last record; false: it was never recorded, there is nothing to wait for. */
bool event_wait(CUevent event, struct work *work);

/* A context's events end with it. */
void events_end_context(CUcontext context);

#endif
