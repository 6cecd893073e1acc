/* MIG devices: compute instances as programs use them, each a device of its own. */
#include <string.h>

#include "nvml/mig.h"

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
    REQUIRE(is);
    READ_DEVICE(device, gpu);
    *is = gpu.mig_device;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    REQUIRE(count);
    READ_GPU(device, gpu);
    *count = gpu.mig == SWITCH_ON ? GPU_INSTANCES_MAX : 0; /* nvml.h: zero if MIG is not enabled */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *found)
{
    const struct node *node;
    uint32_t position;
    struct gpu one;
    REQUIRE(found);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    if ((status = node_find(node, device, &position)) == NVML_SUCCESS) {
        const struct gpu *gpu = &node->description->gpus[position];
        status = gpu_state(gpu);
        if (status == NVML_SUCCESS && gpu->mig != SWITCH_ON)
            status = NVML_ERROR_NOT_SUPPORTED;
        if (status == NVML_SUCCESS && index >= GPU_INSTANCES_MAX)
            status = NVML_ERROR_INVALID_ARGUMENT;
        if (status == NVML_SUCCESS && !mig_device(gpu, index, &one))
            status = NVML_ERROR_NOT_FOUND;
        if (status == NVML_SUCCESS && !(*found = node_handle(&one)))
            status = NVML_ERROR_MEMORY;
    }
    node_unlock();
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *whole)
{
    const struct node *node;
    struct gpu gpu;
    uint32_t parent;
    REQUIRE(whole);
    nvmlReturn_t status = node_device(device, &gpu, &parent, __func__);
    if (status != NVML_SUCCESS)
        return status;
    REQUIRE(gpu.mig_device);
    status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    *whole = parent < node->description->gpu_count ? node_handle(&node->description->gpus[parent]) : NULL;
    node_unlock();
    return *whole ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    REQUIRE(id);
    READ_DEVICE(device, gpu);
    *id = gpu.gpu_instance;
    return gpu.mig_device ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    REQUIRE(id);
    READ_DEVICE(device, gpu);
    *id = gpu.compute_instance;
    return gpu.mig_device ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    REQUIRE(attributes);
    READ_DEVICE(device, gpu);
    if (!gpu.mig_device)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct mig_profile *profile = gpu.instances[0].profile;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = gpu.multiprocessors,
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = gpu.instances[0].compute[gpu.compute_instance].slices,
        .memorySizeMB = profile->memory_mib,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
