/* Making and ending contexts, ordinary and primary ones. */
#include <string.h>

#include "cuda/context/context.h"
#include "cuda/memory/memory.h"
#include "cuda/module/growth.h"
#include "cuda/stream/context_work.h"

static const size_t default_limits[CU_LIMITS_KNOWN] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

static CUresult make(struct device *device, unsigned flags, unsigned api_version, bool is_primary, CUcontext *made)
{
    uint64_t cost_bytes = growth_context_bytes(device);
    CUresult result = device_attach(device);
    if (result == CUDA_SUCCESS)
        result = device_reserve(device, cost_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = context_from_pool();
    if (!context) {
        device_release(device, cost_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->device = device;
    context->flags = flags;
    context->api_version = api_version;
    context->is_primary = is_primary;
    atomic_store(&context->users, 1);
    context->cost_bytes = cost_bytes;
    memcpy(context->limits, default_limits, sizeof default_limits);
    result = engine_context_created(context);
    if (result != CUDA_SUCCESS) {
        device_release(device, cost_bytes);
        context_to_pool(context);
        return result;
    }
    atomic_fetch_add(&device->contexts, 1);
    atomic_store(&context->alive, 1);
    *made = context;
    return CUDA_SUCCESS;
}

static void end(CUcontext context)
{
    engine_context_ending(context);
    atomic_store(&context->alive, 0);
    memory_end_context(context);
    if (atomic_fetch_sub(&context->device->contexts, 1) == 1)
        pools_trim(context->device);
    device_release(context->device, context->cost_bytes + context->grown_bytes);
    context_to_pool(context);
}

/* --- ordinary contexts ------------------------------------------------------------------------------------- */

static CUresult create(CUcontext *context, unsigned flags, CUdevice ordinal, unsigned api_version)
{
    READY();
    struct device *device = device_get(ordinal);
    REQUIRE_CU(context && !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) && (flags & CU_CTX_SCHED_MASK) != 3 &&
               (flags & CU_CTX_SCHED_MASK) <= 4);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = make(device, flags, api_version, false, context);
    if (result == CUDA_SUCCESS && (result = context_push(*context)) != CUDA_SUCCESS)
        end(*context);
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return create(context, flags, device, 3010);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return create(context, flags, device, 3020);
}

/* Shares of multiprocessors need MPS. */
EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)
{
    READY();
    REQUIRE_CU(count >= 0 && !affinity == !count);
    if (count)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(context, flags, device, 3020);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    if (parameters && parameters->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v3(context, parameters ? parameters->execAffinityParams : NULL,
                          parameters ? parameters->numExecAffinityParams : 0, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    READY();
    if (!context_valid(context) || context->is_primary || context->whole)
        return CUDA_ERROR_INVALID_CONTEXT;
    end(context);
    context_pop(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

/* A count of users from times before primary contexts, of which it does not end any. */
EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    ENTER(current);
    REQUIRE_CU(context && !flags);
    atomic_fetch_add(&current->users, 1);
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    READY();
    if (!context_valid(context) || context->whole || (context->is_primary && atomic_load(&context->users) == 1))
        return CUDA_ERROR_INVALID_CONTEXT;
    return atomic_fetch_sub(&context->users, 1) == 1 ? cuCtxDestroy_v2(context) : CUDA_SUCCESS;
}

/* --- primary contexts -------------------------------------------------------------------------------------- */

/* Held while one is made or ended; the other one only while the pointer to it is read or written. */
static pthread_mutex_t primary_mutex = PTHREAD_MUTEX_INITIALIZER, table_mutex = PTHREAD_MUTEX_INITIALIZER;

CUcontext context_primary(struct device *device)
{
    pthread_mutex_lock(&table_mutex);
    CUcontext primary = device->primary;
    pthread_mutex_unlock(&table_mutex);
    return primary;
}

static void set_primary(struct device *device, CUcontext context)
{
    pthread_mutex_lock(&table_mutex);
    device->primary = context;
    pthread_mutex_unlock(&table_mutex);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(context);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&primary_mutex);
    if (!device->primary) {
        CUcontext made;
        result = make(device, device->primary_flags, 3020, true, &made);
        if (result == CUDA_SUCCESS)
            set_primary(device, made);
    }
    if (result == CUDA_SUCCESS) {
        device->primary_users++;
        *context = device->primary;
    }
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

/* With `all`, other users of it are left with a destroyed context. */
static CUresult release_primary(struct device *device, bool all)
{
    CUcontext ended = NULL;
    pthread_mutex_lock(&primary_mutex);
    bool held = device->primary_users;
    if (held && !--device->primary_users)
        ended = device->primary;
    else if (all)
        ended = device->primary;
    if (ended) {
        set_primary(device, NULL);
        device->primary_users = 0;
        end(ended);
    }
    pthread_mutex_unlock(&primary_mutex);
    return held || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    DEVICE(ordinal, device);
    return release_primary(device, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    DEVICE(ordinal, device);
    return release_primary(device, true);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(!(flags & ~(unsigned)CU_CTX_FLAGS_MASK) && (flags & CU_CTX_SCHED_MASK) != 3 &&
               (flags & CU_CTX_SCHED_MASK) <= 4);
    pthread_mutex_lock(&primary_mutex);
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(flags && active);
    pthread_mutex_lock(&primary_mutex);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}
