/* Pools of stream-ordered memory, as their files see them. */
#ifndef FAKEGPU_CUDA_MEMORY_POOLS_H
#define FAKEGPU_CUDA_MEMORY_POOLS_H

#include "cuda/memory/arena.h"
#include "cuda/memory/records.h"
#include "interface/cuda_memory.h"

struct CUmemPoolHandle_st {
    struct arena arena;
    uint64_t threshold_bytes; /* unused memory that it may keep */
    int reuse[3];             /* the three permissions to reuse; kept, without effect */
    unsigned pieces;          /* handed out */
    bool alive, is_default, destroyed;
    bool exportable, imported; /* for and from other processes (cuda/memory/pool_sharing.c) */
    CUmemoryPool next;        /* of all that programs made, living or not: handles stay checkable */
};

/* Under memory_lock. */
CUmemoryPool pool_default(struct device *device);
CUmemoryPool pool_current(struct device *device);
void pool_set_current(struct device *device, CUmemoryPool pool);
bool pool_valid(CUmemoryPool pool);
CUmemoryPool pool_create(struct device *device, uint64_t most_bytes);
void pool_destroy(CUmemoryPool pool);

/* Memory for allocations of graphs; kept apart, as in the real driver. Under memory_lock. */
CUmemoryPool pool_of_graphs(struct device *device);

/* Under memory_lock: a piece of a pool, in the book; pool_free (cuda/memory/records.h) gives it back. */
CUresult pool_piece(CUmemoryPool pool, size_t size, CUdeviceptr *address);

/* Under memory_lock: the pool of a record of the kind MEMORY_POOL. */
CUmemoryPool pool_of(const struct record *record);

#endif
