/* Processes that hold memory of a GPU: for now those that the description names. */
#include <string.h>

#include "answers.h"
#include "node.h"

enum kind { COMPUTE, GRAPHICS, MPS };

/* Processes of one kind in a row; MPS serves nobody here. */
static unsigned pick(const struct gpu *gpu, enum kind kind, const struct process *picked[PROCESSES_MAX])
{
    unsigned count = 0;
    for (uint32_t i = 0; i < gpu->process_count && kind != MPS; i++) {
        if (gpu->processes[i].graphics == (kind == GRAPHICS))
            picked[count++] = &gpu->processes[i];
    }
    return count;
}

/* Fills the caller's list of `size`-byte elements; both forms begin with pid and memory. */
static nvmlReturn_t list(nvmlDevice_t device, enum kind kind, unsigned *count, void *list, size_t size,
                         const char *caller)
{
    struct gpu gpu;
    const struct process *picked[PROCESSES_MAX];
    REQUIRE(count && (list || !*count));
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status != NVML_SUCCESS)
        return status;
    unsigned room = *count, found = pick(&gpu, kind, picked);
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        nvmlProcessInfo_t info = {.pid = picked[i]->pid, .usedGpuMemory = picked[i]->used_mib * MIB,
                                  .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
        memcpy((char *)list + i * size, &info, size);
    }
    return NVML_SUCCESS;
}

#define LIST(name, kind)                                                                                       \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)                \
    {                                                                                                          \
        return list(device, kind, count, infos, sizeof *infos, __func__);                                      \
    }                                                                                                          \
    EXPORT nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)              \
    {                                                                                                          \
        return list(device, kind, count, infos, sizeof *infos, __func__);                                      \
    }                                                                                                          \
    EXPORT nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)              \
    {                                                                                                          \
        return list(device, kind, count, infos, sizeof *infos, __func__);                                      \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *details)
{
    const struct process *picked[PROCESSES_MAX];
    REQUIRE(details);
    READ_GPU(device, gpu);
    if (details->version != (sizeof *details | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(details->mode <= MPS && (details->procArray || !details->numProcArrayEntries));
    unsigned room = details->numProcArrayEntries, found = pick(&gpu, (enum kind)details->mode, picked);
    details->numProcArrayEntries = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        details->procArray[i] =
            (nvmlProcessDetail_v1_t){.pid = picked[i]->pid, .usedGpuMemory = picked[i]->used_mib * MIB,
                                     .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
    }
    return NVML_SUCCESS;
}

/* The GPU's utilization, dealt out evenly: a description does not say whose it is. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since_us)
{
    const struct process *picked[PROCESSES_MAX];
    uint64_t now_us = (uint64_t)wall_clock_us();
    REQUIRE(count);
    READ_GPU(device, gpu);
    unsigned room = *count, found = pick(&gpu, COMPUTE, picked);
    *count = found;
    if (!found || !gpu.gpu_percent || since_us >= now_us)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || room < found)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = picked[i]->pid, .timeStamp = now_us,
                                                      .smUtil = gpu.gpu_percent / found,
                                                      .memUtil = gpu.memory_percent / found};
    }
    return NVML_SUCCESS;
}
