/* Green contexts: a share of a device's multiprocessors, in a handle that otherwise is the primary context. They keep that one active; memory, modules and
 * events are its own. Here work is not held to the multiprocessors: the engine has no such thing. */
#include <stdlib.h>
#include <string.h>

#include "cuda/context/context.h"
#include "cuda/stream/streams.h"

typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUgreenCtx_st *CUgreenCtx;

/* A resource: CUdevResource of version 1, of which only multiprocessors are known here. */
struct resource {
    int type;
    int device; /* the driver's own room, as is what follows */
    unsigned char own[88];
    unsigned multiprocessors, smallest_part, alignment, flags, locality_domain;
    unsigned char rest[20];
    struct resource *next;
};
_Static_assert(sizeof(struct resource) == 144, "a resource");
enum { RESOURCE_MULTIPROCESSORS = 1, SMALLEST_PART = 8, MULTIPROCESSORS = 16 /* the device attribute */ };

/* Lives as long as the process. */
struct CUdevResourceDesc_st {
    int device;
};

struct CUgreenCtx_st {
    CUgreenCtx next;
    CUcontext context;
    CUdevice device;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUgreenCtx all;

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);

EXPORT CUresult cuDeviceGetDevResource(CUdevice ordinal, struct resource *resource, int type)
{
    int count;
    DEVICE(ordinal, device);
    REQUIRE_CU(resource);
    if (type != RESOURCE_MULTIPROCESSORS)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    CUresult result = cuDeviceGetAttribute(&count, MULTIPROCESSORS, device->ordinal);
    if (result == CUDA_SUCCESS)
        *resource = (struct resource){.type = type, .device = ordinal, .multiprocessors = (unsigned)count,
                                      .smallest_part = SMALLEST_PART, .alignment = SMALLEST_PART};
    return result;
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *made, struct resource *resources, unsigned count)
{
    READY();
    REQUIRE_CU(made && resources && count);
    for (unsigned i = 0; i < count; i++) {
        if (resources[i].type != RESOURCE_MULTIPROCESSORS)
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        if (resources[i].device != resources[0].device)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    *made = calloc(1, sizeof **made);
    if (!*made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*made)->device = resources[0].device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *made, CUdevResourceDesc description, CUdevice ordinal, unsigned flags)
{
    enum { DEFAULT_STREAM = 1 };
    CUcontext primary;
    DEVICE(ordinal, device);
    REQUIRE_CU(made && description && description->device == device->ordinal && !(flags & ~(unsigned)DEFAULT_STREAM));
    CUresult result = cuDevicePrimaryCtxRetain(&primary, ordinal);
    if (result != CUDA_SUCCESS)
        return result;
    CUgreenCtx green = calloc(1, sizeof *green);
    if (!green || !(green->context = context_of_part(primary))) {
        free(green);
        cuDevicePrimaryCtxRelease_v2(ordinal);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->device = ordinal;
    pthread_mutex_lock(&mutex);
    green->next = all;
    *made = all = green;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* With the mutex. */
static CUgreenCtx *link_of(CUgreenCtx green)
{
    CUgreenCtx *link = &all;
    while (*link && *link != green)
        link = &(*link)->next;
    return link;
}

static CUresult context_of(CUgreenCtx green, CUcontext *context)
{
    READY();
    pthread_mutex_lock(&mutex);
    CUgreenCtx found = *link_of(green);
    *context = found ? found->context : NULL;
    pthread_mutex_unlock(&mutex);
    return context_valid(*context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    REQUIRE_CU(context);
    return context_of(green, context);
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *made, CUgreenCtx green, unsigned flags, int priority)
{
    CUcontext context;
    REQUIRE_CU(made && flags == CU_STREAM_NON_BLOCKING);
    CUresult result = context_of(green, &context);
    return result == CUDA_SUCCESS ? stream_make(context, flags, priority, made) : result;
}

/* Its streams stay, of no more use than to be destroyed. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    READY();
    pthread_mutex_lock(&mutex);
    CUgreenCtx *link = link_of(green), found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&mutex);
    if (!found)
        return CUDA_ERROR_INVALID_CONTEXT;
    /* After a reset the primary context is another one, or none, and this one's streams are gone. */
    bool keeps = context_valid(found->context);
    if (keeps)
        streams_detach(found->context);
    context_of_part_end(found->context);
    if (keeps)
        cuDevicePrimaryCtxRelease_v2(found->device);
    free(found);
    return CUDA_SUCCESS;
}
