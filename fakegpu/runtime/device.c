/* Devices, errors, and each thread's context. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

static _Thread_local int device_chosen;
static _Thread_local cudaError_t last_error;

cudaError_t keep(int error)
{
    if (error)
        last_error = (cudaError_t)error;
    return (cudaError_t)error;
}

static CUresult use_device(int ordinal)
{
    CUcontext context;
    CUdevice device;
    CUresult result = cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

cudaError_t ready(void)
{
    CUcontext context = NULL;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuCtxGetCurrent(&context);
    if (result == CUDA_SUCCESS && !context)
        result = use_device(device_chosen);
    return (cudaError_t)result;
}

/* --- errors ---------------------------------------------------------------------------------------------------------- */

EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }

EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* In the driver's words; the runtime's own errors have none there. */
EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    const char *name = NULL;
    if (cuGetErrorName((CUresult)error, &name) != CUDA_SUCCESS)
        cuGetErrorName(CUDA_ERROR_UNKNOWN, &name);
    return name;
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (cuGetErrorString((CUresult)error, &text) != CUDA_SUCCESS)
        cuGetErrorString(CUDA_ERROR_UNKNOWN, &text);
    return text;
}

/* --- devices --------------------------------------------------------------------------------------------------------- */

EXPORT cudaError_t cudaDriverGetVersion(int *version) { return keep(cuDriverGetVersion(version)); }

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    CUresult result = cuInit(0);
    *count = 0;
    return keep(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    CUdevice current;
    *device = cuCtxGetDevice(&current) == CUDA_SUCCESS ? current : device_chosen;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = use_device(device);
    if (result == CUDA_SUCCESS)
        device_chosen = device;
    return keep(result);
}

IN_CONTEXT(cudaInitDevice(int device, unsigned device_flags, unsigned flags), ((void)device, (void)device_flags, (void)flags, 0))
IN_CONTEXT(cudaDeviceSynchronize(void), cuCtxSynchronize())
IN_CONTEXT(cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device),
           cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device))
IN_CONTEXT(cudaDeviceGetPCIBusId(char *id, int room, int device), cuDeviceGetPCIBusId(id, room, device))
IN_CONTEXT(cudaDeviceGetStreamPriorityRange(int *least, int *greatest), cuCtxGetStreamPriorityRange(least, greatest))
IN_CONTEXT(cudaDeviceCanAccessPeer(int *can, int device, int peer), cuDeviceCanAccessPeer(can, device, peer))
IN_CONTEXT(cudaDeviceGetLimit(size_t *value, enum cudaLimit limit), cuCtxGetLimit(value, (CUlimit)limit))
IN_CONTEXT(cudaDeviceSetLimit(enum cudaLimit limit, size_t value), cuCtxSetLimit((CUlimit)limit, value))

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    cudaError_t error = ready();
    if (!error)
        error = (cudaError_t)cuDevicePrimaryCtxRetain(&context, peer);
    return keep(error ? (int)error : (int)cuCtxEnablePeerAccess(context, flags));
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetName(properties->name, sizeof properties->name, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid((CUuuid *)&properties->uuid, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem(&properties->totalGlobalMem, device);
#define ATTRIBUTE(member, name)                                                                                        \
    do {                                                                                                               \
        int value = 0;                                                                                                 \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_##name, device);                                 \
        properties->member = (__typeof__(properties->member))value;                                                                \
    } while (0)
    ATTRIBUTE(major, COMPUTE_CAPABILITY_MAJOR);
    ATTRIBUTE(minor, COMPUTE_CAPABILITY_MINOR);
    ATTRIBUTE(multiProcessorCount, MULTIPROCESSOR_COUNT);
    ATTRIBUTE(warpSize, WARP_SIZE);
    ATTRIBUTE(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
    ATTRIBUTE(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    ATTRIBUTE(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    ATTRIBUTE(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
    ATTRIBUTE(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
    ATTRIBUTE(totalConstMem, TOTAL_CONSTANT_MEMORY);
    ATTRIBUTE(memPitch, MAX_PITCH);
    ATTRIBUTE(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
    ATTRIBUTE(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
    ATTRIBUTE(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
    ATTRIBUTE(maxThreadsDim[0], MAX_BLOCK_DIM_X);
    ATTRIBUTE(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
    ATTRIBUTE(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
    ATTRIBUTE(maxGridSize[0], MAX_GRID_DIM_X);
    ATTRIBUTE(maxGridSize[1], MAX_GRID_DIM_Y);
    ATTRIBUTE(maxGridSize[2], MAX_GRID_DIM_Z);
    ATTRIBUTE(textureAlignment, TEXTURE_ALIGNMENT);
    ATTRIBUTE(l2CacheSize, L2_CACHE_SIZE);
    ATTRIBUTE(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
    ATTRIBUTE(pciBusID, PCI_BUS_ID);
    ATTRIBUTE(pciDeviceID, PCI_DEVICE_ID);
    ATTRIBUTE(pciDomainID, PCI_DOMAIN_ID);
    ATTRIBUTE(ECCEnabled, ECC_ENABLED);
    ATTRIBUTE(asyncEngineCount, ASYNC_ENGINE_COUNT);
    ATTRIBUTE(unifiedAddressing, UNIFIED_ADDRESSING);
    ATTRIBUTE(canMapHostMemory, CAN_MAP_HOST_MEMORY);
    ATTRIBUTE(concurrentKernels, CONCURRENT_KERNELS);
    ATTRIBUTE(managedMemory, MANAGED_MEMORY);
    ATTRIBUTE(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
    ATTRIBUTE(cooperativeLaunch, COOPERATIVE_LAUNCH);
    ATTRIBUTE(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
    ATTRIBUTE(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
#undef ATTRIBUTE
    return keep(result);
}

IN_CONTEXT(cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                            enum cudaDriverEntryPointQueryResult *status),
           cuGetProcAddress(name, function, (int)version, flags, (CUdriverProcAddressQueryResult *)status))
EXPORT cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
