/* What functions and kernels say of themselves, and how many of their blocks a multiprocessor holds. */
#include <string.h>

#include "cuda/module/modules.h"

/* Plausible figures of every GPU since compute capability 7: none of our kernels has code to count. */
enum { THREADS_PER_MULTIPROCESSOR = 2048, BLOCKS_PER_MULTIPROCESSOR = 32, SHARED_PER_MULTIPROCESSOR = 96 << 10,
       SHARED_PER_BLOCK = 48 << 10, SHARED_PER_BLOCK_OPT_IN = 96 << 10, REGISTERS = 32 };

unsigned function_threads_max(CUfunction function)
{
    return function->image->threads_max;
}

unsigned blocks_per_multiprocessor(CUfunction function, unsigned threads, size_t dynamic_bytes)
{
    size_t shared = dynamic_bytes + function->image->shared_bytes, warps = (threads + 31) / 32;
    if (!threads || threads > function_threads_max(function) || shared > SHARED_PER_MULTIPROCESSOR)
        return 0;
    unsigned blocks = (unsigned)(THREADS_PER_MULTIPROCESSOR / (warps * 32));
    if (blocks > BLOCKS_PER_MULTIPROCESSOR)
        blocks = BLOCKS_PER_MULTIPROCESSOR;
    if (shared && blocks > SHARED_PER_MULTIPROCESSOR / shared)
        blocks = (unsigned)(SHARED_PER_MULTIPROCESSOR / shared);
    return blocks;
}

/* As if every program were compiled for the GPU that it runs on; programs choose among their kernels by this. */
static int generation(CUcontext context)
{
    const struct gpu *gpu = &context->device->gpu;
    return (int)(gpu->compute_major * 10 + gpu->compute_minor);
}

static CUresult get_attribute(int *value, int attribute, CUfunction function)
{
    CUcontext context = NULL;
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(value && attribute >= 0 && attribute < FUNCTION_ATTRIBUTES);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)function_threads_max(function);
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)function->image->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = REGISTERS;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        if (context_current(&context) != CUDA_SUCCESS)
            context = function->module->context;
        *value = context ? generation(context) : 0;
        break;
    default:
        *value = function->attributes[attribute];
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, int attribute, int value)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && attribute < FUNCTION_ATTRIBUTES);
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        REQUIRE_CU(value >= 0 && value <= SHARED_PER_BLOCK_OPT_IN);
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        REQUIRE_CU(value >= -1 && value <= 100);
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    return get_attribute(value, attribute, function);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    return set_attribute(function, attribute, value);
}

static CUfunction of_kernel(CUkernel kernel)
{
    return (CUfunction)(void *)kernel;
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
    return device_get(device) ? get_attribute(value, attribute, of_kernel(kernel)) : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    return device_get(device) ? set_attribute(of_kernel(kernel), attribute, value) : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(config >= 0 && config <= 3);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
    return device_get(device) ? cuFuncSetCacheConfig(of_kernel(kernel), config) : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction function, int config)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(config >= 0 && config <= 2);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(module);
    *module = function->module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction function)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(name);
    *name = function->image->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    return cuFuncGetName(name, of_kernel(kernel));
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function->image->parameters_known)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE_CU(offset && index < function->image->parameter_count);
    *offset = function->image->parameters[index].offset;
    if (size)
        *size = function->image->parameters[index].size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    return cuFuncGetParamInfo(of_kernel(kernel), index, offset, size);
}

EXPORT CUresult cuFuncGetParamCount(CUfunction function, size_t *count)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(count);
    *count = function->image->parameter_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count)
{
    return cuFuncGetParamCount(of_kernel(kernel), count);
}

/* There is nothing to load later. */
EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction function)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(state);
    *state = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function)
{
    return function_valid(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- occupancy ---------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                                     size_t dynamic_bytes, unsigned flags)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(blocks && threads > 0 && flags <= 1);
    *blocks = (int)blocks_per_multiprocessor(function, (unsigned)threads, dynamic_bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t dynamic_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_bytes, 0);
}

typedef size_t (*CUoccupancyB2DSize)(int threads);

/* The largest block of those that fill a multiprocessor best. */
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                          CUoccupancyB2DSize bytes_of, size_t dynamic_bytes, int limit,
                                                          unsigned flags)
{
    ENTER(context);
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(grid && block && limit >= 0 && flags <= 1);
    unsigned most = function_threads_max(function), best = 0;
    int multiprocessors = 1;
    if (limit && (unsigned)limit < most)
        most = (unsigned)limit;
    *block = 0;
    *grid = 0;
    cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device->ordinal);
    for (unsigned threads = most; threads; threads = threads > 32 ? (threads - 1) / 32 * 32 : 0) {
        unsigned blocks = blocks_per_multiprocessor(function, threads, bytes_of ? bytes_of((int)threads) : dynamic_bytes);
        if (blocks * threads > best) {
            best = blocks * threads;
            *block = (int)threads;
            *grid = (int)blocks * multiprocessors;
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize bytes_of,
                                                 size_t dynamic_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, bytes_of, dynamic_bytes, limit, 0);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(bytes && blocks > 0 && threads > 0);
    size_t each = (size_t)SHARED_PER_MULTIPROCESSOR / (size_t)blocks;
    *bytes = each > SHARED_PER_BLOCK ? SHARED_PER_BLOCK : each;
    return blocks_per_multiprocessor(function, (unsigned)threads, 0) >= (unsigned)blocks ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_INVALID_VALUE;
}
