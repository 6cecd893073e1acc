/* MIG mode, and GPU instances: listed, created and destroyed. */
#include <pthread.h>
#include <string.h>

#include "nvml/mig.h"
#include "nvml/state.h"

enum { HANDLES_MAX = 1024 };
static struct nvml_gpu_instance instances[HANDLES_MAX];
static struct nvml_compute_instance computes[HANDLES_MAX];
static size_t instance_count, compute_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* --- handles ---------------------------------------------------------------------------------- */

nvmlGpuInstance_t mig_instance_handle(nvmlDevice_t device, uint32_t id)
{
    size_t at = 0;
    pthread_mutex_lock(&mutex);
    while (at < instance_count && (instances[at].device != device || instances[at].id != id))
        at++;
    if (at == instance_count && at < HANDLES_MAX)
        instances[instance_count++] = (struct nvml_gpu_instance){device, id};
    pthread_mutex_unlock(&mutex);
    return at < HANDLES_MAX ? &instances[at] : NULL;
}

nvmlComputeInstance_t mig_compute_handle(nvmlGpuInstance_t instance, uint32_t id)
{
    size_t at = 0;
    pthread_mutex_lock(&mutex);
    while (at < compute_count && (computes[at].gpu_instance != instance || computes[at].id != id))
        at++;
    if (at == compute_count && at < HANDLES_MAX)
        computes[compute_count++] = (struct nvml_compute_instance){instance, id};
    pthread_mutex_unlock(&mutex);
    return at < HANDLES_MAX ? &computes[at] : NULL;
}

static bool is_element(const void *handle, const void *list, size_t count, size_t size)
{
    uintptr_t at = (uintptr_t)handle, first = (uintptr_t)list;
    return at >= first && at < first + count * size && (at - first) % size == 0;
}

bool mig_is_instance_handle(nvmlGpuInstance_t instance)
{
    pthread_mutex_lock(&mutex);
    bool is = is_element(instance, instances, instance_count, sizeof *instances);
    pthread_mutex_unlock(&mutex);
    return is;
}

bool mig_is_compute_handle(nvmlComputeInstance_t compute)
{
    pthread_mutex_lock(&mutex);
    bool is = is_element(compute, computes, compute_count, sizeof *computes);
    pthread_mutex_unlock(&mutex);
    return is;
}

nvmlReturn_t mig_gpu(nvmlDevice_t device, struct gpu *gpu, const char *caller)
{
    nvmlReturn_t status = node_gpu(device, gpu, NULL, caller);
    return status == NVML_SUCCESS && gpu->mig != SWITCH_ON ? NVML_ERROR_NOT_SUPPORTED : status;
}

nvmlReturn_t mig_instance(nvmlGpuInstance_t instance, struct gpu *gpu, struct gpu_instance **found, const char *caller)
{
    REQUIRE(mig_is_instance_handle(instance));
    nvmlReturn_t status = mig_gpu(instance->device, gpu, caller);
    if (status != NVML_SUCCESS)
        return status;
    *found = mig_find(gpu, instance->id);
    return *found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* --- the mode --------------------------------------------------------------------------------- */

/* Models that can be divided say that they are not; the others do not know the question. */
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    REQUIRE(current && pending);
    READ_GPU(device, gpu);
    bool capable = (gpu.compute_major == 8 && gpu.compute_minor == 0) || gpu.compute_major == 9 ||
                   (gpu.compute_major == 10 && gpu.compute_minor == 0);
    *current = *pending = gpu.mig == SWITCH_ON;
    return capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t set_mode(struct gpu *gpu, void *argument)
{
    bool on = *(const unsigned *)argument == 1;
    if (!mig_profiles(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (on == (gpu->mig == SWITCH_ON))
        return NVML_SUCCESS;
    gpu->mig = on ? SWITCH_ON : SWITCH_OFF;
    gpu->instance_count = 0; /* the GPU is reset */
    return NVML_SUCCESS;
}

/* A GPU that processes use cannot be reset: the real driver remembers the mode for later, this one does not. */
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    REQUIRE(mode <= 1 && activation);
    READ_GPU(device, gpu);
    if (gpu_is_used(&gpu)) {
        *activation = NVML_ERROR_IN_USE;
        return NVML_SUCCESS;
    }
    *activation = node_change(device, set_mode, &mode, __func__);
    return *activation;
}

/* --- GPU instances ---------------------------------------------------------------------------- */

struct creation {
    uint32_t profile_id, id;
    const nvmlGpuInstancePlacement_t *placement; /* NULL: the driver chooses */
};

static nvmlReturn_t create(struct gpu *gpu, void *argument)
{
    struct creation *creation = argument;
    const struct mig_profile *profile = mig_profile_with_id(gpu, creation->profile_id);
    uint32_t chosen = 0;
    if (gpu->mig != SWITCH_ON || !profile)
        return NVML_ERROR_NOT_SUPPORTED;
    if (creation->placement) {
        chosen = creation->placement->start;
        REQUIRE(creation->placement->size == profile->memory_slices && mig_may_start(profile, chosen));
    } else {
        for (uint32_t i = profile->start_count; i--;)
            chosen = mig_is_free(gpu, profile, profile->starts[i]) ? profile->starts[i] : chosen;
    }
    if (!mig_remaining(gpu, profile) || !mig_is_free(gpu, profile, chosen))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    creation->id = mig_instance_id(profile, chosen);
    mig_add(gpu, profile, chosen);
    return NVML_SUCCESS;
}

static nvmlReturn_t create_instance(nvmlDevice_t device, struct creation *creation, nvmlGpuInstance_t *instance,
                                    const char *caller)
{
    REQUIRE(instance);
    nvmlReturn_t status = node_change(device, create, creation, caller);
    if (status == NVML_SUCCESS && !(*instance = mig_instance_handle(device, creation->id)))
        status = NVML_ERROR_MEMORY;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instance)
{
    return create_instance(device, &(struct creation){.profile_id = profile_id}, instance, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                             const nvmlGpuInstancePlacement_t *placement,
                                                             nvmlGpuInstance_t *instance)
{
    REQUIRE(placement);
    return create_instance(device, &(struct creation){.profile_id = profile_id, .placement = placement}, instance, __func__);
}

/* Compute instances must go first. */
static nvmlReturn_t destroy(struct gpu *gpu, void *argument)
{
    struct gpu_instance *instance = mig_find(gpu, *(const uint32_t *)argument);
    if (!instance)
        return NVML_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < COMPUTE_INSTANCES_MAX; i++) {
        if (instance->compute[i].slices)
            return NVML_ERROR_IN_USE;
    }
    mig_remove(gpu, instance);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    REQUIRE(mig_is_instance_handle(instance));
    return node_change(instance->device, destroy, &instance->id, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *found,
                                              unsigned *count)
{
    struct gpu gpu;
    REQUIRE(found && count);
    nvmlReturn_t status = mig_gpu(device, &gpu, __func__);
    *count = 0;
    for (uint32_t i = 0; status == NVML_SUCCESS && i < gpu.instance_count; i++) {
        const struct gpu_instance *instance = &gpu.instances[i];
        if (instance->profile->id != profile_id)
            continue;
        if (!(found[(*count)++] = mig_instance_handle(device, mig_instance_id(instance->profile, instance->start))))
            status = NVML_ERROR_MEMORY;
    }
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    struct gpu gpu;
    REQUIRE(instance);
    nvmlReturn_t status = mig_gpu(device, &gpu, __func__);
    if (status != NVML_SUCCESS)
        return status;
    if (!mig_find(&gpu, id))
        return NVML_ERROR_NOT_FOUND;
    *instance = mig_instance_handle(device, id);
    return *instance ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct gpu gpu;
    struct gpu_instance *found;
    REQUIRE(info);
    nvmlReturn_t status = mig_instance(instance, &gpu, &found, __func__);
    if (status == NVML_SUCCESS)
        *info = (nvmlGpuInstanceInfo_t){.device = instance->device, .id = instance->id, .profileId = found->profile->id,
                                        .placement = {found->start, found->profile->memory_slices}};
    return status;
}
