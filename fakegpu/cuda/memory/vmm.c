/* Virtual memory management: addresses, physical memory and mappings, each by itself.
 *
 * Physical memory is a part of one nameless file of the process, of which pages appear when touched; memory that may be
 * exported has a file of its own, which is what the other process gets and may keep longer (cuda/device/shared.h). */
#define _GNU_SOURCE /* memfd_create, fallocate */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/entry/log.h"
#include "cuda/memory/records.h"
#include "cuda/stream/context_work.h"
#include "interface/cuda_memory.h"

struct physical {
    CUmemGenericAllocationHandle handle;
    struct physical *next;
    CUmemAllocationProp properties;
    struct device *device;
    size_t size;
    int file;
    off_t offset;
    struct shared_file shared; /* of memory that may be exported */
    unsigned users; /* handles returned and not released, and mappings */
    unsigned handles;
};

/* Guarded by memory_lock, like the book. */
static struct physical *all;
static CUmemGenericAllocationHandle last_handle;
static struct ranges reservations;
static int common_file = -1;
static off_t common_end;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    for (struct physical *physical = all; physical; physical = physical->next) {
        if (physical->handle == handle && physical->handles)
            return physical;
    }
    return NULL;
}

static struct physical *remember(struct physical *physical)
{
    physical->handle = ++last_handle << 8 | 1; /* no address, and never 0 */
    physical->next = all;
    physical->users = physical->handles = 1;
    return all = physical;
}

static void drop(struct physical *physical)
{
    if (--physical->users)
        return;
    struct physical **link = &all;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    uint64_t bytes = physical->size;
    if (physical->shared.number)
        bytes = shared_leave(physical->device, &physical->shared);
    else
        (void)!fallocate(physical->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical->offset,
                         (off_t)physical->size); /* pages that stay are never mapped again */
    device_release(physical->device, bytes);
    free(physical);
}

/* --- physical memory ------------------------------------------------------------------------------------------ */

static CUresult check_properties(const CUmemAllocationProp *properties, struct device **device)
{
    REQUIRE_CU(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return properties->location.type > CU_MEM_LOCATION_TYPE_DEVICE &&
                       properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
                   ? CUDA_ERROR_NOT_SUPPORTED
                   : CUDA_ERROR_INVALID_VALUE;
    if (!(*device = device_get(properties->location.id)))
        return CUDA_ERROR_INVALID_DEVICE;
    if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    struct device *device;
    READY();
    REQUIRE_CU(granularity && (option == 0 || option == 1));
    CUresult result = check_properties(properties, &device);
    if (result == CUDA_SUCCESS)
        *granularity = GRANULE_BYTES;
    return result;
}

/* A part of the process's file, or, to be exported, a file whose name says which GPU it belongs to. */
static bool find_room(struct physical *physical)
{
    if (physical->properties.requestedHandleTypes) {
        if (!shared_make(physical->device, physical->size, &physical->shared))
            return false;
        physical->file = physical->shared.file;
        return true;
    }
    if (common_file < 0)
        common_file = memfd_create("fakegpu", MFD_CLOEXEC);
    if (common_file < 0 || ftruncate(common_file, common_end + (off_t)physical->size))
        return false;
    physical->file = common_file;
    physical->offset = common_end;
    common_end += (off_t)physical->size;
    return true;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    struct device *device;
    READY();
    REQUIRE_CU(handle && size && size % GRANULE_BYTES == 0 && !flags);
    CUresult result = check_properties(properties, &device);
    if (result == CUDA_SUCCESS)
        result = device_attach(device);
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (struct physical){.properties = *properties, .device = device, .size = size, .file = -1};
    memory_lock();
    result = device_reserve(device, size);
    if (result == CUDA_SUCCESS && !find_room(physical)) {
        device_release(device, size);
        driver_log("cuMemCreate: no file of %zu bytes: %s; raise the limit on open files", size, strerror(errno));
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *handle = remember(physical)->handle;
    else
        free(physical);
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    READY();
    memory_lock();
    struct physical *physical = physical_of(handle);
    if (physical) {
        physical->handles--;
        drop(physical);
    }
    memory_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    READY();
    REQUIRE_CU(properties);
    memory_lock();
    struct physical *physical = physical_of(handle);
    if (physical)
        *properties = physical->properties;
    memory_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    READY();
    REQUIRE_CU(handle);
    memory_lock();
    struct record *record = record_at((CUdeviceptr)(uintptr_t)address);
    struct physical *physical = record && record->memory.kind == MEMORY_MAPPED ? record->owner : NULL;
    if (physical) {
        physical->users++;
        physical->handles++;
        *handle = physical->handle;
    }
    memory_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- to and from other processes ------------------------------------------------------------------------------ */

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    READY();
    REQUIRE_CU(shareable && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int file = -1;
    memory_lock();
    struct physical *physical = physical_of(handle);
    bool good = physical && physical->shared.number;
    if (good)
        file = shared_lend(&physical->shared);
    memory_unlock();
    REQUIRE_CU(good);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

/* Which GPU the file belongs to, by its name. */
static struct device *device_of_file(int file)
{
    char path[64], name[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t size = readlink(path, name, sizeof name - 1);
    if (size < 0)
        return NULL;
    name[size] = '\0';
    for (int i = 0; i < device_count(); i++) {
        if (strstr(name, device_get(i)->gpu.uuid))
            return device_get(i);
    }
    return NULL;
}

/* By a handle of its own, in the process that exported it, too. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    struct stat status;
    char path[64];
    READY();
    REQUIRE_CU(handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int file = (int)(intptr_t)shareable;
    struct device *device = device_of_file(file);
    REQUIRE_CU(device && !fstat(file, &status) && status.st_size > 0);
    CUresult result = device_attach(device);
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    *physical = (struct physical){
        .properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type,
                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal}},
        .device = device, .size = (size_t)status.st_size, .file = open(path, O_RDWR | O_CLOEXEC)};
    if (physical->file < 0 || shared_join(device, physical->file, &physical->shared) != CUDA_SUCCESS) {
        if (physical->file >= 0)
            close(physical->file);
        free(physical);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memory_lock();
    *handle = remember(physical)->handle;
    memory_unlock();
    return CUDA_SUCCESS;
}

/* --- addresses ------------------------------------------------------------------------------------------------ */

static void *reserve(void *wanted, size_t size)
{
    void *memory = mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags)
{
    READY();
    REQUIRE_CU(address && size && size % GRANULE_BYTES == 0 && !(alignment & (alignment - 1)) && !flags);
    if (alignment < GRANULE_BYTES)
        alignment = GRANULE_BYTES;
    struct range *range = calloc(1, sizeof *range);
    unsigned char *memory = wanted % alignment ? NULL : reserve((void *)(uintptr_t)wanted, size);
    if (range && memory && (uintptr_t)memory % alignment) {
        /* Not where it should be: room for moving it, cut to size. */
        munmap(memory, size);
        memory = reserve(NULL, size + alignment);
        if (memory) {
            size_t head = (size_t)(-(uintptr_t)memory & (alignment - 1));
            if (head)
                munmap(memory, head);
            munmap(memory + head + size, alignment - head);
            memory += head;
        }
    }
    if (!range || !memory) {
        free(range);
        if (memory)
            munmap(memory, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->start = (uintptr_t)memory;
    range->size = size;
    memory_lock();
    ranges_insert(&reservations, range);
    memory_unlock();
    *address = (CUdeviceptr)range->start;
    return CUDA_SUCCESS;
}

bool address_reserved(CUdeviceptr address)
{
    return ranges_at(&reservations, (uintptr_t)address);
}

/* Under lock. */
static bool has_mapping(uintptr_t start, size_t size)
{
    struct record *record = record_from(start);
    return record && record->range.start < start + size;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    READY();
    memory_lock();
    struct range *range = ranges_at(&reservations, (uintptr_t)address);
    bool good = range && range->start == (uintptr_t)address && range->size == size && !has_mapping(range->start, size);
    if (good) {
        ranges_remove(&reservations, range);
        munmap((void *)range->start, size);
        free(range);
    }
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- mappings ------------------------------------------------------------------------------------------------- */

/* Under lock. */
static CUresult map(uintptr_t start, size_t size, size_t offset, struct physical *physical)
{
    struct range *range = ranges_at(&reservations, start);
    REQUIRE_CU(physical && range && start - range->start + size <= range->size);
    REQUIRE_CU(offset <= physical->size && size <= physical->size - offset);
    if (has_mapping(start, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct record *record = record_add(MEMORY_MAPPED, (void *)start, size, physical->device, NULL);
    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mmap((void *)start, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, physical->offset + (off_t)offset) ==
        MAP_FAILED) {
        record_remove(record);
        return CUDA_ERROR_MAP_FAILED;
    }
    record->owner = physical;
    physical->users++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    READY();
    REQUIRE_CU(size && address % GRANULE_BYTES == 0 && size % GRANULE_BYTES == 0 && offset % GRANULE_BYTES == 0 && !flags);
    memory_lock();
    CUresult result = map((uintptr_t)address, size, offset, physical_of(handle));
    memory_unlock();
    return result;
}

/* Calls `change` for each mapping of a range that must hold whole mappings and nothing else. */
static CUresult each_mapping(uintptr_t start, size_t size, void (*change)(struct record *record, int flags), int flags)
{
    uintptr_t end = start + size;
    for (int pass = 0; pass < 2; pass++) {
        for (uintptr_t at = start; at < end;) {
            struct record *record = record_at((CUdeviceptr)at);
            if (!record || record->memory.kind != MEMORY_MAPPED || record->range.start != at ||
                record->range.size > end - at)
                return CUDA_ERROR_INVALID_VALUE;
            at += record->range.size;
            if (pass)
                change(record, flags);
        }
    }
    return CUDA_SUCCESS;
}

static void unmap(struct record *record, int flags)
{
    (void)flags;
    mmap((void *)record->range.start, record->range.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    drop(record->owner);
    record_remove(record);
}

/* Work that still uses the memory is waited for: here its end would be a fault of the whole process. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUcontext context;
    READY();
    REQUIRE_CU(size);
    if (context_current(&context) == CUDA_SUCCESS && engine_synchronize(context) != CUDA_SUCCESS)
        return CUDA_ERROR_UNMAP_FAILED;
    memory_lock();
    CUresult result = each_mapping((uintptr_t)address, size, unmap, 0);
    memory_unlock();
    return result;
}

static void protect(struct record *record, int flags)
{
    int protection = (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
    mprotect((void *)record->range.start, record->range.size, protection);
    record->memory.flags = (unsigned)flags;
}

/* Memory is there for every GPU as soon as it is for one. */
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *accesses, size_t count)
{
    READY();
    REQUIRE_CU(size && accesses && count);
    int flags = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE_CU(!(accesses[i].flags & ~CU_MEM_ACCESS_FLAGS_PROT_READWRITE) && accesses[i].flags != 2);
        if (accesses[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_get(accesses[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        flags |= accesses[i].flags;
    }
    memory_lock();
    CUresult result = each_mapping((uintptr_t)address, size, protect, flags);
    memory_unlock();
    return result;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    struct memory memory;
    READY();
    REQUIRE_CU(flags && location && memory_find(address, &memory));
    *flags = memory.kind == MEMORY_MAPPED ? memory.flags : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
