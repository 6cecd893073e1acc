/* Copying and filling memory: what is copied, how long it takes, and giving it to a stream. */
#ifndef FAKEGPU_CUDA_COPY_COPIES_H
#define FAKEGPU_CUDA_COPY_COPIES_H

#include "cuda/memory/memory.h"
#include "cuda/stream/streams.h"
#include "interface/cuda_memory.h"

/* 12 GB/s over the bus, and memory as fast as that of a card of some years ago. */
enum {
    BUS_BYTES_PER_US = 12000,
    MEMORY_BYTES_PER_US = 600000,
    COPY_START_NS = 1000,         /* of each, in addition */
    COPY_SMALL_BYTES = 64 << 10,  /* what a thread that gives it may move itself */
};

/* A block of bytes: slices of rows of `width` bytes. */
struct copy {
    unsigned char *to;
    const unsigned char *from; /* NULL: the bytes are `fill`, over and over */
    size_t width, rows, slices; /* none of them 0 */
    size_t to_pitch, from_pitch; /* bytes from row to row */
    size_t to_slice, from_slice; /* bytes from slice to slice */
    uint32_t fill;
    uint8_t fill_bytes; /* 1, 2, 4: how many of `fill` */
};

/* How the call behaves towards the host. */
enum copy_call {
    COPY_ASYNC,
    COPY_SYNC, /* returns when it is done */
};

/* Checks both ends, and gives the copy to the stream (or to the graph that it captures). Host memory that is not pinned is
 * read before the call returns, and is written before it returns, as the real driver does. */
CUresult copy_give(CUstream stream, const struct copy *copy, enum copy_call call);

/* Checks both ends and says how long it takes; `pageable` whether an end is host memory that is not pinned. */
CUresult copy_check(CUcontext context, const struct copy *copy, uint64_t *duration_ns, bool *pageable);

/* Moves the bytes. `done_ns` of `duration_ns`: what part, counted from the last call on; for struct work. */
void copy_act(void *running_copy, uint64_t done_ns, uint64_t duration_ns);

/* The work of a copy; false: no memory. */
bool copy_work(const struct copy *copy, uint64_t duration_ns, struct work *work);

/* A copy from one range of addresses to another. */
CUresult copy_linear(CUstream handle, CUdeviceptr to, CUdeviceptr from, size_t bytes, enum copy_call call);

/* The ends of a copy of two or three dimensions, as its description has them. */
typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch, dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0; /* of a copy between peers: the context */
    size_t srcPitch, srcHeight, dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight, WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200, "copy descriptions");

/* What a description says, as a copy; `empty`: there is nothing to do. */
CUresult copy_of_3d(const CUDA_MEMCPY3D *description, struct copy *copy, bool *empty);

/* The work of setting memory (cuda/copy/memset_work.c); false: no memory. */
bool memset_work(const struct memset_rows *rows, struct work *work);

#endif
