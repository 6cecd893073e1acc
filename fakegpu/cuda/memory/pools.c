/* Pools: which there are, what they hold, and pieces of them. */
#include "cuda/memory/pools.h"

#include <stdlib.h>

#include "cuda/memory/records.h"

/* What the real driver takes of the GPU at a time for a pool. */
#define CHUNK_BYTES (UINT64_C(32) << 20)

static struct CUmemPoolHandle_st default_pools[GPUS_MAX], graph_pools[GPUS_MAX];
static CUmemoryPool current_pools[GPUS_MAX];
static CUmemoryPool made;

static void begin(CUmemoryPool pool, struct device *device, uint64_t most_bytes)
{
    pool->arena = (struct arena){.device = device, .chunk_bytes = CHUNK_BYTES, .most_reserved_bytes = most_bytes};
    if (most_bytes && most_bytes < CHUNK_BYTES)
        pool->arena.chunk_bytes = GRANULE_BYTES;
    pool->threshold_bytes = 0;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->pieces = 0;
    pool->alive = true;
    pool->destroyed = pool->exportable = pool->imported = false;
}

CUmemoryPool pool_default(struct device *device)
{
    CUmemoryPool pool = &default_pools[device->ordinal];
    if (!pool->alive) {
        begin(pool, device, 0);
        pool->is_default = true;
    }
    return pool;
}

CUmemoryPool pool_of_graphs(struct device *device)
{
    CUmemoryPool pool = &graph_pools[device->ordinal];
    if (!pool->alive) {
        begin(pool, device, 0);
        pool->is_default = true;
        pool->arena.late = true;
        pool->threshold_bytes = UINT64_MAX; /* it keeps what it has until it is trimmed */
    }
    return pool;
}

CUmemoryPool pool_current(struct device *device)
{
    CUmemoryPool pool = current_pools[device->ordinal];
    return pool ? pool : pool_default(device);
}

void pool_set_current(struct device *device, CUmemoryPool pool)
{
    current_pools[device->ordinal] = pool;
}

bool pool_valid(CUmemoryPool pool)
{
    for (int i = 0; i < device_count(); i++) {
        if (pool == &default_pools[i])
            return pool->alive;
    }
    for (CUmemoryPool each = made; each; each = each->next) {
        if (each == pool)
            return each->alive && !each->destroyed;
    }
    return false;
}

/* The handle of a pool that is gone is used again for the next one. */
CUmemoryPool pool_create(struct device *device, uint64_t most_bytes)
{
    CUmemoryPool pool = made;
    while (pool && pool->alive)
        pool = pool->next;
    if (!pool) {
        pool = calloc(1, sizeof *pool);
        if (!pool)
            return NULL;
        pool->next = made;
        made = pool;
    }
    begin(pool, device, most_bytes);
    return pool;
}

static void end_if_unused(CUmemoryPool pool)
{
    if (pool->destroyed && !pool->pieces) {
        arena_end(&pool->arena);
        pool->alive = false;
    }
}

/* Pieces that are still out keep it until they come back. */
void pool_destroy(CUmemoryPool pool)
{
    pool->destroyed = true;
    for (int i = 0; i < device_count(); i++) {
        if (current_pools[i] == pool)
            current_pools[i] = NULL;
    }
    end_if_unused(pool);
}

void pools_trim(struct device *device)
{
    memory_lock();
    arena_trim(&pool_default(device)->arena, 0);
    arena_trim(&pool_of_graphs(device)->arena, 0);
    for (CUmemoryPool each = made; each; each = each->next) {
        if (each->alive && each->arena.device == device)
            arena_trim(&each->arena, 0);
    }
    memory_unlock();
}

CUmemoryPool pool_of(const struct record *record)
{
    return record->owner;
}

CUresult pool_piece(CUmemoryPool pool, size_t size, CUdeviceptr *address)
{
    struct piece piece;
    CUresult result = arena_take(&pool->arena, size, &piece);
    if (result != CUDA_SUCCESS)
        return result;
    struct record *record = record_add(MEMORY_POOL, piece.bytes, size, pool->arena.device, NULL);
    if (!record) {
        arena_give_back(&pool->arena, &piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    record->piece = piece;
    record->owner = pool;
    pool->pieces++;
    *address = (CUdeviceptr)(uintptr_t)piece.bytes;
    return CUDA_SUCCESS;
}

void pool_free(struct record *record)
{
    CUmemoryPool pool = record->owner;
    arena_give_back(&pool->arena, &record->piece);
    arena_trim(&pool->arena, pool->threshold_bytes);
    pool->pieces--;
    record_remove(record);
    end_if_unused(pool);
}
