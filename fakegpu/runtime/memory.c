/* Memory: of the GPU, pinned, of pools, shared between processes; copies and memsets. */
#include <string.h>

#include "runtime.h"

#define POINTER(address) ((CUdeviceptr)(uintptr_t)(address))

EXPORT cudaError_t cudaMalloc(void **address, size_t bytes)
{
    cudaError_t error = ready();
    *address = NULL;
    return keep(error || !bytes ? (int)error : (int)cuMemAlloc((CUdeviceptr *)address, bytes));
}

EXPORT cudaError_t cudaFree(void *address)
{
    cudaError_t error = ready(); /* cudaFree(NULL) is how many programs make their context */
    return keep(error || !address ? (int)error : (int)cuMemFree(POINTER(address)));
}

EXPORT cudaError_t cudaFreeHost(void *address)
{
    cudaError_t error = ready();
    return keep(error || !address ? (int)error : (int)cuMemFreeHost(address));
}

IN_CONTEXT(cudaMallocManaged(void **address, size_t bytes, unsigned flags), cuMemAllocManaged((CUdeviceptr *)address, bytes, flags))
IN_CONTEXT(cudaMallocHost(void **address, size_t bytes), cuMemAllocHost(address, bytes))
IN_CONTEXT(cudaHostAlloc(void **address, size_t bytes, unsigned flags), cuMemHostAlloc(address, bytes, flags))
IN_CONTEXT(cudaHostRegister(void *address, size_t bytes, unsigned flags), cuMemHostRegister(address, bytes, flags))
IN_CONTEXT(cudaHostUnregister(void *address), cuMemHostUnregister(address))
IN_CONTEXT(cudaMemGetInfo(size_t *free_bytes, size_t *total), cuMemGetInfo(free_bytes, total))

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
    unsigned kind = 0, managed = 0;
    int device = -2;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_HOST_POINTER};
    memset(attributes, 0, sizeof *attributes);
    void *answers[] = {&kind, &managed, &device, &attributes->devicePointer, &attributes->hostPointer};
    cudaError_t error = ready();
    if (!error)
        error = (cudaError_t)cuPointerGetAttributes(sizeof asked / sizeof *asked, asked, answers, POINTER(address));
    attributes->type = managed                        ? cudaMemoryTypeManaged
                 : kind == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                 : kind == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
    attributes->device = device;
    if (attributes->type == cudaMemoryTypeUnregistered)
        attributes->hostPointer = (void *)address;
    return keep(error);
}

/* --- pools ----------------------------------------------------------------------------------------------------------- */

IN_CONTEXT(cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream), cuMemAllocAsync((CUdeviceptr *)address, bytes, stream))
IN_CONTEXT(cudaFreeAsync(void *address, cudaStream_t stream), cuMemFreeAsync(POINTER(address), stream))
IN_CONTEXT(cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device), cuDeviceGetDefaultMemPool(pool, device))
IN_CONTEXT(cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value),
           cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value))
IN_CONTEXT(cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value),
           cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value))
IN_CONTEXT(cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count),
           cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)access, count))
IN_CONTEXT(cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes), cuMemPoolTrimTo(pool, bytes))
IN_CONTEXT(cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value),
           cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value))
IN_CONTEXT(cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value),
           cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value))

/* --- copies: addresses are unified, so what is where need not be said -------------------------------------------------- */

IN_CONTEXT(cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind),
           ((void)kind, cuMemcpy(POINTER(to), POINTER(from), bytes)))
IN_CONTEXT(cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
           ((void)kind, cuMemcpyAsync(POINTER(to), POINTER(from), bytes, stream)))
IN_CONTEXT(cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream),
           ((void)to_device, (void)from_device, cuMemcpyAsync(POINTER(to), POINTER(from), bytes, stream)))
IN_CONTEXT(cudaMemset(void *address, int value, size_t bytes), cuMemsetD8(POINTER(address), (unsigned char)value, bytes))
IN_CONTEXT(cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream),
           cuMemsetD8Async(POINTER(address), (unsigned char)value, bytes, stream))

IN_CONTEXT(cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                             enum cudaMemcpyKind kind, cudaStream_t stream),
           ((void)kind, cuMemcpy2DAsync(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                         .srcDevice = POINTER(from),
                                                         .srcPitch = from_pitch,
                                                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                         .dstDevice = POINTER(to),
                                                         .dstPitch = to_pitch,
                                                         .WidthInBytes = width,
                                                         .Height = height},
                                        stream)))

/* --- between processes: handles are bytes, the same ones ---------------------------------------------------------------- */

IN_CONTEXT(cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address), cuIpcGetMemHandle((CUipcMemHandle *)handle, POINTER(address)))
IN_CONTEXT(cudaIpcCloseMemHandle(void *address), cuIpcCloseMemHandle(POINTER(address)))
IN_CONTEXT(cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags),
           cuIpcOpenMemHandle((CUdeviceptr *)address, *(CUipcMemHandle *)&handle, flags))
IN_CONTEXT(cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event), cuIpcGetEventHandle((CUipcEventHandle *)handle, event))
IN_CONTEXT(cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle),
           cuIpcOpenEventHandle(event, *(CUipcEventHandle *)&handle))
