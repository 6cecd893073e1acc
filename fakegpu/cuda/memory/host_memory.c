/* Host memory that the driver allocates, or that is registered with it. It takes nothing of a GPU. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>

#include "cuda/memory/records.h"
#include "cuda/stream/context_work.h"
#include "interface/cuda_memory.h"

static size_t whole_pages(size_t size)
{
    return (size + 4095) / 4096 * 4096;
}

void host_free(struct record *record)
{
    munmap((void *)record->memory.start, record->piece.size);
    record_remove(record);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags)
{
    ENTER(context);
    REQUIRE_CU(address && size && size < SIZE_MAX / 4 && !(flags & ~(unsigned)CU_MEMHOSTALLOC_KNOWN));
    size_t mapped = whole_pages(size);
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory_lock();
    struct record *record = record_add(MEMORY_HOST, memory, size, NULL, context);
    if (record) {
        record->piece.size = mapped;
        record->memory.flags = flags;
    }
    memory_unlock();
    if (!record) {
        munmap(memory, mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t size)
{
    return cuMemHostAlloc(address, size, 0);
}

/* Finds what is at the very address, of one kind. */
static bool finds(void *address, enum memory_kind kind, struct memory *memory)
{
    return memory_find((CUdeviceptr)(uintptr_t)address, memory) && memory->kind == kind &&
           memory->start == (uintptr_t)address;
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    struct memory memory;
    ENTER(context);
    if (!address)
        return CUDA_SUCCESS;
    REQUIRE_CU(finds(address, MEMORY_HOST, &memory));
    CUresult result = engine_synchronize(memory.context ? memory.context : context);
    memory_lock();
    struct record *record = record_at((CUdeviceptr)(uintptr_t)address);
    if (record && record->memory.id == memory.id)
        host_free(record);
    else
        result = CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
    ENTER(context);
    uintptr_t start = (uintptr_t)address;
    REQUIRE_CU(address && size && start + size > start && !(flags & ~(unsigned)CU_MEMHOSTREGISTER_KNOWN));
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    struct record *record = record_from(start);
    if (record && record->range.start < start + size) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else {
        record = record_add(MEMORY_REGISTERED, address, size, NULL, context);
        if (record)
            record->memory.flags = flags;
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemHostRegister(void *address, size_t size, unsigned flags)
{
    return cuMemHostRegister_v2(address, size, flags);
}

EXPORT CUresult cuMemHostUnregister(void *address)
{
    struct memory memory;
    ENTER(context);
    REQUIRE_CU(address);
    if (!finds(address, MEMORY_REGISTERED, &memory))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    CUresult result = engine_synchronize(memory.context ? memory.context : context);
    memory_lock();
    struct record *record = record_at((CUdeviceptr)(uintptr_t)address);
    if (record && record->memory.id == memory.id)
        record_remove(record);
    memory_unlock();
    return result;
}

static bool is_host(const struct memory *memory)
{
    return memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned flags)
{
    struct memory memory;
    ENTER(context);
    (void)context;
    REQUIRE_CU(device_address && !flags);
    REQUIRE_CU(memory_find((CUdeviceptr)(uintptr_t)address, &memory) && is_host(&memory));
    *device_address = (CUdeviceptr)(uintptr_t)address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
    struct memory memory;
    ENTER(context);
    (void)context;
    REQUIRE_CU(flags);
    REQUIRE_CU(memory_find((CUdeviceptr)(uintptr_t)address, &memory) && memory.kind == MEMORY_HOST);
    *flags = memory.flags;
    return CUDA_SUCCESS;
}
