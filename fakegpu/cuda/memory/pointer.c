/* What programs ask about an address, and advice on managed memory. */
#include <string.h>

#include "cuda/memory/pools.h"
#include "cuda/memory/records.h"
#include "interface/cuda_memory.h"

static bool is_host(const struct record *record)
{
    return record->memory.kind == MEMORY_HOST || record->memory.kind == MEMORY_REGISTERED;
}

static void put(void *target, const void *value, size_t size)
{
    memcpy(target, value, size);
}

#define PUT(type, value) put(data, &(type){value}, sizeof(type))

/* Under lock. */
static CUresult attribute_of(const struct record *record, int attribute, CUdeviceptr address, void *data)
{
    const struct memory *memory = &record->memory;
    bool host = is_host(record);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(CUcontext, memory->context);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        PUT(CUdeviceptr, address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && memory->kind != MEMORY_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(void *, (void *)(uintptr_t)address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        PUT(int, record->sync_operations);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        PUT(unsigned long long, memory->id);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        PUT(int, memory->kind == MEMORY_MANAGED);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, memory->device ? memory->device->ordinal : memory->context ? memory->context->device->ordinal : -2);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(int, memory->kind == MEMORY_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        PUT(CUdeviceptr, memory->start);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        PUT(size_t, memory->size);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        PUT(int, memory->kind != MEMORY_MAPPED || memory->flags);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(unsigned long long, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(int, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        PUT(int, memory->kind == MEMORY_MAPPED ? (int)memory->flags : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        if (memory->kind != MEMORY_POOL)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(CUmemoryPool, pool_of(record));
        return CUDA_SUCCESS;
    default:
        return attribute > 0 && attribute <= 22 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(data);
    memory_lock();
    struct record *record = record_at(address);
    CUresult result = record ? attribute_of(record, attribute, address, data) : CUDA_ERROR_INVALID_VALUE;
    memory_unlock();
    return result;
}

/* What several attributes are for an unknown address: zero, and -2 for the device. */
static void answer_unknown(int attribute, void *data)
{
    static const size_t sizes[] = {
        [CU_POINTER_ATTRIBUTE_CONTEXT] = 8,        [CU_POINTER_ATTRIBUTE_MEMORY_TYPE] = 4,
        [CU_POINTER_ATTRIBUTE_DEVICE_POINTER] = 8, [CU_POINTER_ATTRIBUTE_HOST_POINTER] = 8,
        [CU_POINTER_ATTRIBUTE_P2P_TOKENS] = 16,    [CU_POINTER_ATTRIBUTE_SYNC_MEMOPS] = 4,
        [CU_POINTER_ATTRIBUTE_BUFFER_ID] = 8,      [CU_POINTER_ATTRIBUTE_IS_MANAGED] = 4,
        [CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL] = 4, [CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = 4,
        [CU_POINTER_ATTRIBUTE_RANGE_START_ADDR] = 8, [CU_POINTER_ATTRIBUTE_RANGE_SIZE] = 8,
        [CU_POINTER_ATTRIBUTE_MAPPED] = 4,         [CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES] = 8,
        [CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE] = 4, [CU_POINTER_ATTRIBUTE_ACCESS_FLAGS] = 4,
        [CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = 8, [CU_POINTER_ATTRIBUTE_MAPPING_SIZE] = 8,
        [CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR] = 8, [CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID] = 8,
    };
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        PUT(int, -2);
    else if (attribute > 0 && attribute < (int)(sizeof sizes / sizeof sizes[0]))
        memset(data, 0, sizes[attribute]);
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(count && attributes && data);
    memory_lock();
    struct record *record = record_at(address);
    for (unsigned i = 0; i < count; i++) {
        if (!record || attribute_of(record, attributes[i], address, data[i]) != CUDA_SUCCESS)
            answer_unknown(attributes[i], data[i]);
    }
    memory_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    memory_lock();
    struct record *record = record_at(address);
    if (record)
        record->sync_operations = *(const int *)value;
    memory_unlock();
    return record ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- advice: taken, and without effect, since memory is where the processor is ------------------------------- */

static CUresult managed(CUdeviceptr address, size_t size)
{
    struct memory memory;
    bool known;
    ENTER(context);
    (void)context;
    REQUIRE_CU(size);
    CUresult result = memory_check(address, size, &memory, &known);
    if (result != CUDA_SUCCESS)
        return result;
    return known && memory.kind == MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device)
{
    (void)device;
    REQUIRE_CU(advice >= 1 && advice <= 6);
    return managed(address, size);
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation location)
{
    (void)location;
    return cuMemAdvise(address, size, advice, 0);
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    (void)device, (void)stream;
    return managed(address, size);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
                                      CUstream stream)
{
    (void)location, (void)flags, (void)stream;
    return managed(address, size);
}

EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    return cuMemPrefetchAsync(address, size, device, stream);
}

EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
                                           CUstream stream)
{
    return cuMemPrefetchAsync_v2(address, size, location, flags, stream);
}
