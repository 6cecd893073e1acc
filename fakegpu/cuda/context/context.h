/* Contexts, and which of them a thread works with: what every other part of this library starts from.
 *
 *     EXPORT CUresult cuSomething(...)
 *     {
 *         ENTER(context);
 *         ... context->device->state.state, context->device->slot ...
 *     }
 *
 * A device's state is mapped and its slot taken before its first context is made, and both stay until the process
 * ends; a thread with a context may use them without asking. */
#ifndef FAKEGPU_CUDA_CONTEXT_CONTEXT_H
#define FAKEGPU_CUDA_CONTEXT_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/entry/driver.h"

struct arena;
struct stream_set; /* the engine's part: what a context has of streams and work */

struct CUctx_st {
    _Atomic int alive;
    struct device *device;
    unsigned flags, api_version;
    uint64_t id;
    bool is_primary;
    _Atomic int users; /* as cuCtxAttach and cuCtxDetach count them */
    uint64_t cost_bytes;
    uint64_t grown_bytes; /* in addition, implicitly (cuda/module/growth.h); of that: */
    uint64_t stacks_bytes, code_bytes, streams_bytes, managed_bytes;
    unsigned streams_alive;
    size_t limits[16]; /* by CUlimit */
    int cache_config;
    _Atomic uint64_t peers; /* ordinals of devices whose memory it may use, a bit each */
    _Atomic int sticky; /* CUresult that every call answers from now on: an illegal address and the like */
    struct stream_set *streams; /* set by engine_context_created */
    struct arena *arena; /* small pieces of device memory; NULL until there is one */
    CUcontext next; /* of the pool of contexts */
    CUcontext whole; /* of a green context's handle: the primary context that it is in all but name */
};

/* --- contexts (cuda/context/context.c) -------------------------------------------------------------------------------- */

/* The calling thread's current context, if it lives and has no sticky error. NULL makes CUDA_ERROR_INVALID_CONTEXT. */
CUresult context_current(CUcontext *context);

/* Whether a handle is that of a living context. */
bool context_valid(CUcontext context);

/* A handle of a part of a context (cuda/context/green.c): what is done in it is done in the whole, until either ends. NULL: no memory. */
CUcontext context_of_part(CUcontext whole);
void context_of_part_end(CUcontext part);

/* The handle that is current in the calling thread, if it is that of a part; else NULL. */
CUcontext context_current_part(void);

/* The primary context if it is active, NULL otherwise. */
CUcontext context_primary(struct device *device);

#define ENTER(context)                                                                                     \
    CUcontext context;                                                                                     \
    do {                                                                                                   \
        CUresult refused_ = context_current(&context);                                                     \
        if (refused_ != CUDA_SUCCESS)                                                                      \
            return refused_;                                                                               \
    } while (0)

/* --- for those who make and end contexts ------------------------------------------------------------------------------ */

/* A zeroed context with a new id; NULL: no memory. */
CUcontext context_from_pool(void);
void context_to_pool(CUcontext context);

/* Makes it the calling thread's current one. */
CUresult context_push(CUcontext context);
/* Undoes that, if it still is. */
void context_pop(CUcontext context);

#endif
