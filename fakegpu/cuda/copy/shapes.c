/* Copies of two and three dimensions, between host memory, device memory and arrays. */
#include <string.h>

#include "cuda/copy/copies.h"

/* One end of a copy. */
struct end {
    size_t x, y, z;
    int type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch, height;
};

static CUresult place(const struct end *end, const CUDA_MEMCPY3D *shape, unsigned char **start, size_t *pitch, size_t *slice)
{
    struct array_view view;
    unsigned char *base;
    switch (end->type) {
    case CU_MEMORYTYPE_ARRAY:
        if (!array_view(end->array, &view))
            return CUDA_ERROR_INVALID_HANDLE;
        REQUIRE_CU(end->x <= view.row_bytes && shape->WidthInBytes <= view.row_bytes - end->x);
        REQUIRE_CU(end->y <= view.rows && shape->Height <= view.rows - end->y);
        REQUIRE_CU(end->z <= view.slices && shape->Depth <= view.slices - end->z);
        *pitch = view.row_bytes;
        *slice = view.row_bytes * view.rows;
        base = view.bytes;
        break;
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        base = end->type == CU_MEMORYTYPE_HOST ? (unsigned char *)(uintptr_t)end->host
                                               : (unsigned char *)(uintptr_t)end->device;
        REQUIRE_CU(base);
        *pitch = end->pitch ? end->pitch : shape->WidthInBytes + end->x;
        REQUIRE_CU(*pitch >= shape->WidthInBytes + end->x || (shape->Height == 1 && shape->Depth == 1));
        *slice = *pitch * (end->height ? end->height : shape->Height + end->y);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *start = base + end->z * *slice + end->y * *pitch + end->x;
    return CUDA_SUCCESS;
}

CUresult copy_of_3d(const CUDA_MEMCPY3D *shape, struct copy *copy, bool *empty)
{
    REQUIRE_CU(shape);
    *empty = !shape->WidthInBytes || !shape->Height || !shape->Depth;
    if (*empty)
        return CUDA_SUCCESS;
    const struct end from = {shape->srcXInBytes, shape->srcY,      shape->srcZ,     shape->srcMemoryType, shape->srcHost,
                             shape->srcDevice,   shape->srcArray,  shape->srcPitch, shape->srcHeight};
    const struct end to = {shape->dstXInBytes, shape->dstY,      shape->dstZ,     shape->dstMemoryType, shape->dstHost,
                           shape->dstDevice,   shape->dstArray,  shape->dstPitch, shape->dstHeight};
    unsigned char *start = NULL;
    memset(copy, 0, sizeof *copy);
    copy->width = shape->WidthInBytes;
    copy->rows = shape->Height;
    copy->slices = shape->Depth;
    CUresult result = place(&from, shape, &start, &copy->from_pitch, &copy->from_slice);
    copy->from = start;
    if (result == CUDA_SUCCESS)
        result = place(&to, shape, &copy->to, &copy->to_pitch, &copy->to_slice);
    return result;
}

static CUresult give_3d(CUstream handle, const CUDA_MEMCPY3D *shape, enum copy_call call)
{
    struct copy copy;
    bool empty;
    STREAM(handle, stream);
    CUresult result = copy_of_3d(shape, &copy, &empty);
    return result == CUDA_SUCCESS && !empty ? copy_give(stream, &copy, call) : result;
}

static CUresult give_2d(CUstream handle, const CUDA_MEMCPY2D *shape, enum copy_call call)
{
    REQUIRE_CU(shape);
    const CUDA_MEMCPY3D as_3d = {
        .srcXInBytes = shape->srcXInBytes,
        .srcY = shape->srcY,
        .srcMemoryType = shape->srcMemoryType,
        .srcHost = shape->srcHost,
        .srcDevice = shape->srcDevice,
        .srcArray = shape->srcArray,
        .srcPitch = shape->srcPitch,
        .dstXInBytes = shape->dstXInBytes,
        .dstY = shape->dstY,
        .dstMemoryType = shape->dstMemoryType,
        .dstHost = shape->dstHost,
        .dstDevice = shape->dstDevice,
        .dstArray = shape->dstArray,
        .dstPitch = shape->dstPitch,
        .WidthInBytes = shape->WidthInBytes,
        .Height = shape->Height,
        .Depth = 1,
    };
    return give_3d(handle, &as_3d, call);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *shape) { return give_2d(NULL, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *shape) { return give_2d(CU_STREAM_PER_THREAD, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *shape) { return give_2d(NULL, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *shape)
{
    return give_2d(CU_STREAM_PER_THREAD, shape, COPY_SYNC);
}
EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *shape, CUstream stream) { return give_2d(stream, shape, COPY_ASYNC); }
EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *shape, CUstream stream)
{
    return give_2d(per_thread(stream), shape, COPY_ASYNC);
}
EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *shape) { return give_3d(NULL, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *shape) { return give_3d(CU_STREAM_PER_THREAD, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *shape, CUstream stream) { return give_3d(stream, shape, COPY_ASYNC); }
EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *shape, CUstream stream)
{
    return give_3d(per_thread(stream), shape, COPY_ASYNC);
}

static CUresult give_peer(CUstream stream, const CUDA_MEMCPY3D *shape, enum copy_call call)
{
    REQUIRE_CU(shape);
    if (!context_valid(shape->reserved0) || !context_valid(shape->reserved1))
        return CUDA_ERROR_INVALID_CONTEXT;
    return give_3d(stream, shape, call);
}

EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *shape) { return give_peer(NULL, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D *shape) { return give_peer(CU_STREAM_PER_THREAD, shape, COPY_SYNC); }
EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *shape, CUstream stream) { return give_peer(stream, shape, COPY_ASYNC); }
EXPORT CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D *shape, CUstream stream)
{
    return give_peer(per_thread(stream), shape, COPY_ASYNC);
}
