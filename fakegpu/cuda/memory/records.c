#define _GNU_SOURCE /* pthread_rwlock_t */
#include "cuda/memory/records.h"

#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ranges book;
static uint64_t last_id;

void memory_lock(void) { pthread_mutex_lock(&mutex); }
void memory_unlock(void) { pthread_mutex_unlock(&mutex); }

static pthread_rwlock_t use = PTHREAD_RWLOCK_INITIALIZER;
void memory_use_begin(void) { pthread_rwlock_rdlock(&use); }
void memory_use_end(void) { pthread_rwlock_unlock(&use); }
void memory_stop_use(void) { pthread_rwlock_wrlock(&use); }
void memory_resume_use(void) { pthread_rwlock_unlock(&use); }

struct record *record_add(enum memory_kind kind, void *start, size_t size, struct device *device, CUcontext context)
{
    struct record *record = calloc(1, sizeof *record);
    if (!record)
        return NULL;
    record->range.start = (uintptr_t)start;
    record->range.size = size;
    record->memory = (struct memory){.start = (uintptr_t)start, .size = size, .kind = kind, .device = device,
                                     .context = context, .id = ++last_id};
    ranges_insert(&book, &record->range);
    return record;
}

void record_remove(struct record *record)
{
    ranges_remove(&book, &record->range);
    free(record);
}

struct record *record_at(CUdeviceptr address)
{
    return (struct record *)ranges_at(&book, (uintptr_t)address);
}

struct record *record_from(CUdeviceptr address)
{
    return (struct record *)ranges_from(&book, (uintptr_t)address);
}

bool memory_find(CUdeviceptr address, struct memory *found)
{
    memory_lock();
    struct record *record = record_at(address);
    if (record)
        *found = record->memory;
    memory_unlock();
    return record;
}

/* Mappings that lie side by side count as one. */
static CUresult check(CUdeviceptr address, size_t size, struct memory *found, bool *known)
{
    struct record *record = record_at(address);
    *known = record;
    if (!record)
        return address_reserved(address) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    *found = record->memory;
    while (record) {
        if (record->memory.kind == MEMORY_MAPPED && !record->memory.flags)
            return CUDA_ERROR_INVALID_VALUE; /* access was not granted */
        size_t within = record->range.size - ((uintptr_t)address - record->range.start);
        if (size <= within)
            return CUDA_SUCCESS;
        if (record->memory.kind != MEMORY_MAPPED)
            break;
        size -= within;
        address += within;
        record = record_at(address);
        if (record && record->memory.kind != MEMORY_MAPPED)
            break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_check(CUdeviceptr address, size_t size, struct memory *found, bool *known)
{
    memory_lock();
    CUresult result = check(address, size, found, known);
    memory_unlock();
    return result;
}
