/* Ordinary device memory: plain, pitched and managed. */
#include "cuda/memory/memory.h"

#include <stdlib.h>

#include "cuda/memory/ipc.h"
#include "cuda/memory/records.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/context_work.h"

#define MIB (UINT64_C(1) << 20)
/* Pieces below this share pages of the GPU. */
#define SMALL_BYTES MIB
#define PITCH_BYTES 512

static size_t whole_granules(size_t size)
{
    return (size + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
}

static CUresult take_small(CUcontext context, size_t size, struct piece *piece)
{
    if (!context->arena) {
        context->arena = calloc(1, sizeof *context->arena);
        if (!context->arena)
            return CUDA_ERROR_OUT_OF_MEMORY;
        context->arena->device = context->device;
        context->arena->chunk_bytes = GRANULE_BYTES;
    }
    return arena_take(context->arena, size, piece);
}

CUresult memory_take(CUcontext context, size_t size, struct piece *piece)
{
    if (size < SMALL_BYTES)
        return take_small(context, size, piece);
    if (size > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *piece = (struct piece){.size = whole_granules(size)};
    CUresult result = device_reserve(context->device, piece->size);
    if (result != CUDA_SUCCESS)
        return result;
    piece->bytes = backing_map(piece->size);
    if (!piece->bytes) {
        device_release(context->device, piece->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void memory_give_back(CUcontext context, const struct piece *piece)
{
    if (piece->chunk) {
        arena_give_back(context->arena, piece);
        arena_trim(context->arena, 0);
    } else {
        backing_unmap(piece->bytes, piece->size);
        device_release(context->device, piece->size);
    }
}

static CUresult allocate(CUcontext context, enum memory_kind kind, size_t size, CUdeviceptr *address)
{
    struct piece piece;
    memory_lock();
    CUresult result = memory_take(context, size, &piece);
    if (result == CUDA_SUCCESS) {
        struct record *record = record_add(kind, piece.bytes, size, context->device, context);
        if (record) {
            record->piece = piece;
            *address = (CUdeviceptr)(uintptr_t)piece.bytes;
        } else {
            memory_give_back(context, &piece);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    ENTER(context);
    REQUIRE_CU(address && size);
    REFUSE_BESIDE_CAPTURES();
    return allocate(context, MEMORY_DEVICE, size, address);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    ENTER(context);
    REQUIRE_CU(address && pitch && width && height && (element == 4 || element == 8 || element == 16));
    REQUIRE_CU(width < SIZE_MAX / 4 / height);
    size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    CUresult result = allocate(context, MEMORY_DEVICE, row * height, address);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

/* Managed memory is charged to the GPU from the start, as on GPUs that cannot page (the attribute for concurrent managed
 * access says so). */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };
    ENTER(context);
    REQUIRE_CU(address && size && (flags == ATTACH_GLOBAL || flags == ATTACH_HOST));
    CUresult result = allocate(context, MEMORY_MANAGED, size, address);
    if (result == CUDA_SUCCESS) {
        memory_lock();
        struct record *record = record_at(*address);
        if (record)
            record->memory.flags = flags;
        memory_unlock();
    }
    return result;
}

static void free_device_memory(struct record *record)
{
    shared_forget(record->memory.device, &record->shared_file);
    memory_give_back(record->memory.context, &record->piece);
    record_remove(record);
}

/* Under lock. Whether there was such memory to free. */
static bool free_record(CUdeviceptr address)
{
    struct record *record = record_at(address);
    if (!record || record->range.start != (uintptr_t)address)
        return false;
    switch (record->memory.kind) {
    case MEMORY_DEVICE:
    case MEMORY_MANAGED:
        free_device_memory(record);
        return true;
    case MEMORY_POOL:
        pool_free(record);
        return true;
    case MEMORY_IPC: /* a piece of another process's pool */
        if (!record->owner)
            return false;
        ipc_close(record);
        return true;
    default:
        return false;
    }
}

CUresult linear_free(CUcontext context, CUdeviceptr address)
{
    struct memory memory;
    REQUIRE_CU(memory_find(address, &memory) && memory.start == (uintptr_t)address);
    CUresult result = engine_synchronize(memory.context ? memory.context : context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    bool freed = free_record(address);
    memory_unlock();
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct memory memory;
    ENTER(context);
    if (!address)
        return CUDA_SUCCESS;
    REQUIRE_CU(memory_find(address, &memory) && memory.start == (uintptr_t)address);
    REFUSE_BESIDE_CAPTURES();
    return linear_free(context, address);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER(context);
    uint64_t now_free, now_total;
    REQUIRE_CU(free_bytes && total_bytes);
    device_memory(context->device, &now_free, &now_total);
    *free_bytes = now_free;
    *total_bytes = now_total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct memory memory;
    ENTER(context);
    if (!memory_find(address, &memory) || memory.kind == MEMORY_REGISTERED || memory.kind == MEMORY_HOST)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = memory.start;
    if (size)
        *size = memory.size;
    return CUDA_SUCCESS;
}

void memory_end_context(CUcontext context)
{
    struct record *record;
    memory_lock();
    for (uintptr_t address = 0; (record = record_from(address));) {
        address = record->range.start + record->range.size;
        if (record->memory.context != context)
            continue;
        switch (record->memory.kind) {
        case MEMORY_IPC:
            ipc_close(record);
            break;
        case MEMORY_HOST:
            host_free(record);
            break;
        case MEMORY_DEVICE:
        case MEMORY_MANAGED:
            free_device_memory(record);
            break;
        default:
            record_remove(record);
        }
    }
    arrays_end_context(context);
    if (context->arena)
        arena_end(context->arena);
    free(context->arena);
    context->arena = NULL;
    memory_unlock();
}

/* --- interfaces from before 64-bit addresses and of older headers ----------------------------------------------- */

EXPORT CUresult cuMemAlloc(unsigned *address, unsigned size)
{
    (void)size;
    REQUIRE_CU(address);
    return CUDA_ERROR_NOT_SUPPORTED; /* addresses do not fit 32 bits */
}
