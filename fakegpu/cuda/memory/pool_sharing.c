/* Pools that other processes know, and pieces of theirs that those open. An imported pool allocates nothing itself; its pieces are opened as memory
 * with an IPC handle is (cuda/memory/ipc.c). */
#define _GNU_SOURCE /* memfd_create */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory/ipc.h"
#include "cuda/memory/pools.h"
#include "cuda/memory/records.h"
#include "interface/cuda_memory.h"

#define NAME "fakegpu-pool-"

EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, unsigned long long flags)
{
    char name[96];
    READY();
    REQUIRE_CU(shareable && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    memory_lock();
    bool good = pool_valid(pool) && pool->exportable;
    if (good)
        snprintf(name, sizeof name, NAME "%s", pool->arena.device->gpu.uuid);
    memory_unlock();
    REQUIRE_CU(good);
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

static struct device *device_of_file(int file)
{
    char path[64], name[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t size = readlink(path, name, sizeof name - 1);
    name[size > 0 ? size : 0] = '\0';
    for (int i = 0; strstr(name, NAME) && i < device_count(); i++) {
        if (strstr(name, device_get(i)->gpu.uuid))
            return device_get(i);
    }
    return NULL;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type, unsigned long long flags)
{
    READY();
    REQUIRE_CU(pool && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = device_of_file((int)(intptr_t)shareable);
    REQUIRE_CU(device);
    CUresult result = device_attach(device);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    *pool = pool_create(device, 0);
    if (*pool)
        (*pool)->imported = true;
    memory_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolExportPointer(CUipcMemHandle *exported, CUdeviceptr address)
{
    READY();
    REQUIRE_CU(exported);
    memory_lock();
    struct record *record = record_at(address);
    bool good = record && record->memory.kind == MEMORY_POOL && pool_of(record)->exportable;
    CUresult result = good ? ipc_export(record, exported) : CUDA_ERROR_INVALID_VALUE;
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, const CUipcMemHandle *exported)
{
    READY();
    REQUIRE_CU(address && exported);
    memory_lock();
    bool good = pool_valid(pool) && pool->imported;
    memory_unlock();
    REQUIRE_CU(good);
    return ipc_open(NULL, pool, exported, address);
}
