/* Answers of a library in which no stream ever has work; see cuda/stream/hooks.h. */
#include "cuda/stream/hooks.h"

#include <stdlib.h>

#define WEAK __attribute__((weak))

WEAK CUresult engine_context_created(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

WEAK void engine_context_ending(CUcontext context)
{
    (void)context;
}

WEAK CUresult engine_synchronize(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

WEAK CUresult engine_after(CUstream stream, void (*function)(void *), void *argument)
{
    (void)stream;
    function(argument);
    return CUDA_SUCCESS;
}

WEAK CUresult engine_work(CUstream stream, uint64_t duration_ns, void (*function)(void *), void *argument)
{
    (void)duration_ns;
    return engine_after(stream, function, argument);
}

WEAK CUresult engine_stream_synchronize(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

WEAK CUresult engine_stream_context(CUstream stream, CUcontext *context)
{
    (void)stream;
    return context_current(context);
}

WEAK bool engine_capture_forbids(bool in_relaxed_threads)
{
    (void)in_relaxed_threads;
    return false;
}

WEAK CUresult engine_capture_alloc(CUstream stream, size_t bytes, CUdeviceptr *address)
{
    (void)stream, (void)bytes, (void)address;
    return CUDA_ERROR_NOT_READY;
}

WEAK CUresult engine_capture_free(CUstream stream, CUdeviceptr address)
{
    (void)stream, (void)address;
    return CUDA_ERROR_NOT_READY;
}

static void apply(void *argument)
{
    memset_apply(argument);
    free(argument);
}

WEAK CUresult engine_memset(CUstream stream, const struct memset_rows *rows)
{
    static const uint64_t BYTES_PER_US = 300000;
    struct memset_rows *copy = malloc(sizeof *copy);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *rows;
    uint64_t bytes = rows->width * rows->height * rows->element_bytes;
    CUresult result = engine_work(stream, bytes * 1000 / BYTES_PER_US, apply, copy);
    if (result != CUDA_SUCCESS)
        free(copy);
    return result;
}
