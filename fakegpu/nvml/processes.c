/* Processes that hold memory of a GPU: those that the description names, and those of CUDA's stand-in. */
#include <string.h>

#include "description/mig.h"
#include "node/node.h"
#include "nvml/answers.h"
#include "nvml/state.h"

enum kind { COMPUTE, GRAPHICS, MPS };
enum { LISTED_MAX = PROCESSES_MAX + SLOTS_MAX };

struct listed {
    uint32_t pid;
    uint64_t used_bytes;
    unsigned busy_percent;
    uint32_t gpu_instance, compute_instance; /* UINT32_MAX without MIG */
};

static unsigned add_users(const struct gpu *gpu, uint64_t window_ns, struct listed listed[LISTED_MAX], unsigned count)
{
    struct gpu_user users[SLOTS_MAX];
    uint64_t held_bytes;
    unsigned found = gpu_users(gpu, window_ns, users, &held_bytes);
    for (unsigned i = 0; i < found && count < LISTED_MAX; i++) {
        if (users[i].pid)
            listed[count++] = (struct listed){(uint32_t)users[i].pid, users[i].held_bytes, users[i].busy_percent,
                                              gpu->gpu_instance, gpu->compute_instance};
    }
    return count;
}

/* Processes of one kind in a row; MPS serves nobody here. A process of another pid namespace is not listed, as the real
 * driver does. The description does not say whose its utilization is: it is dealt out evenly. */
static unsigned pick(const struct gpu *gpu, enum kind kind, uint64_t window_ns, struct listed listed[LISTED_MAX])
{
    struct gpu device;
    unsigned count = 0, described;
    for (uint32_t i = 0; i < gpu->process_count && kind != MPS; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->graphics == (kind == GRAPHICS))
            listed[count++] = (struct listed){process->pid, process->used_mib * MIB, 0, UINT32_MAX, UINT32_MAX};
    }
    described = count;
    for (unsigned i = 0; i < described; i++)
        listed[i].busy_percent = gpu->gpu_percent / described;
    if (kind != COMPUTE)
        return count;
    count = add_users(gpu, window_ns, listed, count);
    for (uint32_t i = 0; mig_device(gpu, i, &device); i++)
        count = add_users(&device, window_ns, listed, count);
    return count;
}

/* Fills the caller's list of `size`-byte elements; both forms begin with pid and memory. */
static nvmlReturn_t list(nvmlDevice_t device, enum kind kind, unsigned *count, void *list, size_t size,
                         const char *caller)
{
    struct gpu gpu;
    struct listed listed[LISTED_MAX];
    REQUIRE(count && (list || !*count));
    nvmlReturn_t status = node_device(device, &gpu, NULL, caller);
    if (status != NVML_SUCCESS)
        return status;
    unsigned room = *count, found = pick(&gpu, kind, 0, listed);
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        nvmlProcessInfo_t info = {.pid = listed[i].pid, .usedGpuMemory = listed[i].used_bytes,
                                  .gpuInstanceId = listed[i].gpu_instance,
                                  .computeInstanceId = listed[i].compute_instance};
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
    struct listed listed[LISTED_MAX];
    REQUIRE(details);
    READ_DEVICE(device, gpu);
    if (details->version != (sizeof *details | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(details->mode <= MPS && (details->procArray || !details->numProcArrayEntries));
    unsigned room = details->numProcArrayEntries, found = pick(&gpu, (enum kind)details->mode, 0, listed);
    details->numProcArrayEntries = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        details->procArray[i] =
            (nvmlProcessDetail_v1_t){.pid = listed[i].pid, .usedGpuMemory = listed[i].used_bytes,
                                     .gpuInstanceId = listed[i].gpu_instance,
                                     .computeInstanceId = listed[i].compute_instance};
    }
    return NVML_SUCCESS;
}

/* One sample a process that has used the GPU since then, over that time but at most a second. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since_us)
{
    struct listed listed[LISTED_MAX];
    uint64_t now_us = (uint64_t)wall_clock_us();
    unsigned busy = 0;
    REQUIRE(count);
    READ_GPU(device, gpu);
    if (since_us >= now_us) {
        *count = 0;
        return NVML_ERROR_NOT_FOUND;
    }
    uint64_t window_us = now_us - since_us < 1000000 ? now_us - since_us : 1000000;
    unsigned room = *count, found = pick(&gpu, COMPUTE, window_us * 1000, listed);
    for (unsigned i = 0; i < found; i++) {
        if (listed[i].busy_percent)
            listed[busy++] = listed[i];
    }
    *count = busy;
    if (!busy)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || room < busy)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < busy; i++) {
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = listed[i].pid, .timeStamp = now_us,
                                                      .smUtil = listed[i].busy_percent,
                                                      .memUtil = gpu.memory_percent / busy};
    }
    return NVML_SUCCESS;
}
