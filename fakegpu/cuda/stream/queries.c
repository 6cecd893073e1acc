/* What a stream says of itself, and its attributes. */
#include <string.h>

#include "cuda/memory/memory.h"
#include "cuda/stream/streams.h"

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    STREAM(handle, stream);
    REQUIRE_CU(flags);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    STREAM(handle, stream);
    REQUIRE_CU(priority);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    STREAM(handle, stream);
    REQUIRE_CU(id);
    *id = stream->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    STREAM(handle, stream);
    REQUIRE_CU(context);
    *context = stream->part ? stream->part : stream->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, void **green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(handle, context);
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    STREAM(handle, stream);
    REQUIRE_CU(device);
    *device = stream->context->device->ordinal;
    return CUDA_SUCCESS;
}

/* Attributes are hints here: they are taken, and read as never set, but for the priority. */
enum { ATTRIBUTE_PRIORITY = 8, ATTRIBUTES = 19, ATTRIBUTE_BYTES = 64 };

EXPORT CUresult cuStreamGetAttribute(CUstream handle, int attribute, void *value)
{
    STREAM(handle, stream);
    REQUIRE_CU(value && attribute >= 0 && attribute < ATTRIBUTES);
    memset(value, 0, ATTRIBUTE_BYTES);
    if (attribute == ATTRIBUTE_PRIORITY)
        memcpy(value, &stream->priority, sizeof stream->priority);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSetAttribute(CUstream handle, int attribute, const void *value)
{
    STREAM(handle, stream);
    REQUIRE_CU(value && attribute >= 0 && attribute < ATTRIBUTES);
    if (attribute == ATTRIBUTE_PRIORITY) {
        executor_lock(stream->executor);
        memcpy(&stream->priority, value, sizeof stream->priority);
        executor_unlock(stream->executor);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    STREAM(to, copy);
    STREAM(from, stream);
    return copy == stream ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Managed memory is everybody's at any time here. */
EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t size, unsigned flags)
{
    enum { GLOBAL = 1, HOST = 2, SINGLE = 4 };
    struct memory memory;
    STREAM(handle, stream);
    (void)stream, (void)size;
    REQUIRE_CU(flags == GLOBAL || flags == HOST || flags == SINGLE);
    REQUIRE_CU(memory_find(address, &memory) && memory.kind == MEMORY_MANAGED);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned *flags) { return cuStreamGetFlags(per_thread(stream), flags); }
EXPORT CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
    return cuStreamGetPriority(per_thread(stream), priority);
}
EXPORT CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id) { return cuStreamGetId(per_thread(stream), id); }
EXPORT CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) { return cuStreamGetCtx(per_thread(stream), context); }
EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, void **green)
{
    return cuStreamGetCtx_v2(per_thread(stream), context, green);
}
EXPORT CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device)
{
    return cuStreamGetDevice(per_thread(stream), device);
}
EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream stream, int attribute, void *value)
{
    return cuStreamGetAttribute(per_thread(stream), attribute, value);
}
EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream stream, int attribute, const void *value)
{
    return cuStreamSetAttribute(per_thread(stream), attribute, value);
}
EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
    return cuStreamCopyAttributes(per_thread(to), per_thread(from));
}
EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t size, unsigned flags)
{
    return cuStreamAttachMemAsync(per_thread(stream), address, size, flags);
}

/* Profilers have nothing to see, and may be switched. */
EXPORT CUresult cuProfilerStart(void)
{
    ENTER(context);
    (void)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuProfilerStop(void)
{
    ENTER(context);
    (void)context;
    return CUDA_SUCCESS;
}
