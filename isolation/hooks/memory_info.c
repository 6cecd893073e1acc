/* How much memory a program sees: its container's share. */
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"

/* Of a GPU that was not allocated to the container nothing is free. Either may be NULL: some programs ask for one of them. */
static CUresult limit_to_share(int gpu, size_t *free_bytes, size_t *total_bytes)
{
    uint64_t limit_bytes, used_bytes;
    CUresult result = charge_look(gpu, &limit_bytes, &used_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t left_bytes = used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
    if (free_bytes && *free_bytes > left_bytes)
        *free_bytes = (size_t)left_bytes;
    if (gpu >= 0 && total_bytes && *total_bytes > limit_bytes)
        *total_bytes = (size_t)limit_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    int gpu;
    pools_settle();
    CUresult result = REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = gpu_of_current(&gpu);
    return result == CUDA_SUCCESS ? limit_to_share(gpu, free_bytes, total_bytes) : result;
}

static unsigned short_of(size_t bytes)
{
    return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

/* The form of old programs, which has no room for more than 4 GiB. */
EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    size_t free_long, total_long;
    if (!free_bytes || !total_bytes)
        return REAL(cuMemGetInfo)(free_bytes, total_bytes);
    CUresult result = cuMemGetInfo_v2(&free_long, &total_long);
    if (result == CUDA_SUCCESS) {
        *free_bytes = short_of(free_long);
        *total_bytes = short_of(total_long);
    }
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    int gpu;
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CUDA_SUCCESS || !bytes)
        return result;
    result = gpu_of_device(device, &gpu);
    return result == CUDA_SUCCESS ? limit_to_share(gpu, NULL, bytes) : result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t total_bytes;
    if (!bytes)
        return REAL(cuDeviceTotalMem)(bytes, device);
    CUresult result = cuDeviceTotalMem_v2(&total_bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = short_of(total_bytes);
    return result;
}
