/* Takes and gives back memory of every kind from several threads at once, then looks whether the GPU is as before.
 *
 * Usage: FAKEGPU_NODE=FILE memory_hammer ROUNDS. Half of the threads share a context, the others create a new one each round
 * and leave to its end whatever they hold. Prints how many calls there were. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface/cuda_memory.h"

CUresult cuInit(unsigned flags);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags);
CUresult cuMemFreeHost(void *address);
CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void *address);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count);
CUresult cuMemsetD2D16_v2(CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *accesses, size_t count);
CUresult cuMemUnmap(CUdeviceptr address, size_t size);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address);

enum { THREADS = 4, FLOAT = 0x20 };
#define MIB ((size_t)1 << 20)

static atomic_ulong calls;
static int rounds;
static CUcontext shared;

#define GOOD(call)                                                                                         \
    do {                                                                                                   \
        CUresult result_ = (call);                                                                         \
        atomic_fetch_add(&calls, 1);                                                                       \
        if (result_ != CUDA_SUCCESS) {                                                                     \
            fprintf(stderr, "%d: %s: %d\n", __LINE__, #call, result_);                                     \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

static void plain(bool leave)
{
    CUdeviceptr small, large, managed, pitched;
    CUipcMemHandle handle;
    size_t pitch, size;
    GOOD(cuMemAlloc_v2(&small, 1000));
    GOOD(cuMemAlloc_v2(&large, 3 * MIB));
    GOOD(cuMemAllocManaged(&managed, 100, 1));
    GOOD(cuMemAllocPitch_v2(&pitched, &pitch, 100, 10, 4));
    GOOD(cuMemsetD8_v2(small, 1, 1000));
    GOOD(cuMemsetD8_v2(large + 1, 0, 3 * MIB - 1));
    GOOD(cuMemsetD2D16_v2(pitched, pitch, 7, 50, 10));
    GOOD(cuIpcGetMemHandle(&handle, small));
    GOOD(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, large + MIB));
    if (size != 3 * MIB)
        abort();
    if (leave)
        return;
    GOOD(cuMemFree_v2(small));
    GOOD(cuMemFree_v2(large));
    GOOD(cuMemFree_v2(managed));
    GOOD(cuMemFree_v2(pitched));
}

static void shaped(bool leave)
{
    const CUDA_ARRAY3D_DESCRIPTOR shape = {64, 32, 0, FLOAT, 2, 0};
    CUarray array;
    CUmipmappedArray mipmap;
    GOOD(cuArray3DCreate_v2(&array, &shape));
    GOOD(cuMipmappedArrayCreate(&mipmap, &shape, 9));
    if (leave)
        return;
    GOOD(cuArrayDestroy(array));
    GOOD(cuMipmappedArrayDestroy(mipmap));
}

static void host(bool leave)
{
    static _Thread_local char own[100];
    void *address;
    GOOD(cuMemHostAlloc(&address, 100, 0));
    memset(address, 1, 100);
    GOOD(cuMemHostRegister_v2(own, sizeof own, 0));
    GOOD(cuMemHostUnregister(own));
    if (!leave)
        GOOD(cuMemFreeHost(address));
}

/* Belongs to no context: never left. */
static void ordered(void)
{
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr first, second;
    CUmemoryPool pool;
    GOOD(cuMemAllocAsync(&first, 100, CU_STREAM_PER_THREAD));
    GOOD(cuMemPoolCreate(&pool, &properties));
    GOOD(cuMemAllocFromPoolAsync(&second, MIB, pool, CU_STREAM_PER_THREAD));
    GOOD(cuMemFreeAsync(first, CU_STREAM_PER_THREAD));
    GOOD(cuMemFreeAsync(second, CU_STREAM_PER_THREAD));
    GOOD(cuMemPoolDestroy(pool));
}

static void mapped(void)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    GOOD(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    GOOD(cuMemCreate(&handle, 4 * MIB, &properties, 0));
    GOOD(cuMemMap(address + 4 * MIB, 4 * MIB, 0, handle, 0));
    GOOD(cuMemRelease(handle));
    GOOD(cuMemSetAccess(address + 4 * MIB, 4 * MIB, &access, 1));
    GOOD(cuMemsetD8_v2(address + 5 * MIB, 3, 1000));
    GOOD(cuMemUnmap(address + 4 * MIB, 4 * MIB));
    GOOD(cuMemAddressFree(address, 8 * MIB));
}

static void *work(void *argument)
{
    bool own = (long)argument % 2;
    for (int round = 0; round < rounds; round++) {
        CUcontext context = shared;
        if (own)
            GOOD(cuCtxCreate_v2(&context, 0, 0));
        else
            GOOD(cuCtxSetCurrent(context));
        plain(own);
        shaped(own);
        host(own);
        ordered();
        mapped();
        if (own)
            GOOD(cuCtxDestroy_v2(context));
    }
    return NULL;
}

static size_t free_bytes(void)
{
    size_t now_free, total;
    GOOD(cuMemGetInfo_v2(&now_free, &total));
    return now_free;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    if (count != 2)
        return 2;
    rounds = atoi(arguments[1]);
    GOOD(cuInit(0));
    GOOD(cuDevicePrimaryCtxRetain(&shared, 0));
    GOOD(cuCtxSetCurrent(shared));
    size_t before = free_bytes();
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    GOOD(cuCtxSynchronize());
    if (free_bytes() != before) {
        fprintf(stderr, "%zu bytes are free, not %zu\n", free_bytes(), before);
        return 1;
    }
    GOOD(cuDevicePrimaryCtxRelease_v2(0));
    printf("%lu calls\n", atomic_load(&calls));
    return 0;
}
