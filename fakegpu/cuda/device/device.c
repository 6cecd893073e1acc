#include "cuda/device/device.h"

#include <stdio.h>

#define MIB (UINT64_C(1) << 20)

static struct device devices[GPUS_MAX];
static int count;
static char state_directory[STATE_DIRECTORY_MAX];

CUresult devices_describe(const struct node *node, const char *directory)
{
    count = 0;
    snprintf(state_directory, sizeof state_directory, "%s", directory);
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        if (gpu->fault == GPU_LOST)
            continue; /* it has fallen off the bus */
        struct device *device = &devices[count];
        *device = (struct device){.gpu = *gpu, .ordinal = count, .directory = state_directory, .slot = -1, .state = {.lock_file = -1}};
        pthread_mutex_init(&device->mutex, NULL);
        count++;
    }
    return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int device_count(void)
{
    return count;
}

struct device *device_get(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < count ? &devices[ordinal] : NULL;
}

uint64_t device_total_bytes(const struct device *device)
{
    return (uint64_t)(device->gpu.total_mib - device->gpu.reserved_mib) * MIB;
}

uint64_t device_limit_bytes(const struct device *device)
{
    uint64_t others_mib = device->gpu.reserved_mib;
    for (uint32_t i = 0; i < device->gpu.process_count; i++)
        others_mib += device->gpu.processes[i].used_mib;
    return others_mib < device->gpu.total_mib ? (device->gpu.total_mib - others_mib) * MIB : 0;
}

uint64_t context_cost_bytes(const struct device *device)
{
    return device->gpu.context_mib * MIB;
}
