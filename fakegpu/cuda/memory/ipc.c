/* Device memory that another process opens by a handle.
 *
 * The first handle of an allocation moves what is behind it into a file beside the GPU's state, at the same
 * address; the other process maps that file, and may keep the memory longer than its maker does. Who is charged: cuda/device/shared.h. */
#define _GNU_SOURCE /* mincore */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/device/device.h"
#include "cuda/entry/log.h"
#include "cuda/memory/ipc.h"
#include "cuda/memory/records.h"
#include "cuda/stream/context_work.h"
#include "interface/cuda_memory.h"

enum { PAGE_BYTES = 4096, HANDLE_MAGIC = 0x66697063 };

/* The 64 bytes of a handle. */
struct handle {
    uint32_t magic, slot;
    uint64_t generation, number, size, offset;
    char uuid_start[16]; /* enough of it to distinguish the GPUs of a node */
    uint64_t owner_pid;  /* as it knows itself, with `generation` unique on the GPU */
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "an IPC handle");

static uint64_t own_generation(const struct device *device)
{
    return atomic_load(&device->state.state->slots[device->slot].generation);
}

/* Copies the touched pages of memory to a file; the others are holes. */
static bool copy_out(int file, unsigned char *memory, size_t size)
{
    size_t pages = (size + PAGE_BYTES - 1) / PAGE_BYTES;
    unsigned char *touched = malloc(pages);
    bool good = touched && !mincore(memory, size, touched);
    for (size_t i = 0; good && i < pages; i++) {
        if (touched[i] & 1)
            good = pwrite(file, memory + i * PAGE_BYTES, PAGE_BYTES, (off_t)(i * PAGE_BYTES)) == PAGE_BYTES;
    }
    free(touched);
    return good;
}

static CUresult move_to_file(const struct device *device, unsigned char *memory, size_t size, struct shared_file *shared)
{
    char prefix[STATE_DIRECTORY_MAX + 64];
    if (shared_make(device, size, shared) && copy_out(shared->file, memory, size) &&
        mmap(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared->file, 0) != MAP_FAILED)
        return CUDA_SUCCESS;
    shared_prefix(device, prefix, sizeof prefix);
    driver_log("%.300s: %s; an IPC handle needs room there", prefix, strerror(errno));
    if (shared->number)
        shared_unmake(device, shared);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

/* Under lock. */
CUresult ipc_export(struct record *record, CUipcMemHandle *opaque)
{
    struct handle *handle = (struct handle *)opaque;
    struct device *device = record->memory.device;
    struct shared_file *shared = piece_shared(&record->piece, &record->shared_file);
    unsigned char *base;
    size_t size;
    piece_range(&record->piece, &base, &size);
    if (!shared->number) {
        memory_stop_use();
        CUresult result = move_to_file(device, base, size, shared);
        memory_resume_use();
        if (result != CUDA_SUCCESS)
            return result;
    }
    record->shared = true;
    *handle = (struct handle){.magic = HANDLE_MAGIC, .slot = (uint32_t)device->slot, .generation = own_generation(device),
                              .number = shared->number, .size = record->memory.size,
                              .offset = (uint64_t)(record->piece.bytes - base), .owner_pid = (uint64_t)getpid()};
    memcpy(handle->uuid_start, device->gpu.uuid + strlen("GPU-"), sizeof handle->uuid_start);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    ENTER(context);
    REQUIRE_CU(handle);
    CUresult result;
    memory_lock();
    struct record *record = record_at(address);
    if (record && record->memory.kind == MEMORY_DEVICE)
        result = ipc_export(record, handle);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    memory_unlock();
    return result;
}

/* --- the other side ------------------------------------------------------------------------------------------------ */

static struct device *device_of(const struct handle *handle)
{
    for (int i = 0; i < device_count(); i++) {
        struct device *device = device_get(i);
        if (!memcmp(handle->uuid_start, device->gpu.uuid + strlen("GPU-"), sizeof handle->uuid_start))
            return device;
    }
    return NULL;
}

static CUresult open_file(CUcontext context, void *pool, struct device *device, const struct handle *handle,
                          CUdeviceptr *address)
{
    char path[SHARED_PATH_BYTES];
    struct shared_file shared;
    size_t mapped = (handle->offset + handle->size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    int file = shared_path(device, handle->slot, handle->generation, handle->number, path)
                   ? open(path, O_RDWR | O_CLOEXEC)
                   : -1;
    if (file < 0)
        return CUDA_ERROR_INVALID_HANDLE; /* freed since, or its owner is dead */
    unsigned char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED || shared_join(device, file, &shared) != CUDA_SUCCESS) {
        if (memory != MAP_FAILED)
            munmap(memory, mapped);
        close(file);
        return CUDA_ERROR_MAP_FAILED;
    }
    memory_lock();
    struct record *record = record_add(MEMORY_IPC, memory + handle->offset, handle->size, device, context);
    if (record) {
        record->piece = (struct piece){NULL, memory, mapped};
        record->shared_file = shared;
        record->owner = pool;
    }
    memory_unlock();
    if (!record) {
        munmap(memory, mapped);
        device_release(device, shared_leave(device, &shared));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = (CUdeviceptr)(uintptr_t)(memory + handle->offset);
    return CUDA_SUCCESS;
}

CUresult ipc_open(CUcontext context, void *pool, const CUipcMemHandle *opaque, CUdeviceptr *address)
{
    struct handle handle;
    memcpy(&handle, opaque, sizeof handle);
    struct device *device = handle.magic == HANDLE_MAGIC ? device_of(&handle) : NULL;
    if (!device || !handle.size || handle.size > SIZE_MAX / 4 || handle.offset > SIZE_MAX / 4)
        return CUDA_ERROR_INVALID_HANDLE;
    if (device->slot == (int)handle.slot && handle.generation == own_generation(device))
        return CUDA_ERROR_INVALID_CONTEXT; /* a process has its own memory already */
    CUresult result = device_attach(device);
    if (result != CUDA_SUCCESS)
        return result;
    return open_file(context, pool, device, &handle, address);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    enum { LAZY_ENABLE_PEER_ACCESS = 1 };
    ENTER(context);
    REQUIRE_CU(address && flags == LAZY_ENABLE_PEER_ACCESS);
    return ipc_open(context, NULL, &handle, address);
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle opaque, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(address, opaque, flags);
}

void ipc_close(struct record *record)
{
    munmap(record->piece.bytes, record->piece.size);
    device_release(record->memory.device, shared_leave(record->memory.device, &record->shared_file));
    record_remove(record);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(context);
    CUresult result = engine_synchronize(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct record *record = record_at(address);
    bool good = record && record->memory.kind == MEMORY_IPC && !record->owner &&
                record->memory.start == (uintptr_t)address;
    if (good)
        ipc_close(record);
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
