/* What can be read and set of a context: its device, flags, limits and preferences; waiting for its work. */
#include <pthread.h>

#include "cuda/context/context.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/context_work.h"

/* A context named by its handle, the current one for NULL. */
static CUresult resolve(CUcontext *context)
{
    READY();
    if (!*context)
        return context_current(context);
    if (!context_valid(*context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if ((*context)->whole)
        *context = (*context)->whole;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult result = resolve(&context);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE_CU(device);
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = resolve(&context);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE_CU(id);
    *id = context->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    CUresult result = resolve(&context);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE_CU(version);
    *version = context->api_version;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = resolve(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return engine_capture_forbids(true) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : engine_synchronize(context);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    ENTER(context);
    REQUIRE_CU(flags);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags)
{
    ENTER(context);
    REQUIRE_CU(!(flags & ~(unsigned)CU_CTX_FLAGS_MASK));
    context->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    ENTER(context);
    REQUIRE_CU(value);
    if (limit < 0 || limit >= CU_LIMITS_KNOWN)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    ENTER(context);
    if (limit < 0 || limit >= CU_LIMITS_KNOWN)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
    ENTER(context);
    REQUIRE_CU(config);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCacheConfig(int config)
{
    ENTER(context);
    REQUIRE_CU(config >= 0 && config <= 3);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

/* Banks are four bytes wide on every GPU of today. */
EXPORT CUresult cuCtxGetSharedMemConfig(int *config)
{
    enum { FOUR_BYTES = 1 };
    ENTER(context);
    (void)context;
    REQUIRE_CU(config);
    *config = FOUR_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetSharedMemConfig(int config)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(config >= 0 && config <= 2);
    return CUDA_SUCCESS;
}

/* Numerically lower goes first. */
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(context);
    (void)context;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
    ENTER(context);
    (void)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, int type)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(affinity && !type);
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

/* --- one GPU's memory from another -------------------------------------------------------------------------- */

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer_ordinal)
{
    DEVICE(ordinal, device);
    struct device *peer = device_get(peer_ordinal);
    REQUIRE_CU(can);
    if (!peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice ordinal, CUdevice peer_ordinal)
{
    enum { PERFORMANCE_RANK = 1, ACCESS, NATIVE_ATOMICS, ARRAY_ACCESS, PARTIAL_ATOMICS };
    DEVICE(ordinal, device);
    struct device *peer = device_get(peer_ordinal);
    if (!peer || peer == device)
        return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE_CU(value && attribute >= PERFORMANCE_RANK && attribute <= PARTIAL_ATOMICS);
    *value = attribute == ACCESS || attribute == ARRAY_ACCESS;
    return CUDA_SUCCESS;
}

/* Which peers a context has opened: by the ordinals' bits. */
static CUresult peer_of(CUcontext current, CUcontext peer, uint64_t *bit)
{
    if (!context_valid(peer) || peer->device == current->device)
        return CUDA_ERROR_INVALID_CONTEXT;
    *bit = UINT64_C(1) << peer->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    uint64_t bit;
    ENTER(context);
    REQUIRE_CU(!flags);
    CUresult result = peer_of(context, peer, &bit);
    if (result != CUDA_SUCCESS)
        return result;
    return atomic_fetch_or(&context->peers, bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    uint64_t bit;
    ENTER(context);
    CUresult result = peer_of(context, peer, &bit);
    if (result != CUDA_SUCCESS)
        return result;
    return atomic_fetch_and(&context->peers, ~bit) & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
