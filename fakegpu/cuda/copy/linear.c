/* The functions that copy from one range of addresses to another. Each name says which kind of memory is where. */
#include "cuda/copy/copies.h"

/* Whether the address lies in memory that a GPU can reach. */
static bool reachable(CUdeviceptr address)
{
    struct memory memory;
    return memory_find(address, &memory);
}

static CUdeviceptr host(const void *address)
{
    return (CUdeviceptr)(uintptr_t)address;
}

enum sides { ANY, TO_DEVICE, FROM_DEVICE, BOTH };

static CUresult give(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes, enum copy_call call, enum sides device)
{
    REQUIRE_CU(!bytes || !(device & TO_DEVICE) || reachable(to));
    REQUIRE_CU(!bytes || !(device & FROM_DEVICE) || reachable(from));
    return copy_linear(stream, to, from, bytes, call);
}

#define LEGACY NULL
#define OWN CU_STREAM_PER_THREAD

/* Both forms of a function that waits: on the legacy stream, and on the thread's own. */
#define SYNC(name, parameters, to, from, sides)                                                            \
    EXPORT CUresult name parameters { return give(LEGACY, to, from, bytes, COPY_SYNC, sides); }            \
    EXPORT CUresult name##_ptds parameters { return give(OWN, to, from, bytes, COPY_SYNC, sides); }

#define ASYNC(name, parameters, to, from, sides)                                                           \
    EXPORT CUresult name parameters { return give(stream, to, from, bytes, COPY_ASYNC, sides); }           \
    EXPORT CUresult name##_ptsz parameters { return give(per_thread(stream), to, from, bytes, COPY_ASYNC, sides); }

SYNC(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, ANY)
SYNC(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), to, host(from), TO_DEVICE)
SYNC(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), host(to), from, FROM_DEVICE)
SYNC(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, BOTH)
ASYNC(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, ANY)
ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, host(from), TO_DEVICE)
ASYNC(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), host(to), from, FROM_DEVICE)
ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, BOTH)

/* Between contexts: they are of one process, so addresses say enough. */
static CUresult peer(CUstream stream, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                     size_t bytes, enum copy_call call)
{
    if (!context_valid(to_context) || !context_valid(from_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return give(stream, to, from, bytes, call, BOTH);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return peer(LEGACY, to, to_context, from, from_context, bytes, COPY_SYNC);
}

EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return peer(OWN, to, to_context, from, from_context, bytes, COPY_SYNC);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                  size_t bytes, CUstream stream)
{
    return peer(stream, to, to_context, from, from_context, bytes, COPY_ASYNC);
}

EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                       size_t bytes, CUstream stream)
{
    return peer(per_thread(stream), to, to_context, from, from_context, bytes, COPY_ASYNC);
}

/* --- many at once, or with hints -------------------------------------------------------------------------------------- */

/* Hints say where memory lies and when it is read; the stand-in finds that out itself. */
EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *hints,
                                   size_t *hint_indices, size_t hint_count, size_t *failed, CUstream stream)
{
    (void)hints, (void)hint_indices, (void)hint_count;
    REQUIRE_CU(to && from && sizes && count);
    if (failed)
        *failed = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        CUresult result = give(stream, to[i], from[i], sizes[i], COPY_ASYNC, ANY);
        if (result != CUDA_SUCCESS) {
            if (failed)
                *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *hints,
                                        size_t *hint_indices, size_t hint_count, size_t *failed, CUstream stream)
{
    return cuMemcpyBatchAsync(to, from, sizes, count, hints, hint_indices, hint_count, failed, per_thread(stream));
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *hints,
                                      size_t *hint_indices, size_t hint_count, CUstream stream)
{
    return cuMemcpyBatchAsync(to, from, sizes, count, hints, hint_indices, hint_count, NULL, stream);
}

EXPORT CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *hints,
                                           size_t *hint_indices, size_t hint_count, CUstream stream)
{
    return cuMemcpyBatchAsync_v2(to, from, sizes, count, hints, hint_indices, hint_count, per_thread(stream));
}

EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *hints, CUstream stream)
{
    (void)hints;
    return give(stream, to, from, bytes, COPY_ASYNC, ANY);
}

EXPORT CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *hints, CUstream stream)
{
    return cuMemcpyWithAttributesAsync(to, from, bytes, hints, per_thread(stream));
}

/* --- to and from arrays of one row ---------------------------------------------------------------------------------- */

static CUresult in_array(CUarray array, size_t offset, size_t bytes, CUdeviceptr *address)
{
    struct array_view view;
    if (!array_view(array, &view))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(offset <= view.row_bytes && bytes <= view.row_bytes - offset);
    *address = host(view.bytes + offset);
    return CUDA_SUCCESS;
}

static CUresult arrays(CUstream stream, CUarray to_array, size_t to_offset, CUdeviceptr to, CUarray from_array,
                       size_t from_offset, CUdeviceptr from, size_t bytes, enum copy_call call)
{
    CUresult result = CUDA_SUCCESS;
    if (to_array)
        result = in_array(to_array, to_offset, bytes, &to);
    if (result == CUDA_SUCCESS && from_array)
        result = in_array(from_array, from_offset, bytes, &from);
    return result == CUDA_SUCCESS ? copy_linear(stream, to, from, bytes, call) : result;
}

#define ARRAY_SYNC(name, parameters, to_array, to_at, to, from_array, from_at, from)                       \
    EXPORT CUresult name parameters                                                                        \
    {                                                                                                      \
        return arrays(LEGACY, to_array, to_at, to, from_array, from_at, from, bytes, COPY_SYNC);           \
    }                                                                                                      \
    EXPORT CUresult name##_ptds parameters                                                                 \
    {                                                                                                      \
        return arrays(OWN, to_array, to_at, to, from_array, from_at, from, bytes, COPY_SYNC);              \
    }

#define ARRAY_ASYNC(name, parameters, to_array, to_at, to, from_array, from_at, from)                      \
    EXPORT CUresult name parameters                                                                        \
    {                                                                                                      \
        return arrays(stream, to_array, to_at, to, from_array, from_at, from, bytes, COPY_ASYNC);          \
    }                                                                                                      \
    EXPORT CUresult name##_ptsz parameters                                                                 \
    {                                                                                                      \
        return arrays(per_thread(stream), to_array, to_at, to, from_array, from_at, from, bytes, COPY_ASYNC); \
    }

ARRAY_SYNC(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t bytes), to, at, 0, NULL, 0, from)
ARRAY_SYNC(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t bytes), NULL, 0, to, from, at, 0)
ARRAY_SYNC(cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes), to, at, 0, NULL, 0, host(from))
ARRAY_SYNC(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes), NULL, 0, host(to), from, at, 0)
ARRAY_SYNC(cuMemcpyAtoA_v2, (CUarray to, size_t to_at, CUarray from, size_t from_at, size_t bytes), to, to_at, 0, from,
           from_at, 0)
ARRAY_ASYNC(cuMemcpyHtoAAsync_v2, (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream), to, at, 0, NULL,
            0, host(from))
ARRAY_ASYNC(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t bytes, CUstream stream), NULL, 0, host(to),
            from, at, 0)
