/* The compute limit, as the hooks of launches and copies use it.
 *
 *     struct piece piece;
 *     CUresult refused = compute_enter(&piece, WORK_KERNEL, kind, stream);
 *     if (refused != CUDA_SUCCESS) return refused;
 *     return compute_leave(&piece, REAL(cuLaunchKernel)(...));
 *
 * compute_enter returns once the container may give work to the GPU, and has charged what such work took so far; a GPU without
 * core_percent is never waited for. compute_leave has some of the pieces measured, and corrects. */
#ifndef ISOLATION_COMPUTE_COMPUTE_H
#define ISOLATION_COMPUTE_COMPUTE_H

#include <stdbool.h>

#include "driver/driver.h"

/* WORK_COPY_WAITED: the driver's function returns when it is done, or when the source may change. */
enum work { WORK_KERNEL, WORK_GRAPH, WORK_COPY, WORK_COPY_WAITED, WORK_FILL };

/* A piece of work between its two calls. */
struct piece {
    int gpu;               /* in the limits; below 0: not limited, and the rest says nothing */
    unsigned estimate, like; /* places in compute/estimate.h: of its kind, and of the like one (ESTIMATE_NONE: none) */
    bool known, marked, measured; /* its kind is; there is an event after it, one before it too */
    bool waited;           /* the call itself takes as long */
    bool idle;             /* nothing was on the GPU before it, as predicted */
    uint64_t amount, like_amount, charged_ns, launches, began_ns;
    CUstream stream;
    CUevent before_event;
    CUcontext before_context;
};

/* What the duration of work depends on. `key`: a kernel and its grid, a graph, a direction of copies. `size`: the bytes of a copy or a fill, which takes
 * as much longer; else 0. Where no such work was measured, that of a `like` kind is used (0: none): it takes as much longer as there is more
 * of `like_size`. */
struct kind {
    uint64_t key, size, like, like_size;
};

static inline struct kind unsized(uint64_t key)
{
    return (struct kind){.key = key};
}

/* `stream` must be CU_STREAM_PER_THREAD where NULL would mean that. Waits as long as the container's
 * share says; an error is for the program. */
CUresult compute_enter(struct piece *piece, enum work work, struct kind kind, CUstream stream);

/* After the driver answered; returns `result`. */
CUresult compute_leave(struct piece *piece, CUresult result);

#endif
