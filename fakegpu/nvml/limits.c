/* What processes of a cgroup may hold of a GPU's memory. Drivers have it from 615 on. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/memory_limits.h"
#include "nvml/answers.h"
#include "nvml/state.h"

#define FIRST_DRIVER 615

static nvmlReturn_t offered(const char *caller)
{
    const struct node *node;
    nvmlReturn_t status = node_lock(&node, caller);
    if (status != NVML_SUCCESS)
        return status;
    bool has = strtoul(node->description->driver_version, NULL, 10) >= FIRST_DRIVER;
    node_unlock();
    return has ? NVML_SUCCESS : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* As the driver does where the kernel keeps such limits: on the root of all cgroups there is none. */
static nvmlReturn_t find_cgroup(const char *path, uint64_t *cgroup)
{
    REQUIRE(path && strlen(path) < CGROUP_PATH_MAX);
    *cgroup = cgroup_id(path);
    if (!*cgroup)
        return NVML_ERROR_OPERATING_SYSTEM;
    return node_is_cgroup(path) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static bool is_amount(uint64_t bytes, const struct gpu *gpu)
{
    return bytes == LIMIT_NONE || bytes <= gpu->total_mib * MIB;
}

/* Who may change the cgroup may limit it: the node's root, and whoever made the folder that stands for one in a test. */
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    uint64_t cgroup;
    nvmlReturn_t status = offered(__func__);
    if (status != NVML_SUCCESS)
        return status;
    REQUIRE(limits);
    READ_GPU(device, gpu);
    REQUIRE(limits->softLimit <= limits->hardLimit && is_amount(limits->softLimit, &gpu) &&
            is_amount(limits->hardLimit, &gpu));
    status = find_cgroup(limits->nameSpace, &cgroup);
    if (status != NVML_SUCCESS)
        return status;
    if (access(limits->nameSpace, W_OK))
        return NVML_ERROR_NO_PERMISSION;
    return gpu_limit(&gpu, cgroup, limits->nameSpace, limits->softLimit, limits->hardLimit);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    uint64_t cgroup;
    nvmlReturn_t status = offered(__func__);
    if (status != NVML_SUCCESS)
        return status;
    REQUIRE(limits);
    READ_GPU(device, gpu);
    status = find_cgroup(limits->nameSpace, &cgroup);
    if (status != NVML_SUCCESS)
        return status;
    gpu_limits(&gpu, cgroup, &limits->softLimit, &limits->hardLimit, &limits->currentUsed);
    return NVML_SUCCESS;
}
