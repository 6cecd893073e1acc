/* Which GPU instances a GPU in MIG mode can have, where, and how many more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml/mig.h"

static nvmlReturn_t find_profile(nvmlDevice_t device, uint32_t number, bool by_id, struct gpu *gpu,
                                 const struct mig_profile **profile, const char *caller)
{
    nvmlReturn_t status = mig_gpu(device, gpu, caller);
    if (status != NVML_SUCCESS)
        return status;
    *profile = by_id ? mig_profile_with_id(gpu, number) : mig_profile_numbered(gpu, number);
    return *profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlGpuInstanceProfileInfo_t describe(const struct mig_profile *profile)
{
    return (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->at_most,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
    };
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    struct gpu gpu;
    const struct mig_profile *profile;
    REQUIRE(info);
    nvmlReturn_t status = find_profile(device, number, false, &gpu, &profile, __func__);
    if (status == NVML_SUCCESS)
        *info = describe(profile);
    return status;
}

/* The second and the third form have the same size. */
static nvmlReturn_t answer_versioned(nvmlDevice_t device, unsigned number, bool by_id, void *answer, const char *caller)
{
    struct gpu gpu;
    const struct mig_profile *profile;
    uint32_t version;
    REQUIRE(answer);
    memcpy(&version, answer, sizeof version);
    bool second = version == (sizeof(nvmlGpuInstanceProfileInfo_v2_t) | 2u << 24);
    if (!second && version != (sizeof(nvmlGpuInstanceProfileInfo_v3_t) | 3u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t status = find_profile(device, number, by_id, &gpu, &profile, caller);
    if (status != NVML_SUCCESS)
        return status;
    nvmlGpuInstanceProfileInfo_t info = describe(profile);
    if (second) {
        nvmlGpuInstanceProfileInfo_v2_t whole = {version, info.id, info.isP2pSupported, info.sliceCount, info.instanceCount,
                                                 info.multiprocessorCount, info.copyEngineCount, info.decoderCount,
                                                 info.encoderCount, info.jpegCount, info.ofaCount, info.memorySizeMB, ""};
        mig_name(profile, 0, whole.name);
        memcpy(answer, &whole, sizeof whole);
    } else {
        nvmlGpuInstanceProfileInfo_v3_t whole = {version, info.id, info.sliceCount, info.instanceCount,
                                                 info.multiprocessorCount, info.copyEngineCount, info.decoderCount,
                                                 info.encoderCount, info.jpegCount, info.ofaCount, info.memorySizeMB, "", 0};
        mig_name(profile, 0, whole.name);
        memcpy(answer, &whole, sizeof whole);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number, void *info)
{
    return answer_versioned(device, number, false, info, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, void *info)
{
    return answer_versioned(device, id, true, info, __func__);
}

static int by_start(const void *left, const void *right)
{
    const nvmlGpuInstancePlacement_t *a = left, *b = right;
    return (a->start > b->start) - (a->start < b->start);
}

/* Where instances may be on an empty GPU. Without a list only their number is asked for. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                                  nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    struct gpu gpu;
    const struct mig_profile *profile;
    REQUIRE(count);
    nvmlReturn_t status = find_profile(device, id, true, &gpu, &profile, __func__);
    if (status != NVML_SUCCESS)
        return status;
    unsigned room = *count;
    *count = profile->start_count;
    if (!placements)
        return NVML_SUCCESS;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->memory_slices};
    qsort(placements, *count, sizeof *placements, by_start);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
                                                               nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    struct gpu gpu;
    const struct mig_profile *profile;
    REQUIRE(count);
    nvmlReturn_t status = find_profile(device, id, true, &gpu, &profile, __func__);
    if (status == NVML_SUCCESS)
        *count = mig_remaining(&gpu, profile);
    return status;
}
