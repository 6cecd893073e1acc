/* Captures from inside; for cuda/graph/capture.c and cuda/graph/capture_questions.c. */
#ifndef FAKEGPU_CUDA_GRAPH_CAPTURE_H
#define FAKEGPU_CUDA_GRAPH_CAPTURE_H

#include "cuda/graph/graphs.h"
#include "cuda/stream/capturing.h"

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

/* One capture: from a stream's begin to its end, with all streams that events drew into it. */
struct recording {
    unsigned references; /* places and points */
    CUgraph graph;
    CUstream origin; /* NULL: ended */
    bool graph_is_callers;
    bool invalid;
    int mode;
    pthread_t thread;
    uint64_t id;
};

/* Where something stands in a capture: what comes next waits for these nodes. */
struct position {
    struct recording *recording;
    CUgraphNode *nodes;
    size_t count;
};

/* Of a stream. */
struct capture {
    struct position at;
    struct capture *next;
    CUstream stream;
};

/* Guards all of it. */
extern pthread_mutex_t capture_mutex;
/* All streams that are captured; how many there are can be read without the lock. */
extern struct capture *captures;
extern _Atomic int capture_count;

/* Replaces what comes next waits for, or adds to it; under lock. False: no memory. */
bool position_set(struct position *at, const CUgraphNode *nodes, size_t count);
bool position_add(struct position *at, const CUgraphNode *nodes, size_t count);

#endif
