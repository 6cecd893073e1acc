/* Setting memory. */
#define _GNU_SOURCE /* madvise */
#include <string.h>
#include <sys/mman.h>

#include "cuda/memory/records.h"
#include "cuda/module/growth.h"
#include "cuda/stream/context_work.h"

#define PAGE_BYTES ((uintptr_t)4096)

/* Bytes from the first to behind the last; false when that is no number. */
static bool span(const struct memset_rows *rows, size_t *bytes)
{
    size_t row;
    if (__builtin_mul_overflow(rows->width, (size_t)rows->element_bytes, &row))
        return false;
    *bytes = row;
    if (rows->height < 2)
        return true;
    return rows->pitch >= row && !__builtin_mul_overflow(rows->pitch, rows->height - 1, bytes) &&
           !__builtin_add_overflow(*bytes, row, bytes);
}

CUresult memset_check(const struct memset_rows *rows)
{
    struct memory memory;
    bool known;
    size_t bytes;
    REQUIRE_CU(rows->address % rows->element_bytes == 0 && span(rows, &bytes));
    if (!rows->width || !rows->height)
        return CUDA_SUCCESS;
    CUresult result = memory_check(rows->address, bytes, &memory, &known);
    return result == CUDA_SUCCESS && !known ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Whole unshared pages become untouched ones: zeroing a large piece takes no memory of the machine. */
static bool zero_pages(const struct memset_rows *rows, size_t bytes)
{
    const size_t worth_it = 1 << 20;
    uintptr_t start = (uintptr_t)rows->address, end = start + bytes;
    uintptr_t first = (start + PAGE_BYTES - 1) & -PAGE_BYTES, last = end & -PAGE_BYTES;
    struct record *record = record_at(rows->address);
    if (rows->value || rows->height > 1 || bytes < worth_it || record->shared ||
        (record->memory.kind != MEMORY_DEVICE && record->memory.kind != MEMORY_MANAGED && record->memory.kind != MEMORY_POOL))
        return false;
    if (madvise((void *)first, last - first, MADV_DONTNEED))
        return false;
    memset((void *)start, 0, first - start);
    memset((void *)last, 0, end - last);
    return true;
}

static void set_row(unsigned char *row, const struct memset_rows *rows)
{
    if (rows->element_bytes == 1) {
        memset(row, (int)rows->value, rows->width);
        return;
    }
    for (size_t i = 0; i < rows->width; i++)
        memcpy(row + i * rows->element_bytes, &rows->value, rows->element_bytes);
}

void memset_apply(const struct memset_rows *rows)
{
    struct memory memory;
    bool known;
    size_t bytes;
    if (!rows->width || !rows->height || !span(rows, &bytes))
        return;
    memory_lock();
    struct record *record = record_at(rows->address);
    bool done = !record || zero_pages(rows, bytes);
    memory_unlock();
    if (done || memory_check(rows->address, bytes, &memory, &known) != CUDA_SUCCESS || !known)
        return;
    memory_use_begin();
    for (size_t i = 0; i < rows->height; i++)
        set_row((unsigned char *)(uintptr_t)rows->address + i * rows->pitch, rows);
    memory_use_end();
}

static CUresult set(CUdeviceptr address, size_t pitch, unsigned value, unsigned element_bytes, size_t width, size_t height,
                    CUstream stream)
{
    CUcontext context;
    struct memset_rows rows = {address, pitch, value, element_bytes, width, height};
    READY();
    CUresult result = engine_stream_context(stream, &context);
    if (result == CUDA_SUCCESS)
        result = memset_check(&rows);
    if (result == CUDA_SUCCESS)
        result = growth_written(context, address);
    return result == CUDA_SUCCESS ? engine_memset(stream, &rows) : result;
}

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* Eight functions for a size of elements: flat or in rows, at once or in a stream, on either default stream. The ones
 * without a stream return before the memory is set too, as the real ones do. */
#define MEMSETS(bits, type)                                                                                            \
    EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr address, type value, size_t count)                                \
    {                                                                                                                  \
        return set(address, 0, value, bits / 8, count, 1, NULL);                                                       \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr address, type value, size_t count)                           \
    {                                                                                                                  \
        return set(address, 0, value, bits / 8, count, 1, CU_STREAM_PER_THREAD);                                       \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr address, type value, size_t count, CUstream stream)             \
    {                                                                                                                  \
        return set(address, 0, value, bits / 8, count, 1, stream);                                                     \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr address, type value, size_t count, CUstream stream)        \
    {                                                                                                                  \
        return set(address, 0, value, bits / 8, count, 1, OWN(stream));                                                \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height) \
    {                                                                                                                  \
        return set(address, pitch, value, bits / 8, width, height, NULL);                                              \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr address, size_t pitch, type value, size_t width,           \
                                                size_t height)                                                         \
    {                                                                                                                  \
        return set(address, pitch, value, bits / 8, width, height, CU_STREAM_PER_THREAD);                              \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr address, size_t pitch, type value, size_t width,              \
                                             size_t height, CUstream stream)                                           \
    {                                                                                                                  \
        return set(address, pitch, value, bits / 8, width, height, stream);                                            \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr address, size_t pitch, type value, size_t width,         \
                                                  size_t height, CUstream stream)                                      \
    {                                                                                                                  \
        return set(address, pitch, value, bits / 8, width, height, OWN(stream));                                       \
    }

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned)
