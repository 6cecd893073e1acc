/* Contexts cost memory themselves. How much is measured when the first process of the container makes one, and charged beforehand from
 * then on; the memory of a context ends with it. */
#include "compute/flow.h"
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/beyond.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/holdings.h"
#include "memory/measure.h"
#include "memory/reserved.h"
#include "process/fork_mutex.h"
#include "process/log.h"

enum { DEVICES_MAX = 64 };
/* Where the driver's list of processes does not name this one, the GPU's whole use shows what a context costs, as long as that is
 * within what contexts have been seen to take; others may have allocated or freed memory at the same time. */
#define LEAST_BYTES (UINT64_C(16) << 20)
#define MOST_BYTES (UINT64_C(2) << 30)
/* If not even that, this is taken. */
#define UNMEASURED_BYTES (UINT64_C(512) << 20)

/* Threads of a process measure one after the other, as processes do. */
static void nothing(void) {}
MUTEX_FRESH_IN_CHILD(measuring_mutex, nothing)

static void measuring_begin(int gpu)
{
    pthread_mutex_lock(&measuring_mutex);
    charge_measuring(gpu, true);
}

static void measuring_end(int gpu)
{
    charge_measuring(gpu, false);
    pthread_mutex_unlock(&measuring_mutex);
}

static CUcontext primary[DEVICES_MAX];
static void forget_primary(void)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        primary[i] = NULL;
}
MUTEX_FRESH_IN_CHILD(mutex, forget_primary)

/* A context under way. */
struct opening {
    int gpu;
    bool measuring;
    uint64_t bytes, own_before_bytes, all_before_bytes;
};

static const char *uuid_of(int gpu)
{
    return container_here()->limits.gpus[gpu].uuid;
}

static CUresult begin(CUdevice device, struct opening *opening)
{
    *opening = (struct opening){.gpu = GPU_NOT_ALLOCATED};
    CUresult result = gpu_of_device(device, &opening->gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (opening->gpu == GPU_NOT_ALLOCATED)
        return charge_take(opening->gpu, 1);
    opening->bytes = charge_context_bytes(opening->gpu);
    if (!opening->bytes) {
        measuring_begin(opening->gpu);
        opening->bytes = charge_context_bytes(opening->gpu);
        opening->measuring = !opening->bytes;
        if (!opening->measuring)
            measuring_end(opening->gpu);
    }
    if (opening->measuring) {
        if (!charge_await_request(opening->gpu))
            return CUDA_ERROR_OUT_OF_MEMORY;
        measure_open();
        measure_own_bytes(uuid_of(opening->gpu), &opening->own_before_bytes);
        measure_all_bytes(uuid_of(opening->gpu), &opening->all_before_bytes);
    }
    return charge_take(opening->gpu, opening->bytes);
}

static uint64_t measured(const struct opening *opening)
{
    const char *uuid = uuid_of(opening->gpu);
    uint64_t now_bytes = 0;
    if (measure_own_bytes(uuid, &now_bytes) && now_bytes > opening->own_before_bytes)
        return now_bytes - opening->own_before_bytes;
    if (opening->all_before_bytes && measure_all_bytes(uuid, &now_bytes) &&
        now_bytes >= opening->all_before_bytes + LEAST_BYTES && now_bytes <= opening->all_before_bytes + MOST_BYTES)
        return now_bytes - opening->all_before_bytes;
    log_message("%.48s: the driver does not say what a context costs; assuming %d MiB", uuid, (int)(UNMEASURED_BYTES >> 20));
    return UNMEASURED_BYTES;
}

/* The first context is there before its cost is known; if that is too much, it goes again. */
static CUresult end(struct opening *opening, CUresult result, CUcontext context, CUresult (*undo)(CUcontext, CUdevice),
                    CUdevice device)
{
    if (opening->measuring && result == CUDA_SUCCESS) {
        opening->bytes = measured(opening);
        result = charge_taken(opening->gpu, opening->bytes);
        /* Only now: those who wait for it would take what this one has and is not charged yet. */
        charge_context_measured(opening->gpu, opening->bytes);
        if (result != CUDA_SUCCESS) {
            undo(context, device);
            opening->bytes = 0;
        }
    }
    if (opening->measuring)
        measuring_end(opening->gpu);
    struct holding held = {.key = (uintptr_t)context, .kind = HOLDING_CONTEXT, .gpu = opening->gpu, .bytes = opening->bytes,
                           .users = 1};
    if (result == CUDA_SUCCESS)
        holding_put(&held);
    else
        charge_give(opening->gpu, opening->bytes);
    beyond_expect(); /* it may cost more than the first one did */
    return result;
}

static CUresult destroy(CUcontext context, CUdevice device)
{
    (void)device;
    return REAL(cuCtxDestroy_v2)(context);
}

static void ended(const struct holding *held)
{
    CUcontext context = (CUcontext)(uintptr_t)held->key;
    linear_end_context(context);
    arrays_end_context(context);
    charge_give(held->gpu, held->bytes);
    reserved_note_freed(0);
}

/* --- contexts of one's own -------------------------------------------------------------------------------------- */

/* Every way to make one: what comes between the handle and the device, and after the device. */
#define CREATE(name, parameters, arguments)                                                                \
    EXPORT CUresult name parameters                                                                        \
    {                                                                                                      \
        struct opening opening;                                                                            \
        if (!context)                                                                                      \
            return REAL(name) arguments;                                                                   \
        CUresult result = begin(device, &opening);                                                         \
        if (result != CUDA_SUCCESS) {                                                                      \
            if (opening.measuring)                                                                         \
                measuring_end(opening.gpu);                                                                 \
            return result;                                                                                 \
        }                                                                                                  \
        result = REAL(name) arguments;                                                                     \
        return end(&opening, result, result == CUDA_SUCCESS ? *context : NULL, destroy, device);           \
    }
CREATE(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device),
       (context, affinity, count, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
       (context, parameters, flags, device))
CREATE(cuGLCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuGLCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuVDPAUCtxCreate, (CUcontext *context, unsigned flags, CUdevice device, unsigned display, void *look_up),
       (context, flags, device, display, look_up))
CREATE(cuVDPAUCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device, unsigned display, void *look_up),
       (context, flags, device, display, look_up))

static CUresult forget(CUresult result, bool known, const struct holding *held)
{
    if (known && result == CUDA_SUCCESS)
        ended(held);
    else if (known)
        holding_put(held);
    return result;
}

#define DESTROY(name)                                                                                      \
    EXPORT CUresult name(CUcontext context)                                                                \
    {                                                                                                      \
        struct holding held;                                                                               \
        bool known = holding_take(HOLDING_CONTEXT, (uintptr_t)context, &held);                             \
        unsigned flows = flows_hold(context);                                                              \
        CUresult result = REAL(name)(context);                                                             \
        flows_release(flows, result == CUDA_SUCCESS ? context : NULL, NULL);                               \
        return forget(result, known, &held);                                                               \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Users of a context are of old: it ends with the last one. */
EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    CUresult result = REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS)
        holding_users(HOLDING_CONTEXT, (uintptr_t)*context, 1, NULL);
    return result;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    struct holding left;
    int users = holding_users(HOLDING_CONTEXT, (uintptr_t)context, -1, &left);
    unsigned flows = flows_hold(context);
    CUresult result = REAL(cuCtxDetach)(context);
    flows_release(flows, users <= 0 && result == CUDA_SUCCESS ? context : NULL, NULL);
    left.users = 1;
    if (users == 0)
        return forget(result, true, &left);
    if (users > 0 && result != CUDA_SUCCESS)
        holding_users(HOLDING_CONTEXT, (uintptr_t)context, 1, NULL);
    return result;
}

/* --- stacks and heaps --------------------------------------------------------------------------------------------- */

enum { LIMIT_STACK_SIZE = 0, LIMIT_MALLOC_HEAP_SIZE = 2, MULTIPROCESSORS = 16, THREADS_OF_EACH = 39, USUAL_STACK_BYTES = 1024 };

/* What stacks take in addition: one for every thread that the GPU can run at once, of which the usual size is part of a context's cost. (An H200 with driver
 * 580: 8 KiB take 1,848 MiB, 16 KiB 3,960.) */
static uint64_t stacks_bytes(size_t stack_bytes)
{
    CUdevice device;
    int multiprocessors = 0, threads = 0;
    if (stack_bytes <= USUAL_STACK_BYTES || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&multiprocessors, MULTIPROCESSORS, device) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&threads, THREADS_OF_EACH, device) != CUDA_SUCCESS)
        return 0;
    return whole_granules(times(stack_bytes - USUAL_STACK_BYTES, (uint64_t)multiprocessors * (unsigned)threads));
}

CUresult cuCtxSetLimit(int limit, size_t value);

/* With the mutex. The driver takes them with the next launch, when it is too late to refuse; and whether it gives them back before the context ends was not
 * seen, so they stay charged until then. */
static CUresult set_stacks(CUcontext context, size_t stack_bytes)
{
    struct holding held;
    if (!holding_look(HOLDING_CONTEXT, (uintptr_t)context, &held))
        return REAL(cuCtxSetLimit)(LIMIT_STACK_SIZE, stack_bytes);
    uint64_t wanted_bytes = stacks_bytes(stack_bytes);
    uint64_t more_bytes = wanted_bytes > held.size ? wanted_bytes - held.size : 0;
    CUresult result = more_bytes ? charge_take(held.gpu, more_bytes) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxSetLimit)(LIMIT_STACK_SIZE, stack_bytes);
    if (result != CUDA_SUCCESS) {
        charge_give(held.gpu, more_bytes);
        return result;
    }
    held.bytes += more_bytes;
    held.size += more_bytes;
    holding_put(&held);
    return CUDA_SUCCESS;
}

/* With the mutex. A heap costs nothing until a kernel uses it and is counted then (memory/beyond.h): one that could not fit is refused, and others are not
 * charged. */
static CUresult set_heap(CUcontext context, size_t heap_bytes)
{
    struct holding held;
    if (holding_look(HOLDING_CONTEXT, (uintptr_t)context, &held)) {
        CUresult result = charge_take(held.gpu, heap_bytes);
        if (result != CUDA_SUCCESS)
            return result;
        charge_give(held.gpu, heap_bytes);
    }
    return REAL(cuCtxSetLimit)(LIMIT_MALLOC_HEAP_SIZE, heap_bytes);
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context = context_with_memory();
    if ((limit != LIMIT_STACK_SIZE && limit != LIMIT_MALLOC_HEAP_SIZE) || !context)
        return REAL(cuCtxSetLimit)(limit, value);
    pthread_mutex_lock(&mutex);
    CUresult result = limit == LIMIT_STACK_SIZE ? set_stacks(context, value) : set_heap(context, value);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* --- a device's primary context ------------------------------------------------------------------------------- */

static bool is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);

static CUresult release(CUcontext context, CUdevice device)
{
    (void)context;
    return real_exists(FUNCTION_cuDevicePrimaryCtxRelease_v2) ? REAL(cuDevicePrimaryCtxRelease_v2)(device) : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);

/* With the mutex. One that is active, but not by us, is charged as well. */
static CUresult retain(CUcontext *context, CUdevice device)
{
    struct opening opening;
    struct holding held;
    bool kept = device >= 0 && device < DEVICES_MAX;
    if (kept && primary[device] && is_active(device) &&
        holding_look(HOLDING_CONTEXT, (uintptr_t)primary[device], &held))
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    CUresult result = begin(device, &opening);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        result = end(&opening, result, *context, release, device);
    } else if (opening.measuring) {
        measuring_end(opening.gpu);
    }
    if (kept && result == CUDA_SUCCESS)
        primary[device] = *context;
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!context)
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    pthread_mutex_lock(&mutex);
    CUresult result = retain(context, device);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* With the mutex: a release or a reset, which may be the end. */
static CUresult leave(CUresult (*real)(CUdevice), CUdevice device)
{
    struct holding held;
    CUcontext context = device >= 0 && device < DEVICES_MAX ? primary[device] : NULL;
    unsigned flows = flows_hold(context);
    CUresult result = real(device);
    bool over = context && result == CUDA_SUCCESS && !is_active(device);
    flows_release(flows, over ? context : NULL, NULL);
    if (over) {
        if (holding_take(HOLDING_CONTEXT, (uintptr_t)context, &held))
            ended(&held);
        primary[device] = NULL;
    }
    return result;
}

#define LEAVE(name)                                                                                        \
    EXPORT CUresult name(CUdevice device)                                                                  \
    {                                                                                                      \
        pthread_mutex_lock(&mutex);                                                                        \
        CUresult result = leave(REAL(name), device);                                                       \
        pthread_mutex_unlock(&mutex);                                                                      \
        return result;                                                                                     \
    }
LEAVE(cuDevicePrimaryCtxRelease)
LEAVE(cuDevicePrimaryCtxRelease_v2)
LEAVE(cuDevicePrimaryCtxReset)
LEAVE(cuDevicePrimaryCtxReset_v2)
