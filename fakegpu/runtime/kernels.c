/* Kernels: what a program's binary registers when it is loaded, and launches. Images are loaded into the driver at the first launch
 * of one of their kernels, as NVIDIA's runtime does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

struct image {
    const void *data;
    CUlibrary library;
};

/* A function or variable of the program that stands for one of the GPU's. */
struct symbol {
    const void *host;
    const char *name;
    struct image *image;
    CUkernel kernel;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *symbols;

static int by_host(const void *one, const void *other)
{
    uintptr_t left = (uintptr_t)((const struct symbol *)one)->host, right = (uintptr_t)((const struct symbol *)other)->host;
    return (left > right) - (left < right);
}

static void add(void **image, const void *host, const char *name)
{
    struct symbol *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = (struct symbol){host, name, (struct image *)image, NULL};
    pthread_mutex_lock(&mutex);
    struct symbol **kept = tsearch(made, &symbols, by_host);
    if (kept && *kept != made) {
        **kept = *made; /* a library that was unloaded had something else there */
        free(made);
    }
    pthread_mutex_unlock(&mutex);
}

/* With the mutex held. NULL: nothing of a program's binary. */
static CUresult find(const void *host, struct symbol **found)
{
    struct symbol **kept = tfind(&(struct symbol){.host = host}, &symbols, by_host);
    *found = kept ? *kept : NULL;
    if (!*found || (*found)->image->library)
        return CUDA_SUCCESS;
    return cuLibraryLoadData(&(*found)->image->library, (*found)->image->data, NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult kernel_handle(const void *function, CUkernel *kernel)
{
    struct symbol *symbol;
    pthread_mutex_lock(&mutex);
    CUresult result = find(function, &symbol);
    if (result == CUDA_SUCCESS && symbol && !symbol->kernel)
        result = cuLibraryGetKernel(&symbol->kernel, symbol->image->library, symbol->name);
    if (result == CUDA_SUCCESS)
        *kernel = symbol ? symbol->kernel : (CUkernel)(uintptr_t)function;
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult kernel_of(const void *function, CUfunction *found)
{
    CUkernel kernel;
    CUresult result = kernel_handle(function, &kernel);
    return result == CUDA_SUCCESS ? cuKernelGetFunction(found, kernel) : result;
}

/* --- what compilers call, under names and with arguments that they agree on --------------------------------------------- */

EXPORT void **__cudaRegisterFatBinary(void *data)
{
    struct image *image = calloc(1, sizeof *image);
    if (!image)
        abort();
    image->data = data;
    return (void **)image;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **image) { (void)image; }
EXPORT void __cudaUnregisterFatBinary(void **image) { (void)image; /* at the program's end, when the driver may be gone */ }
EXPORT char __cudaInitModule(void **image) { return (void)image, 1; }

EXPORT void __cudaRegisterFunction(void **image, const char *host, char *device, const char *name, int threads, uint3 *thread, uint3 *block,
                                   dim3 *block_shape, dim3 *grid_shape, int *warp)
{
    (void)device, (void)threads, (void)thread, (void)block, (void)block_shape, (void)grid_shape, (void)warp;
    add(image, host, name);
}

EXPORT void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global)
{
    (void)device, (void)external, (void)bytes, (void)constant, (void)global;
    add(image, host, name);
}

/* Between a launch's <<<...>>> and the call that it makes. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configured;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream)
{
    configured.grid = grid;
    configured.block = block;
    configured.shared_bytes = shared_bytes;
    configured.stream = stream;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    *grid = configured.grid;
    *block = configured.block;
    *shared_bytes = configured.shared_bytes;
    *(cudaStream_t *)stream = configured.stream;
    return cudaSuccess;
}

/* --- launches -------------------------------------------------------------------------------------------------------- */

static cudaError_t launch(const void *function, const cudaLaunchConfig_t *with, void **arguments)
{
    CUfunction kernel;
    cudaError_t error = ready();
    if (!error)
        error = (cudaError_t)kernel_of(function, &kernel);
    if (!error)
        error = (cudaError_t)cuLaunchKernelEx(&(CUlaunchConfig){.gridDimX = with->gridDim.x,
                                                                .gridDimY = with->gridDim.y,
                                                                .gridDimZ = with->gridDim.z,
                                                                .blockDimX = with->blockDim.x,
                                                                .blockDimY = with->blockDim.y,
                                                                .blockDimZ = with->blockDim.z,
                                                                .sharedMemBytes = (unsigned)with->dynamicSmemBytes,
                                                                .hStream = with->stream,
                                                                .attrs = (CUlaunchAttribute *)with->attrs,
                                                                .numAttrs = with->numAttrs},
                                              kernel, arguments, NULL);
    return keep(error);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *with, const void *function, void **arguments)
{
    return launch(function, with, arguments);
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream)
{
    return launch(function, &(cudaLaunchConfig_t){grid, block, shared_bytes, stream, NULL, 0}, arguments);
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                               cudaStream_t stream)
{
    cudaLaunchAttribute cooperative = {.id = cudaLaunchAttributeCooperative, .val.cooperative = 1};
    return launch(function, &(cudaLaunchConfig_t){grid, block, shared_bytes, stream, &cooperative, 1}, arguments);
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    cudaError_t error = ready();
    return keep(error ? (int)error : (int)kernel_handle(function, kernel));
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

#define PTX(...) #__VA_ARGS__

/* For the stand-ins of libraries: work of theirs, of which nothing but its time is seen. */
EXPORT int fakegpuLaunchAny(cudaStream_t stream)
{
    static const char text[] = PTX(.version 7.0 .target sm_70 .address_size 64 .visible .entry any() { ret; });
    static CUlibrary library;
    static CUkernel kernel;
    CUresult result = (CUresult)ready();
    pthread_mutex_lock(&mutex);
    if (result == CUDA_SUCCESS && !kernel) {
        result = cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0);
        if (result == CUDA_SUCCESS)
            result = cuLibraryGetKernel(&kernel, library, "any");
    }
    pthread_mutex_unlock(&mutex);
    return result ? (int)keep(result) : (int)cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, stream);
}

/* --- what is asked of kernels ------------------------------------------------------------------------------------------ */

/* A call about the function that a kernel is. */
#define OF_KERNEL(signature, call)                                                                                     \
    EXPORT cudaError_t signature                                                                                       \
    {                                                                                                                  \
        CUfunction kernel = NULL;                                                                                      \
        cudaError_t unready = ready();                                                                                 \
        int error = unready ? (int)unready : (int)kernel_of(function, &kernel);                                        \
        return keep(error ? error : (int)(call));                                                                      \
    }

static CUresult attributes_of(CUfunction kernel, struct cudaFuncAttributes *attributes)
{
    int values[CU_FUNC_ATTRIBUTE_MAX] = {0};
    for (int i = 0; i <= CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT; i++) {
        CUresult result = cuFuncGetAttribute(&values[i], (CUfunction_attribute)i, kernel);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *attributes = (struct cudaFuncAttributes){
        .sharedSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES],
        .constSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES],
        .localSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES],
        .maxThreadsPerBlock = values[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .numRegs = values[CU_FUNC_ATTRIBUTE_NUM_REGS],
        .ptxVersion = values[CU_FUNC_ATTRIBUTE_PTX_VERSION],
        .binaryVersion = values[CU_FUNC_ATTRIBUTE_BINARY_VERSION],
        .maxDynamicSharedSizeBytes = values[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES],
        .preferredShmemCarveout = values[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT],
    };
    return CUDA_SUCCESS;
}

OF_KERNEL(cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function), attributes_of(kernel, attributes))
OF_KERNEL(cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value),
          cuFuncSetAttribute(kernel, (CUfunction_attribute)attribute, value))
OF_KERNEL(cudaKernelSetAttributeForDevice(cudaKernel_t function, enum cudaFuncAttribute attribute, int value, int device),
          ((void)device, cuFuncSetAttribute(kernel, (CUfunction_attribute)attribute, value)))
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t bytes),
          cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, bytes))
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t bytes, unsigned flags),
          cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, bytes, flags))

/* --- variables and libraries -------------------------------------------------------------------------------------------- */

static CUresult address_of(const void *variable, CUdeviceptr *address)
{
    struct symbol *symbol;
    pthread_mutex_lock(&mutex);
    CUresult result = find(variable, &symbol);
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS && !symbol)
        result = (CUresult)cudaErrorInvalidSymbol;
    return result == CUDA_SUCCESS ? cuLibraryGetGlobal(address, NULL, symbol->image->library, symbol->name) : result;
}

IN_CONTEXT(cudaGetSymbolAddress(void **address, const void *variable), address_of(variable, (CUdeviceptr *)address))

EXPORT cudaError_t cudaMemcpyToSymbol(const void *variable, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind)
{
    void *address;
    cudaError_t error = cudaGetSymbolAddress(&address, variable);
    return error ? error : cudaMemcpy((char *)address + offset, from, bytes, kind);
}

#define OPTIONS enum cudaJitOption *jit, void **jit_values, unsigned jits, enum cudaLibraryOption *options, void **values, unsigned count
#define OPTIONS_GIVEN (CUjit_option *)jit, jit_values, jits, (CUlibraryOption *)options, values, count
IN_CONTEXT(cudaLibraryLoadData(cudaLibrary_t *library, const void *data, OPTIONS), cuLibraryLoadData(library, data, OPTIONS_GIVEN))
IN_CONTEXT(cudaLibraryLoadFromFile(cudaLibrary_t *library, const char *file, OPTIONS), cuLibraryLoadFromFile(library, file, OPTIONS_GIVEN))
IN_CONTEXT(cudaLibraryUnload(cudaLibrary_t library), cuLibraryUnload(library))
IN_CONTEXT(cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name), cuLibraryGetKernel(kernel, library, name))
IN_CONTEXT(cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library), cuLibraryGetKernelCount(count, library))
IN_CONTEXT(cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library, const char *name),
           cuLibraryGetGlobal((CUdeviceptr *)address, bytes, library, name))
IN_CONTEXT(cudaLibraryGetManaged(void **address, size_t *bytes, cudaLibrary_t library, const char *name),
           cuLibraryGetManaged((CUdeviceptr *)address, bytes, library, name))
IN_CONTEXT(cudaLibraryGetUnifiedFunction(void **function, cudaLibrary_t library, const char *name),
           cuLibraryGetUnifiedFunction(function, library, name))
