/* Compute instances: which a GPU instance can have, listed, created and destroyed. */
#include <stddef.h>
#include <string.h>

#include "nvml/mig.h"
#include "nvml/state.h"

/* Those of one kind that fit an empty GPU instance, or between those that exist. */
static uint32_t fitting(const struct gpu_instance *instance, uint32_t slices, bool now)
{
    uint32_t starts[MIG_STARTS_MAX], fits = 0;
    for (uint32_t i = mig_compute_starts(instance->profile, slices, starts); i--;)
        fits += !now || mig_compute_is_free(instance, slices, starts[i]);
    return fits;
}

static nvmlReturn_t find_kind(nvmlGpuInstance_t instance, unsigned number, struct gpu *gpu, struct gpu_instance **found,
                              uint32_t *slices, const char *caller)
{
    nvmlReturn_t status = mig_instance(instance, gpu, found, caller);
    if (status != NVML_SUCCESS)
        return status;
    *slices = mig_compute_slices((*found)->profile, number);
    return *slices ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* `engines`: only those shared by all of the GPU instance's exist. */
static nvmlReturn_t describe(nvmlGpuInstance_t instance, unsigned number, unsigned engines,
                             nvmlComputeInstanceProfileInfo_t *info, char name[MIG_NAME_MAX], const char *caller)
{
    struct gpu gpu;
    struct gpu_instance *found;
    uint32_t slices;
    nvmlReturn_t status = find_kind(instance, number, &gpu, &found, &slices, caller);
    if (status != NVML_SUCCESS)
        return status;
    if (engines)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct mig_profile *profile = found->profile;
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = number,
        .sliceCount = slices,
        .instanceCount = fitting(found, slices, false),
        .multiprocessorCount = mig_compute_multiprocessors(profile, slices),
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
    };
    mig_name(profile, slices, name);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number,
                                                                 unsigned engines, nvmlComputeInstanceProfileInfo_t *info)
{
    char name[MIG_NAME_MAX];
    REQUIRE(info);
    return describe(instance, number, engines, info, name, __func__);
}

/* The third form has one word more. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned number,
                                                                  unsigned engines, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    char name[MIG_NAME_MAX];
    REQUIRE(info);
    bool third = info->version == (sizeof(nvmlComputeInstanceProfileInfo_v3_t) | 3u << 24);
    if (!third && info->version != (sizeof *info | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t status = describe(instance, number, engines, &info->info, name, __func__);
    if (status != NVML_SUCCESS)
        return status;
    strcpy(info->name, name);
    if (third)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id,
                                                                       unsigned *count)
{
    struct gpu gpu;
    struct gpu_instance *found;
    uint32_t slices;
    REQUIRE(count);
    nvmlReturn_t status = find_kind(instance, id, &gpu, &found, &slices, __func__);
    if (status == NVML_SUCCESS)
        *count = fitting(found, slices, true);
    return status;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned id,
                                                                        nvmlComputeInstancePlacement_t *placements,
                                                                        unsigned *count)
{
    struct gpu gpu;
    struct gpu_instance *found;
    uint32_t slices, starts[MIG_STARTS_MAX];
    REQUIRE(count);
    nvmlReturn_t status = find_kind(instance, id, &gpu, &found, &slices, __func__);
    if (status != NVML_SUCCESS)
        return status;
    unsigned room = *count;
    *count = mig_compute_starts(found->profile, slices, starts);
    if (!placements)
        return NVML_SUCCESS;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        placements[i] = (nvmlComputeInstancePlacement_t){starts[i], slices};
    return NVML_SUCCESS;
}

/* --- creating and destroying ------------------------------------------------------------------ */

struct creation {
    uint32_t instance_id, profile_id, id;
    const nvmlComputeInstancePlacement_t *placement; /* NULL: the first that is free */
};

static nvmlReturn_t create(struct gpu *gpu, void *argument)
{
    struct creation *creation = argument;
    struct gpu_instance *instance = mig_find(gpu, creation->instance_id);
    uint32_t starts[MIG_STARTS_MAX], slices = instance ? mig_compute_slices(instance->profile, creation->profile_id) : 0, id = 0;
    if (!instance)
        return NVML_ERROR_NOT_FOUND;
    if (!slices)
        return NVML_ERROR_NOT_SUPPORTED;
    while (id < COMPUTE_INSTANCES_MAX && instance->compute[id].slices)
        id++;
    uint32_t count = mig_compute_starts(instance->profile, slices, starts);
    for (uint32_t i = 0; i < count; i++) {
        if (creation->placement && (creation->placement->start != starts[i] || creation->placement->size != slices))
            continue;
        if (id == COMPUTE_INSTANCES_MAX || !mig_compute_is_free(instance, slices, starts[i]))
            continue;
        instance->compute[id] = (struct compute_instance){.start = starts[i], .slices = slices};
        creation->id = id;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t create_compute(nvmlGpuInstance_t instance, struct creation *creation, nvmlComputeInstance_t *compute,
                                   const char *caller)
{
    REQUIRE(compute && mig_is_instance_handle(instance));
    creation->instance_id = instance->id;
    nvmlReturn_t status = node_change(instance->device, create, creation, caller);
    if (status == NVML_SUCCESS && !(*compute = mig_compute_handle(instance, creation->id)))
        status = NVML_ERROR_MEMORY;
    return status;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                         nvmlComputeInstance_t *compute)
{
    return create_compute(instance, &(struct creation){.profile_id = profile_id}, compute, __func__);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned profile_id,
                                                                      const nvmlComputeInstancePlacement_t *placement,
                                                                      nvmlComputeInstance_t *compute)
{
    REQUIRE(placement);
    return create_compute(instance, &(struct creation){.profile_id = profile_id, .placement = placement}, compute, __func__);
}

static nvmlReturn_t destroy(struct gpu *gpu, void *argument)
{
    const struct nvml_compute_instance *compute = argument;
    struct gpu_instance *instance = mig_find(gpu, compute->gpu_instance->id);
    if (!instance || !instance->compute[compute->id].slices)
        return NVML_ERROR_NOT_FOUND;
    instance->compute[compute->id].slices = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    struct gpu gpu, device;
    REQUIRE(mig_is_compute_handle(compute));
    nvmlReturn_t status = mig_gpu(compute->gpu_instance->device, &gpu, __func__);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; mig_device(&gpu, i, &device); i++) {
        if (device.gpu_instance == compute->gpu_instance->id && device.compute_instance == compute->id && gpu_is_used(&device))
            return NVML_ERROR_IN_USE;
    }
    return node_change(compute->gpu_instance->device, destroy, compute, __func__);
}

/* --- listing ---------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                       nvmlComputeInstance_t *computes, unsigned *count)
{
    struct gpu gpu;
    struct gpu_instance *found;
    uint32_t slices;
    REQUIRE(computes && count);
    nvmlReturn_t status = find_kind(instance, profile_id, &gpu, &found, &slices, __func__);
    *count = 0;
    for (uint32_t i = 0; status == NVML_SUCCESS && i < COMPUTE_INSTANCES_MAX; i++) {
        if (found->compute[i].slices == slices && !(computes[(*count)++] = mig_compute_handle(instance, i)))
            status = NVML_ERROR_MEMORY;
    }
    return status;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                          nvmlComputeInstance_t *compute)
{
    struct gpu gpu;
    struct gpu_instance *found;
    REQUIRE(compute);
    nvmlReturn_t status = mig_instance(instance, &gpu, &found, __func__);
    if (status != NVML_SUCCESS)
        return status;
    if (id >= COMPUTE_INSTANCES_MAX || !found->compute[id].slices)
        return NVML_ERROR_NOT_FOUND;
    *compute = mig_compute_handle(instance, id);
    return *compute ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    struct gpu gpu;
    struct gpu_instance *found;
    REQUIRE(info && mig_is_compute_handle(compute));
    nvmlReturn_t status = mig_instance(compute->gpu_instance, &gpu, &found, __func__);
    if (status != NVML_SUCCESS)
        return status;
    const struct compute_instance *one = &found->compute[compute->id];
    if (!one->slices)
        return NVML_ERROR_NOT_FOUND;
    *info = (nvmlComputeInstanceInfo_t){.device = compute->gpu_instance->device, .gpuInstance = compute->gpu_instance,
                                        .id = compute->id, .profileId = mig_compute_number(one->slices),
                                        .placement = {one->start, one->slices}};
    return NVML_SUCCESS;
}

/* The first form ends before the placement. */
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, void *info)
{
    nvmlComputeInstanceInfo_t whole;
    REQUIRE(info);
    nvmlReturn_t status = nvmlComputeInstanceGetInfo_v2(compute, &whole);
    if (status == NVML_SUCCESS)
        memcpy(info, &whole, offsetof(nvmlComputeInstanceInfo_t, placement));
    return status;
}
