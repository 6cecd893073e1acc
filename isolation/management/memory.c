/* A GPU's memory: the container's part of it. Of a GPU that was not allocated to the container nothing is free. */
#include "driver/real.h"
#include "management/management.h"

static nvmlReturn_t part(nvmlDevice_t device, uint64_t *total, uint64_t *free, uint64_t *used)
{
    const struct container *container;
    int gpu;
    nvmlReturn_t result = management_gpu(device, &container, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    uint64_t limit = gpu < 0 ? *total : container_memory_bytes(container, gpu);
    *total = limit < *total ? limit : *total;
    *used = gpu < 0 ? *total : management_used_bytes(container, gpu) + management_beyond_bytes(container, gpu, device);
    *used = *used < *total ? *used : *total;
    uint64_t left = *total - *used;
    /* What others took of the GPU beyond their part is not there for anybody. */
    if (*free < left)
        left = *free;
    *free = left;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    return result == NVML_SUCCESS ? part(device, &memory->total, &memory->free, &memory->used) : result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    memory->reserved = 0; /* what the driver keeps is not the container's */
    return part(device, &memory->total, &memory->free, &memory->used);
}
