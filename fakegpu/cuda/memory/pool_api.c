/* Stream-ordered memory and its pools, as programs call them.
 *
 * Memory is there from the call on, whatever the stream still has to do: that is not observable, since work that uses it comes
 * later in the stream. It is freed in the stream's order. */
#include "cuda/memory/pools.h"
#include "cuda/memory/records.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/context_work.h"
#include "interface/cuda_memory.h"

static CUresult take(CUmemoryPool pool, size_t size, CUdeviceptr *address)
{
    memory_lock();
    CUresult result = pool_piece(pool, size, address);
    memory_unlock();
    return result;
}

/* What streams are about to give back is waited for before "out of memory" is said. */
static CUresult take_patiently(CUcontext context, CUmemoryPool pool, size_t size, CUdeviceptr *address, CUstream stream)
{
    CUresult result = take(pool, size, address);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (engine_stream_synchronize(stream) != CUDA_SUCCESS)
        return result;
    result = take(pool, size, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && engine_synchronize(context) == CUDA_SUCCESS)
        result = take(pool, size, address);
    return result;
}

static CUresult allocate(CUdeviceptr *address, size_t size, CUmemoryPool pool, bool named, CUstream stream)
{
    CUcontext context;
    READY();
    REQUIRE_CU(address && size);
    CUresult result = engine_stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = engine_capture_alloc(stream, size, address);
    if (result != CUDA_ERROR_NOT_READY)
        return result;
    REFUSE_BESIDE_CAPTURES();
    memory_lock();
    bool good = true;
    if (named)
        good = pool_valid(pool) && !pool->imported;
    else
        pool = pool_current(context->device);
    memory_unlock();
    REQUIRE_CU(good);
    result = device_attach(pool->arena.device);
    return result == CUDA_SUCCESS ? take_patiently(context, pool, size, address, stream) : result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    return allocate(address, size, NULL, false, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return allocate(address, size, pool, true, stream);
}

static void give_back(void *argument)
{
    memory_lock();
    struct record *record = record_at((CUdeviceptr)(uintptr_t)argument);
    if (record && record->memory.kind == MEMORY_POOL)
        pool_free(record);
    else if (record && record->memory.kind == MEMORY_IPC)
        ipc_close(record);
    memory_unlock();
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUcontext context;
    READY();
    CUresult result = engine_stream_context(stream, &context);
    if (result != CUDA_SUCCESS || !address)
        return result;
    result = engine_capture_free(stream, address);
    if (result != CUDA_ERROR_NOT_READY)
        return result;
    memory_lock();
    struct record *record = record_at(address);
    bool ordinary = record && record->memory.kind == MEMORY_DEVICE && record->memory.start == (uintptr_t)address;
    bool of_pool = record && (record->memory.kind == MEMORY_POOL || (record->memory.kind == MEMORY_IPC && record->owner));
    bool good = of_pool && record->memory.start == (uintptr_t)address && !record->being_freed;
    if (good)
        record->being_freed = true;
    memory_unlock();
    if (ordinary)
        return linear_free(context, address);
    REQUIRE_CU(good);
    return engine_after(stream, give_back, (void *)(uintptr_t)address);
}

/* Per-thread default stream for a stream that is not named. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    return cuMemAllocAsync(address, size, PER_THREAD(stream));
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(address, size, pool, PER_THREAD(stream));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return cuMemFreeAsync(address, PER_THREAD(stream));
}

/* --- pools --------------------------------------------------------------------------------------------------- */

static struct device *device_of(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_get(location->id) : NULL;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    READY();
    REQUIRE_CU(pool && properties && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    struct device *device = device_of(&properties->location);
    if (!device)
        return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                        : CUDA_ERROR_NOT_SUPPORTED;
    if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED; /* as the device's attribute for handle types says */
    CUresult result = device_attach(device);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    *pool = pool_create(device, properties->maxSize);
    if (*pool)
        (*pool)->exportable = properties->handleTypes;
    memory_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Declares the lock and checks the pool; `return leave(...)` must follow. */
static CUresult enter(CUmemoryPool pool)
{
    READY();
    memory_lock();
    if (pool_valid(pool))
        return CUDA_SUCCESS;
    memory_unlock();
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult leave(CUresult result)
{
    memory_unlock();
    return result;
}

#define ENTER_POOL(pool)                                                                                   \
    do {                                                                                                   \
        CUresult refused_ = enter(pool);                                                                   \
        if (refused_ != CUDA_SUCCESS)                                                                      \
            return refused_;                                                                               \
    } while (0)

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER_POOL(pool);
    if (pool->is_default)
        return leave(CUDA_ERROR_INVALID_VALUE);
    pool_destroy(pool);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    REFUSE_BESIDE_CAPTURES();
    ENTER_POOL(pool);
    arena_trim(&pool->arena, keep_bytes);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    REFUSE_BESIDE_CAPTURES();
    ENTER_POOL(pool);
    if (!value)
        return leave(CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold_bytes;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->arena.reserved_bytes;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->arena.reserved_high_bytes;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->arena.used_bytes;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->arena.used_high_bytes;
        break;
    default:
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER_POOL(pool);
    if (!value)
        return leave(CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return leave(CUDA_SUCCESS);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold_bytes = *(uint64_t *)value;
        return leave(CUDA_SUCCESS);
    default:
        break;
    }
    /* High-water marks may be set back only. */
    if (*(uint64_t *)value)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->arena.reserved_high_bytes = pool->arena.reserved_bytes;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->arena.used_high_bytes = pool->arena.used_bytes;
    else
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(CUDA_SUCCESS);
}

/* Every GPU reaches every pool. */
EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *accesses, size_t count)
{
    ENTER_POOL(pool);
    for (size_t i = 0; i < count; i++) {
        if (!accesses || !device_of(&accesses[i].location))
            return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER_POOL(pool);
    if (!flags || !location || !device_of(location))
        return leave(CUDA_ERROR_INVALID_VALUE);
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return leave(CUDA_SUCCESS);
}

/* --- a device's pools ---------------------------------------------------------------------------------------- */

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(pool);
    memory_lock();
    *pool = pool_default(device);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(pool);
    memory_lock();
    *pool = pool_current(device);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    DEVICE(ordinal, device);
    ENTER_POOL(pool);
    if (pool->arena.device != device)
        return leave(CUDA_ERROR_INVALID_VALUE);
    pool_set_current(device, pool);
    return leave(CUDA_SUCCESS);
}

static CUresult located(const CUmemLocation *location, int type, CUdevice *ordinal)
{
    READY();
    REQUIRE_CU(location);
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    *ordinal = location->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUdevice ordinal;
    CUresult result = located(location, type, &ordinal);
    return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, ordinal) : result;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    CUdevice ordinal;
    CUresult result = located(location, type, &ordinal);
    return result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, ordinal) : result;
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
    CUdevice ordinal;
    CUresult result = located(location, type, &ordinal);
    return result == CUDA_SUCCESS ? cuDeviceSetMemPool(ordinal, pool) : result;
}

/* --- the pool of graphs -------------------------------------------------------------------------------------- */

CUresult pool_take(struct device *device, size_t size, CUdeviceptr *address)
{
    REQUIRE_CU(size);
    memory_lock();
    return leave(pool_piece(pool_of_graphs(device), size, address));
}

static struct record *piece_at(CUdeviceptr address)
{
    struct record *record = record_at(address);
    return record && record->memory.kind == MEMORY_POOL && record->memory.start == (uintptr_t)address ? record : NULL;
}

CUresult pool_back(CUdeviceptr address)
{
    memory_lock();
    struct record *record = piece_at(address);
    return leave(record ? arena_back(&pool_of(record)->arena, &record->piece) : CUDA_ERROR_INVALID_VALUE);
}

CUresult pool_give_back(CUdeviceptr address)
{
    memory_lock();
    struct record *record = piece_at(address);
    if (!record)
        return leave(CUDA_ERROR_INVALID_VALUE);
    pool_free(record);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    DEVICE(ordinal, device);
    memory_lock();
    arena_trim(&pool_of_graphs(device)->arena, 0);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(value && attribute >= CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT &&
               attribute <= CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
    memory_lock();
    const struct arena *arena = &pool_of_graphs(device)->arena;
    const uint64_t values[] = {arena->used_bytes, arena->used_high_bytes, arena->reserved_bytes,
                               arena->reserved_high_bytes};
    *(uint64_t *)value = values[attribute];
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(value && !*(uint64_t *)value);
    memory_lock();
    struct arena *arena = &pool_of_graphs(device)->arena;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        arena->used_high_bytes = arena->used_bytes;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        arena->reserved_high_bytes = arena->reserved_bytes;
    else
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(CUDA_SUCCESS);
}
