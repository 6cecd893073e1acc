/* Copies of boxes, of many pieces, and what moves memory that the program does not copy itself. */
#include "hooks/work.h"

enum { BOX_2D = 16, BOX_3D, BOX_OLD, BATCH, BATCH_3D, BOX_ATTRIBUTES, PREFETCH, UNPACK };

/* Of CUDA_MEMCPY2D: what is copied; the rest says from where to where. */
typedef struct {
    uint64_t places[14];
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* Of CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER. */
typedef struct {
    uint64_t places[22];
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct CUDA_MEMCPY_v1_st CUDA_MEMCPY_v1;
typedef struct CUDA_MEMCPY3D_BATCH_OP_st CUDA_MEMCPY3D_BATCH_OP;

static uint64_t area(const CUDA_MEMCPY2D *copy) { return copy ? (uint64_t)copy->WidthInBytes * copy->Height : 0; }
static uint64_t room(const CUDA_MEMCPY3D *copy) { return copy ? (uint64_t)copy->WidthInBytes * copy->Height * copy->Depth : 0; }

static uint64_t sum(const size_t *sizes, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; sizes && i < count; i++)
        bytes += sizes[i];
    return bytes;
}

#define BOX(symbol, type, kind, measure)                                                                   \
    LIMITED_DEFAULT(symbol, (const type *copy), (copy), WORK_COPY_WAITED, sized(kind, measure(copy)))
#define BOX_STREAM(symbol, type, kind, measure)                                                            \
    LIMITED_STREAM(symbol, (const type *copy, CUstream stream), (copy, stream), WORK_COPY, sized(kind, measure(copy)))

BOX(cuMemcpy2D_v2, CUDA_MEMCPY2D, BOX_2D, area)
BOX(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, BOX_2D, area)
BOX_STREAM(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, BOX_2D, area)
BOX(cuMemcpy3D_v2, CUDA_MEMCPY3D, BOX_3D, room)
BOX_STREAM(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, BOX_3D, room)
BOX(cuMemcpy3DPeer, CUDA_MEMCPY3D, BOX_3D, room)
BOX_STREAM(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, BOX_3D, room)

/* For addresses of 32 bits; no program of this century's machines has them, so their size is not looked at. */
LIMITED(cuMemcpy2D, (const CUDA_MEMCPY_v1 *copy), (copy), WORK_COPY, unsized(BOX_OLD), NULL)
LIMITED(cuMemcpy2DUnaligned, (const CUDA_MEMCPY_v1 *copy), (copy), WORK_COPY, unsized(BOX_OLD), NULL)
LIMITED(cuMemcpy2DAsync, (const CUDA_MEMCPY_v1 *copy, CUstream stream), (copy, stream), WORK_COPY, unsized(BOX_OLD), stream)
LIMITED(cuMemcpy3D, (const CUDA_MEMCPY_v1 *copy), (copy), WORK_COPY, unsized(BOX_OLD), NULL)
LIMITED(cuMemcpy3DAsync, (const CUDA_MEMCPY_v1 *copy, CUstream stream), (copy, stream), WORK_COPY, unsized(BOX_OLD), stream)

/* --- many at once --------------------------------------------------------------------------------------------- */

LIMITED_STREAM(cuMemcpyBatchAsync,
               (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *indices,
                size_t attribute_count, size_t *failed, CUstream stream),
               (to, from, sizes, count, attributes, indices, attribute_count, failed, stream), WORK_COPY,
               sized(BATCH, sum(sizes, count)))
LIMITED_STREAM(cuMemcpyBatchAsync_v2,
               (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *indices,
                size_t attribute_count, CUstream stream),
               (to, from, sizes, count, attributes, indices, attribute_count, stream), WORK_COPY,
               sized(BATCH, sum(sizes, count)))
LIMITED_STREAM(cuMemcpy3DBatchAsync,
               (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags, CUstream stream),
               (count, copies, failed, flags, stream), WORK_COPY, sized(BATCH_3D, count))
LIMITED_STREAM(cuMemcpy3DBatchAsync_v2,
               (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
               (count, copies, flags, stream), WORK_COPY, sized(BATCH_3D, count))
LIMITED_STREAM(cuMemcpy3DWithAttributesAsync, (CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags, CUstream stream),
               (copy, flags, stream), WORK_COPY, unsized(BOX_ATTRIBUTES))

/* --- memory that moves, or is unpacked ------------------------------------------------------------------------ */

LIMITED_STREAM(cuMemPrefetchAsync, (CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream), (at, bytes, device, stream),
               WORK_COPY, sized(PREFETCH, bytes))
LIMITED_STREAM(cuMemPrefetchAsync_v2, (CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream),
               (at, bytes, to, flags, stream), WORK_COPY, sized(PREFETCH, bytes))
LIMITED_STREAM(cuMemPrefetchBatchAsync,
               (CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t location_count,
                unsigned long long flags, CUstream stream),
               (at, sizes, count, to, indices, location_count, flags, stream), WORK_COPY, sized(PREFETCH, sum(sizes, count)))
LIMITED_STREAM(cuMemDiscardAndPrefetchBatchAsync,
               (CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t location_count,
                unsigned long long flags, CUstream stream),
               (at, sizes, count, to, indices, location_count, flags, stream), WORK_COPY, sized(PREFETCH, sum(sizes, count)))
LIMITED_STREAM(cuMemBatchDecompressAsync, (void *list, size_t count, unsigned flags, size_t *failed, CUstream stream),
               (list, count, flags, failed, stream), WORK_COPY, sized(UNPACK, count))
