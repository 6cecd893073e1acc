#include "cuda/module/growth.h"

#include "cuda/memory/records.h"

#define MIB (UINT64_C(1) << 20)
#define KIB (UINT64_C(1) << 10)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t whole_granules(uint64_t bytes)
{
    return (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
}

/* With the mutex: `*part_bytes` of what the context has grown by becomes at least `wanted_bytes`. */
static CUresult grow_to(CUcontext context, uint64_t *part_bytes, uint64_t wanted_bytes)
{
    if (wanted_bytes <= *part_bytes)
        return CUDA_SUCCESS;
    uint64_t more_bytes = wanted_bytes - *part_bytes;
    CUresult result = device_reserve(context->device, more_bytes);
    if (result == CUDA_SUCCESS) {
        context->grown_bytes += more_bytes;
        *part_bytes = wanted_bytes;
    }
    return result;
}

/* One for each thread that the GPU can run at once; the usual size is part of a context's cost. An H200 took them at the next launch: 1,848 MiB for
 * 8 KiB, 3,960 for 16. The heap and printf's buffer took nothing, whatever their limits. */
static uint64_t stacks_bytes(CUcontext context)
{
    enum { USUAL_BYTES = 1024, MULTIPROCESSOR_COUNT = 16, MAX_THREADS_PER_MULTIPROCESSOR = 39, STACK_SIZE = 0 };
    int multiprocessors = 0, threads = 0;
    size_t each_bytes = context->limits[STACK_SIZE];
    if (each_bytes <= USUAL_BYTES)
        return 0;
    cuDeviceGetAttribute(&multiprocessors, MULTIPROCESSOR_COUNT, context->device->ordinal);
    cuDeviceGetAttribute(&threads, MAX_THREADS_PER_MULTIPROCESSOR, context->device->ordinal);
    return (each_bytes - USUAL_BYTES) * (uint64_t)multiprocessors * (unsigned)threads;
}

/* An H200 took 92 MiB with PyTorch's first kernel, 102 in all once cuBLAS, cuDNN, cuFFT and cuSOLVER had run theirs. Code of a library that
 * is used in several contexts counts in the last one that began to. */
static CUresult take_code(CUcontext context, CUfunction function)
{
    CUmodule module = function->module;
    CUresult result = CUDA_SUCCESS;
    if (atomic_load_explicit(&module->code_in, memory_order_relaxed) == context->id)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (atomic_load(&module->code_in) != context->id) {
        bool first = !context->code_bytes;
        result = grow_to(context, &context->code_bytes,
                         first ? context->device->gpu.launch_mib * MIB : context->code_bytes + GRANULE_BYTES);
        if (result == CUDA_SUCCESS)
            atomic_store(&module->code_in, context->id);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult growth_launch(CUcontext context, CUfunction function)
{
    uint64_t wanted_bytes = stacks_bytes(context);
    CUresult result = CUDA_SUCCESS;
    if (wanted_bytes) {
        pthread_mutex_lock(&mutex);
        result = grow_to(context, &context->stacks_bytes, wanted_bytes);
        pthread_mutex_unlock(&mutex);
    }
    return result == CUDA_SUCCESS && context->device->gpu.grows ? take_code(context, function) : result;
}

/* An H200: 16 MiB for 32 streams, which came back with none of them. */
CUresult growth_stream(CUcontext context)
{
    pthread_mutex_lock(&mutex);
    uint64_t wanted_bytes = whole_granules((context->streams_alive + 1) * (context->device->gpu.stream_kib * KIB));
    CUresult result = grow_to(context, &context->streams_bytes, wanted_bytes);
    context->streams_alive += result == CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return result;
}

void growth_stream_gone(CUcontext context)
{
    pthread_mutex_lock(&mutex);
    context->streams_alive--;
    pthread_mutex_unlock(&mutex);
}

/* An H200 used 128 MiB for 64 that were written, and kept 64 of them when they were freed. */
CUresult growth_written(CUcontext context, CUdeviceptr address)
{
    if (!context->device->gpu.grows)
        return CUDA_SUCCESS;
    memory_lock();
    struct record *record = record_at(address);
    CUresult result = CUDA_SUCCESS;
    if (record && record->memory.kind == MEMORY_MANAGED && !record->written) {
        pthread_mutex_lock(&mutex);
        result = grow_to(context, &context->managed_bytes, context->managed_bytes + whole_granules(record->memory.size));
        pthread_mutex_unlock(&mutex);
        record->written = result == CUDA_SUCCESS;
    }
    memory_unlock();
    return result;
}

/* An H200: 518 MiB, by NVML's count for the process, and 523.6 for its second one. */
uint64_t growth_context_bytes(const struct device *device)
{
    uint64_t further_bytes = atomic_load(&device->contexts) ? device->gpu.further_context_kib * KIB : 0;
    return context_cost_bytes(device) + further_bytes;
}
