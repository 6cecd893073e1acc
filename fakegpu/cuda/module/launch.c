/* Launching kernels, and host functions in a stream's order. */
#include <stdlib.h>
#include <string.h>

#include "cuda/module/growth.h"
#include "cuda/module/modules.h"
#include "cuda/stream/capturing.h"

/* The parts of a launch's configuration; attributes are 72 bytes each: their kind, padding, and 64 bytes of value. */
typedef struct {
    int id;
    char padding[4];
    union { char bytes[64]; int cooperative; } value;
} CUlaunchAttribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;
_Static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "launch configuration");
typedef struct {
    CUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

enum { CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2 };
enum { PARAMETERS_END = 0, PARAMETERS_BUFFER = 1, PARAMETERS_BUFFER_BYTES = 2 };
/* A kernel takes that long at least. */
#define KERNEL_LEAST_NS UINT64_C(1000)

/* The value of a 64-bit parameter, as either way of passing has it. */
static CUresult parameter(const struct launch *launch, unsigned index, uint64_t *value)
{
    uint32_t offset = launch->function->image->parameters[index].offset;
    if (launch->parameters && launch->parameters[index]) {
        memcpy(value, launch->parameters[index], sizeof *value);
        return CUDA_SUCCESS;
    }
    const char *buffer = NULL;
    size_t bytes = 0;
    for (void **at = launch->extra; at && (uintptr_t)*at != PARAMETERS_END; at += 2) {
        if ((uintptr_t)*at == PARAMETERS_BUFFER)
            buffer = at[1];
        else if ((uintptr_t)*at == PARAMETERS_BUFFER_BYTES)
            bytes = *(size_t *)at[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!buffer || bytes < offset + sizeof *value)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, buffer + offset, sizeof *value);
    return CUDA_SUCCESS;
}

CUresult launch_check(CUcontext context, const struct launch *launch, uint64_t *duration_ns)
{
    CUfunction function = launch->function;
    const unsigned *grid = launch->grid, *block = launch->block;
    if (!function_valid(function) || (function->module->context && function->module->context != context))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    REQUIRE_CU(grid[0] && grid[1] && grid[2] && grid[0] <= INT32_MAX && grid[1] <= 65535 && grid[2] <= 65535);
    REQUIRE_CU(threads && block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 && threads <= 1024);
    REQUIRE_CU(!launch->parameters || !launch->extra);
    REQUIRE_CU((int64_t)launch->shared_bytes <= function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]);
    if (launch->cooperative) {
        int multiprocessors = 1;
        cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device->ordinal);
        uint64_t room = (uint64_t)multiprocessors * blocks_per_multiprocessor(function, (unsigned)threads, launch->shared_bytes);
        if ((uint64_t)grid[0] * grid[1] * grid[2] > room)
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    *duration_ns = function->image->duration_ns;
    if (function->image->duration_parameter >= 0) {
        CUresult result = parameter(launch, (unsigned)function->image->duration_parameter, duration_ns);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (*duration_ns < KERNEL_LEAST_NS)
        *duration_ns = KERNEL_LEAST_NS;
    return CUDA_SUCCESS;
}

static CUresult launch_on(CUstream handle, const struct launch *launch)
{
    uint64_t duration_ns;
    STREAM(handle, stream);
    CUresult result = launch_check(stream->context, launch, &duration_ns);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return capture_kernel(stream, launch);
    result = growth_launch(stream->context, launch->function);
    if (result != CUDA_SUCCESS)
        return result;
    return stream_give(stream, &(struct work){.kind = WORK_TIMED, .is_launch = true, .duration_ns = duration_ns});
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **parameters, void **extra)
{
    return launch_on(stream, &(struct launch){.function = function,
                                              .grid = {grid_x, grid_y, grid_z},
                                              .block = {block_x, block_y, block_z},
                                              .shared_bytes = shared_bytes,
                                              .parameters = parameters,
                                              .extra = extra});
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          CUstream stream, void **parameters)
{
    return launch_on(stream, &(struct launch){.function = function,
                                              .grid = {grid_x, grid_y, grid_z},
                                              .block = {block_x, block_y, block_z},
                                              .shared_bytes = shared_bytes,
                                              .parameters = parameters,
                                              .cooperative = true});
}

/* Of the attributes only "cooperative" changes anything here. */
static CUresult launch_with(const CUlaunchConfig *config, CUstream stream, CUfunction function, void **parameters, void **extra)
{
    REQUIRE_CU(config && (!config->numAttrs || config->attrs));
    struct launch launch = {.function = function,
                            .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                            .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                            .shared_bytes = config->sharedMemBytes,
                            .parameters = parameters,
                            .extra = extra};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            launch.cooperative = config->attrs[i].value.cooperative;
    }
    return launch_on(stream, &launch);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return launch_with(config, config ? config->hStream : NULL, function, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return launch_with(config, config ? per_thread(config->hStream) : NULL, function, parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags)
{
    (void)launches, (void)count, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED; /* gone from the real driver too */
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                                    void **parameters, void **extra)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, per_thread(stream),
                          parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                               CUstream stream, void **parameters)
{
    return cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                     per_thread(stream), parameters);
}

/* --- launches of earlier days, of what a function was set to ------------------------------------------------------ */

EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(x > 0 && y > 0 && z > 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    REQUIRE_CU(width > 0 && height > 0);
    if (function_valid(function) && function->image->duration_parameter >= 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return cuLaunchGridAsync(function, width, height, NULL);
}

EXPORT CUresult cuLaunch(CUfunction function)
{
    return cuLaunchGrid(function, 1, 1);
}

/* --- host functions --------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
    STREAM(handle, stream);
    REQUIRE_CU(function);
    if (stream->capture)
        return capture_host(stream, function, argument);
    return stream_give(stream, &(struct work){.kind = WORK_HOST, .call = function, .argument = argument});
}

EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *argument)
{
    return cuLaunchHostFunc(per_thread(stream), function, argument);
}

/* How the program's thread waits for the function is a hint. */
EXPORT CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *argument, unsigned mode)
{
    (void)mode;
    return cuLaunchHostFunc(stream, function, argument);
}

EXPORT CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn function, void *argument, unsigned mode)
{
    (void)mode;
    return cuLaunchHostFunc(per_thread(stream), function, argument);
}

struct callback {
    CUstream stream;
    CUstreamCallback function;
    void *argument;
};

static void call_back(void *argument)
{
    struct callback *callback = argument;
    callback->function(callback->stream, CUDA_SUCCESS, callback->argument);
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *argument, unsigned flags)
{
    STREAM(handle, stream);
    REQUIRE_CU(function && !flags);
    if (stream->capture)
        return capture_unsupported(stream);
    struct callback *callback = malloc(sizeof *callback);
    if (!callback)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *callback = (struct callback){handle, function, argument};
    struct work work = {.kind = WORK_HOST, .call = call_back, .argument = callback, .argument_owned = true};
    CUresult result = stream_give(stream, &work);
    if (result != CUDA_SUCCESS)
        free(callback);
    return result;
}

EXPORT CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback function, void *argument, unsigned flags)
{
    return cuStreamAddCallback(per_thread(stream), function, argument, flags);
}
