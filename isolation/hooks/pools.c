/* Stream-ordered memory. It comes from pools, which take it from the GPU in chunks and keep it a while: what counts is what the pool
 * has reserved. Before the driver is asked, as much is charged as a pool can grow by; afterwards, what it has.
 *
 * While a stream is being captured an allocation becomes a node of a graph (hooks/graph_memory.c). */
#include <stdatomic.h>

#include "driver/capture_mode.h"
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/reserved.h"
#include "process/fork_mutex.h"

enum { DEVICES_MAX = 64, PIECE_BYTES = 512 /* pieces begin at multiples of this */ };

MUTEX_FRESH_IN_CHILD(mutex, reserved_forget)

/* `most_bytes`: what it may grow to, 0: anything. */
static void note_pool(CUmemoryPool pool, int gpu, uint64_t most_bytes)
{
    struct holding held = {.key = (uintptr_t)pool, .kind = HOLDING_POOL, .gpu = gpu};
    held.other = most_bytes && most_bytes < RESERVE_CHUNK_BYTES ? GRANULE_BYTES : RESERVE_CHUNK_BYTES;
    holding_share(&held); /* one that is known stays as it is */
}

/* Of a pool that was not made through us: some device's default one. */
static CUresult gpu_of_pool(CUmemoryPool pool, int *gpu)
{
    struct holding held;
    CUmemoryPool default_pool;
    if (holding_look(HOLDING_POOL, (uintptr_t)pool, &held)) {
        *gpu = held.gpu;
        return CUDA_SUCCESS;
    }
    for (CUdevice device = 0; device < DEVICES_MAX; device++) {
        if (REAL(cuDeviceGetDefaultMemPool)(&default_pool, device) != CUDA_SUCCESS)
            break;
        if (default_pool == pool)
            return gpu_of_device(device, gpu);
    }
    return gpu_of_current(gpu);
}

static void settle_pool(const struct holding *held, void *unused)
{
    (void)unused;
    if (held->gpu >= 0)
        reserved_settle(HOLDING_POOL, held->key, held->gpu, 0, 0);
}

static void add_charged(const struct holding *held, void *sum)
{
    *(uint64_t *)sum += held->bytes;
}

static bool is_settled(void)
{
    return atomic_load_explicit(&reserved_counts.freed, memory_order_relaxed) ==
           atomic_load_explicit(&reserved_counts.settled, memory_order_relaxed);
}

/* `done`: so much of what was freed is surely gone in the driver. What others free meanwhile is left for the next time. */
static void settle_all(uint64_t done)
{
    uint64_t charged_bytes = 0, begun = atomic_load_explicit(&reserved_counts.freed, memory_order_acquire);
    pthread_mutex_lock(&mutex);
    reserved_counts.going = 0; /* what other streams have yet to free is rare, and seen at the next wait */
    holdings_each(HOLDING_POOL, NULL, settle_pool, NULL);
    pthread_mutex_unlock(&mutex);
    graph_memory_settle();
    holdings_each(HOLDING_POOL, NULL, add_charged, &charged_bytes);
    holdings_each(HOLDING_GRAPHS, NULL, add_charged, &charged_bytes);
    if (!charged_bytes)
        done = begun;
    uint64_t before = atomic_load_explicit(&reserved_counts.settled, memory_order_relaxed);
    while (before < done && !atomic_compare_exchange_weak_explicit(&reserved_counts.settled, &before, done, memory_order_release,
                                                                   memory_order_relaxed))
        continue;
}

void pools_settle(void)
{
    if (!is_settled())
        settle_all(0);
}

uint64_t pools_freed(void) { return atomic_load_explicit(&reserved_counts.freed, memory_order_acquire); }

void pools_settle_done(uint64_t freed_before)
{
    if (!is_settled())
        settle_all(freed_before);
}

static void trim(CUmemoryPool pool, size_t keep_bytes)
{
    int mode = relax_capture_mode();
    REAL(cuMemPoolTrimTo)(pool, keep_bytes);
    restore_capture_mode(mode);
}

/* What is to become free of a GPU; UINT64_MAX: all that can. */
struct wanted {
    int gpu;
    uint64_t bytes;
};

/* Releases unused memory of a pool, no more than is still needed: what a program keeps there, it will use again. */
static void trim_pool(const struct holding *held, void *argument)
{
    struct wanted *wanted = argument;
    struct holding now = *held;
    if (held->gpu != wanted->gpu || !wanted->bytes)
        return;
    trim((CUmemoryPool)(uintptr_t)held->key, held->bytes > wanted->bytes ? held->bytes - wanted->bytes : 0);
    settle_pool(held, NULL);
    holding_look(HOLDING_POOL, held->key, &now);
    uint64_t given_bytes = held->bytes > now.bytes ? held->bytes - now.bytes : 0;
    wanted->bytes -= given_bytes < wanted->bytes ? given_bytes : wanted->bytes;
}

/* Whether a piece fits into what the pool has reserved, wherever its pieces lie: there are no more gaps than pieces, and one a chunk, so
 * the largest one has at least an even part of what is free. Else the driver would make the pool larger, before anybody can
 * stop it. */
static bool has_room(CUmemoryPool pool, size_t bytes)
{
    struct holding held = {.other = RESERVE_CHUNK_BYTES};
    uint64_t reserved_bytes = 0, used_bytes = 0, size = (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    if (pool_ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) != CUDA_SUCCESS ||
        pool_ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) != CUDA_SUCCESS ||
        reserved_bytes <= used_bytes)
        return false;
    holding_look(HOLDING_POOL, (uintptr_t)pool, &held);
    uint64_t chunk_bytes = held.other ? held.other : RESERVE_CHUNK_BYTES;
    int64_t pieces = reserved_counts.pieces + reserved_counts.going; /* below 0 for a moment, see reserved_note_freed */
    uint64_t gaps = (uint64_t)(pieces > 0 ? pieces : 0) + (reserved_bytes + chunk_bytes - 1) / chunk_bytes;
    return size >= bytes && (reserved_bytes - used_bytes) / gaps >= size;
}

/* What charge the call begins with; 0: none, and the pool has room as it is. Near the limit, unused chunks are released where the pool
 * has no room, as many as are wanted. */
static CUresult begin(CUmemoryPool pool, int gpu, size_t bytes, uint64_t *taken_bytes)
{
    uint64_t growth_bytes = reserve_growth_bytes(bytes), wanted_bytes[] = {growth_bytes, UINT64_MAX};
    CUresult result = charge_take(gpu, *taken_bytes = growth_bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (has_room(pool, bytes)) {
        *taken_bytes = 0;
        return CUDA_SUCCESS;
    }
    /* Chunks are larger than what is wanted, or lie in other pools: then all of them go. */
    for (int i = 0; i < 2 && result == CUDA_ERROR_OUT_OF_MEMORY; i++) {
        holdings_each(HOLDING_POOL, NULL, trim_pool, &(struct wanted){gpu, wanted_bytes[i]});
        result = charge_take(gpu, growth_bytes);
    }
    return result;
}

typedef CUresult allocate_function(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);

/* With the mutex: of two that allocate, each must see what the other one made the pool reserve. */
static CUresult take(allocate_function *allocate, CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream,
                     int gpu)
{
    uint64_t taken_bytes;
    CUresult result = begin(pool, gpu, bytes, &taken_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = allocate(address, bytes, pool, stream);
    reserved_counts.pieces += result == CUDA_SUCCESS;
    CUresult settled = reserved_settle(HOLDING_POOL, (uintptr_t)pool, gpu, taken_bytes, 0);
    if (result == CUDA_SUCCESS && settled != CUDA_SUCCESS) {
        int mode = relax_capture_mode();
        REAL(cuMemFreeAsync)(*address, stream);
        REAL(cuStreamSynchronize)(stream);
        restore_capture_mode(mode);
        trim(pool, 0);
        reserved_note_freed(1);
        reserved_settle(HOLDING_POOL, (uintptr_t)pool, gpu, 0, 0);
        result = settled;
    }
    return result;
}

static bool is_captured(CUstream stream)
{
    int status = 0;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status;
}

static CUresult allocate_from(allocate_function *allocate, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                              CUstream stream, CUstream asked)
{
    int gpu;
    if (!address || !bytes || is_captured(asked))
        return allocate(address, bytes, pool, stream);
    CUresult result = gpu_of_pool(pool, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (gpu == LOCATION_HOST)
        return allocate(address, bytes, pool, stream);
    pthread_mutex_lock(&mutex);
    result = take(allocate, address, bytes, pool, stream, gpu);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* From the pool of the stream's device. */
static CUresult allocate_on(allocate_function *allocate, CUdeviceptr *address, size_t bytes, CUstream stream, CUstream asked)
{
    CUmemoryPool pool;
    CUdevice device;
    int gpu;
    CUresult result = device_of_stream(stream, &device);
    if (result == CUDA_SUCCESS)
        result = REAL(cuDeviceGetMemPool)(&pool, device);
    if (result == CUDA_SUCCESS)
        result = gpu_of_device(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    note_pool(pool, gpu, 0);
    return allocate_from(allocate, address, bytes, pool, stream, asked);
}

/* --- the hooks ------------------------------------------------------------------------------------------------ */

/* The default stream of the functions that end in _ptsz. */
static CUstream own(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream);

static CUresult plain(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    return REAL(cuMemAllocAsync)(address, bytes, stream);
}

static CUresult plain_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    return REAL(cuMemAllocAsync_ptsz)(address, bytes, stream);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate_on(plain, address, bytes, stream, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate_on(plain_ptsz, address, bytes, stream, own(stream));
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(REAL(cuMemAllocFromPoolAsync), address, bytes, pool, stream, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(REAL(cuMemAllocFromPoolAsync_ptsz), address, bytes, pool, stream, own(stream));
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    int gpu;
    if (!pool || !properties)
        return REAL(cuMemPoolCreate)(pool, properties);
    CUresult result = gpu_of_location(&properties->location, &gpu);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS)
        note_pool(*pool, gpu, properties->maxSize);
    return result;
}

static CUresult note_found(CUresult result, CUmemoryPool *pool, const CUmemLocation *location)
{
    int gpu;
    if (result == CUDA_SUCCESS && gpu_of_location(location, &gpu) == CUDA_SUCCESS)
        note_pool(*pool, gpu, 0);
    return result;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return note_found(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return note_found(REAL(cuMemGetMemPool)(pool, location, type), pool, location);
}

/* What is still in use of a pool goes with its pieces, which can no longer be asked for: it stays charged. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct holding held;
    uint64_t used_bytes = 0;
    pthread_mutex_lock(&mutex);
    pool_ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
    bool known = holding_take(HOLDING_POOL, (uintptr_t)pool, &held);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (known && result != CUDA_SUCCESS)
        holding_put(&held);
    else if (known && held.gpu >= 0)
        charge_give(held.gpu, used_bytes ? (held.bytes > used_bytes ? held.bytes - used_bytes : 0) : held.bytes);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    struct holding held;
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep_bytes);
    pthread_mutex_lock(&mutex);
    if (holding_look(HOLDING_POOL, (uintptr_t)pool, &held))
        settle_pool(&held, NULL);
    pthread_mutex_unlock(&mutex);
    return result;
}
