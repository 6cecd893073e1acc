#define _GNU_SOURCE
#include "driver/gpus.h"

#include <stdatomic.h>
#include <string.h>

#include "driver/real.h"

enum { DEVICES_MAX = 64, UNKNOWN = 0, ANSWER_BASE = 2 };

/* Index + ANSWER_BASE (so GPU_NOT_ALLOCATED is 1), by device; 0: not asked yet. */
static _Atomic int answers[DEVICES_MAX];

/* By hand: every process does it as it begins, and a printf for each byte is a tenth of what that takes here. */
static void spell(const CUuuid *uuid, const char prefix[4], char text[48])
{
    static const char digits[] = "0123456789abcdef";
    char *at = text;
    memcpy(at, prefix, 4);
    at += 4;
    for (int i = 0; i < 16; i++) {
        unsigned char byte = (unsigned char)uuid->bytes[i];
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = digits[byte >> 4];
        *at++ = digits[byte & 15];
    }
    *at = '\0';
}

/* CUDA returns the sixteen bytes only: a slice of a GPU (MIG) differs from a GPU by NVML's prefix. */
static CUresult ask(CUdevice device, int *gpu)
{
    const struct container *container = container_here();
    CUuuid uuid;
    char text[48];
    if (!container)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = real_exists(FUNCTION_cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, device)
                                                              : REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS)
        return result;
    spell(&uuid, "GPU-", text);
    *gpu = container_gpu(container, text);
    if (*gpu < 0) {
        spell(&uuid, "MIG-", text);
        *gpu = container_gpu(container, text);
    }
    return CUDA_SUCCESS;
}

CUresult gpu_of_device(CUdevice device, int *gpu)
{
    bool kept = device >= 0 && device < DEVICES_MAX;
    int known = kept ? atomic_load_explicit(&answers[device], memory_order_relaxed) : UNKNOWN;
    if (known != UNKNOWN) {
        *gpu = known - ANSWER_BASE;
        return CUDA_SUCCESS;
    }
    CUresult result = ask(device, gpu);
    if (result == CUDA_SUCCESS && kept)
        atomic_store_explicit(&answers[device], *gpu + ANSWER_BASE, memory_order_relaxed);
    return result;
}

CUresult gpu_of_current(int *gpu)
{
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    return result == CUDA_SUCCESS ? gpu_of_device(device, gpu) : result;
}

static CUresult device_of_context(CUcontext context, CUdevice *device)
{
    CUcontext current, popped;
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return REAL(cuCtxGetDevice)(device);
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

CUresult device_of_stream(CUstream stream, CUdevice *device)
{
    CUcontext context;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return REAL(cuCtxGetDevice)(device);
    CUresult result = REAL(cuStreamGetCtx)(stream, &context);
    return result == CUDA_SUCCESS ? device_of_context(context, device) : result;
}

CUresult gpu_of_stream(CUstream stream, int *gpu)
{
    CUdevice device;
    CUresult result = device_of_stream(stream, &device);
    return result == CUDA_SUCCESS ? gpu_of_device(device, gpu) : result;
}

CUresult gpu_of_location(const CUmemLocation *location, int *gpu)
{
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return gpu_of_device(location->id, gpu);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return gpu_of_device(location->id & 0xff, gpu);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *gpu = LOCATION_HOST;
        return CUDA_SUCCESS;
    default: /* nowhere in particular: where the thread works */
        return gpu_of_current(gpu);
    }
}
