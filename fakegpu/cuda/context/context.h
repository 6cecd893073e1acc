/* Devices, contexts and which of them a thread works with: what every other part of this library starts from.
 *
 *     EXPORT CUresult cuSomething(...)
 *     {
 *         ENTER(context);
 *         ... context->device->state.state, context->device->slot ...
 *     }
 *
 * A device's state is mapped and its slot taken before its first context is made, and both stay until the process
 * ends; whoever has a context may use them without asking. */
#ifndef FAKEGPU_CUDA_CONTEXT_H
#define FAKEGPU_CUDA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "description/description.h"
#include "interface/cuda.h"
#include "node/state.h"

struct arena;
struct stream_set; /* the engine's part: what a context has of streams and work */

struct device {
    struct gpu gpu; /* as described when cuInit was called */
    int ordinal;
    pthread_mutex_t mutex; /* guards what follows, and state_reserve */
    struct state_files state;
    int slot; /* -1: none yet */
    CUcontext primary; /* NULL: not active */
    _Atomic unsigned contexts; /* living ones, the primary one included */
    unsigned primary_users, primary_flags;
};

struct CUctx_st {
    _Atomic int alive;
    struct device *device;
    unsigned flags, api_version;
    uint64_t id;
    bool is_primary;
    uint64_t cost_bytes;
    uint64_t grown_bytes; /* besides, unasked (cuda/module/growth.h); of that: */
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

/* --- the library as a whole (cuda/entry/driver.c) ------------------------------------------------------------------- */

/* CUDA_SUCCESS once cuInit has succeeded; in a child forked after that, CUDA_ERROR_NOT_INITIALIZED for good. */
CUresult driver_ready(void);

/* Version of CUDA that the description names, as 1000 * major + 10 * minor. */
int driver_cuda_version(void);

/* One line on stderr: what failed and what to do. */
void driver_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- devices (cuda/device/device.c) ---------------------------------------------------------------------------------- */

int device_count(void);

/* NULL for an ordinal that no visible GPU has. */
struct device *device_get(CUdevice ordinal);

/* Maps the state and takes a slot, once. */
CUresult device_attach(struct device *device);

/* Takes memory from the GPU for this process (rounded by the caller), clearing dead processes if it does not fit at
 * first; CUDA_ERROR_OUT_OF_MEMORY. The device must be attached. */
CUresult device_reserve(struct device *device, uint64_t bytes);
void device_release(struct device *device, uint64_t bytes);

/* What a context takes of the GPU's memory for itself. */
uint64_t context_cost_bytes(const struct device *device);

/* What is free now of the GPU, once dead processes' memory is given back, and what there is; no more than the limits of this
 * process's cgroups leave it. The device must be attached. */
void device_memory(struct device *device, uint64_t *free_bytes, uint64_t *total_bytes);

/* What CUDA calls the GPU's total: without what the driver keeps for itself. */
uint64_t device_total_bytes(const struct device *device);

/* What is usable of the GPU: total without what the driver keeps and what the description gives to others. */
uint64_t device_limit_bytes(const struct device *device);

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

/* For functions that need the driver, and no context. */
#define READY()                                                                                            \
    do {                                                                                                   \
        CUresult unready_ = driver_ready();                                                                \
        if (unready_ != CUDA_SUCCESS)                                                                      \
            return unready_;                                                                               \
    } while (0)

/* Declares `device` for an ordinal, or returns the error. */
#define DEVICE(ordinal, device)                                                                            \
    READY();                                                                                               \
    struct device *device = device_get(ordinal);                                                           \
    if (!device)                                                                                           \
        return CUDA_ERROR_INVALID_DEVICE

#define ENTER(context)                                                                                     \
    CUcontext context;                                                                                     \
    do {                                                                                                   \
        CUresult refused_ = context_current(&context);                                                     \
        if (refused_ != CUDA_SUCCESS)                                                                      \
            return refused_;                                                                               \
    } while (0)

#define REQUIRE_CU(condition)                                                                              \
    do {                                                                                                   \
        if (!(condition))                                                                                  \
            return CUDA_ERROR_INVALID_VALUE;                                                               \
    } while (0)

#endif
