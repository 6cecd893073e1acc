/* Lists of processes: the container's own, with what the driver says of them. A process of the container that the driver's list lacks
 * (its ids are another pid namespace's) is listed with what it was charged. */
#include <stdlib.h>
#include <string.h>

#include "driver/real.h"
#include "management/management.h"

enum { REAL_MOST = 4096 };

struct listing {
    nvmlProcessDetail_v1_t processes[REAL_MOST + REGION_SLOTS];
    struct member_memory members[REGION_SLOTS];
    unsigned count, member_count;
    bool listed[REGION_SLOTS];
};

/* Asks the driver for a whole list; `size` is that of an element. */
typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned *count, void *processes);

static void add(struct listing *listing, const nvmlProcessDetail_v1_t *process)
{
    for (unsigned i = 0; i < listing->member_count; i++) {
        if (listing->members[i].pid != process->pid)
            continue;
        listing->listed[i] = true;
        listing->processes[listing->count++] = *process;
        return;
    }
}

static void add_unlisted(struct listing *listing)
{
    for (unsigned i = 0; i < listing->member_count; i++) {
        if (!listing->listed[i])
            listing->processes[listing->count++] =
                (nvmlProcessDetail_v1_t){.pid = listing->members[i].pid, .usedGpuMemory = listing->members[i].bytes,
                                         .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
    }
}

/* Fills the listing from the driver's list. */
static nvmlReturn_t read_list(struct listing *listing, nvmlDevice_t device, list_function *list, size_t size, bool compute)
{
    const struct container *container;
    int gpu;
    unsigned count = REAL_MOST;
    nvmlReturn_t result = management_gpu(device, &container, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    char *real = calloc(REAL_MOST, size);
    if (!real)
        return NVML_ERROR_UNKNOWN;
    result = list(device, &count, real);
    if (result == NVML_SUCCESS && gpu >= 0) {
        listing->member_count = management_members(container, gpu, listing->members);
        for (unsigned i = 0; i < count && i < REAL_MOST; i++) {
            nvmlProcessDetail_v1_t process = {.gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
            memcpy(&process, real + i * size, size);
            add(listing, &process);
        }
        if (compute)
            add_unlisted(listing);
    }
    free(real);
    return result;
}

static nvmlReturn_t answer(nvmlDevice_t device, list_function *list, size_t size, bool compute, unsigned *count, void *out)
{
    if (!count || (*count && !out))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct listing *listing = calloc(1, sizeof *listing);
    if (!listing)
        return NVML_ERROR_UNKNOWN;
    nvmlReturn_t result = read_list(listing, device, list, size, compute);
    unsigned room = *count;
    if (result == NVML_SUCCESS)
        *count = listing->count;
    if (result == NVML_SUCCESS && listing->count > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; result == NVML_SUCCESS && i < listing->count; i++)
        memcpy((char *)out + i * size, &listing->processes[i], size);
    free(listing);
    return result;
}

#define LIST(name, type, compute)                                                                          \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *processes)                        \
    {                                                                                                      \
        return answer(device, (list_function *)(void *)REAL(name), sizeof *processes, compute, count, processes); \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, false)

/* Version and mode travel with the list, so this one asks through a list of its own. */
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    const struct container *container;
    int gpu;
    if (!list)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = management_gpu(device, &container, &gpu);
    struct listing *listing = calloc(1, sizeof *listing);
    nvmlProcessDetail_v1_t *real = calloc(REAL_MOST, sizeof *real);
    nvmlProcessDetailList_v1_t asked = {list->version, list->mode, REAL_MOST, real};
    if (!listing || !real)
        result = NVML_ERROR_UNKNOWN;
    if (result == NVML_SUCCESS)
        result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &asked);
    if (result == NVML_SUCCESS && gpu >= 0) {
        listing->member_count = management_members(container, gpu, listing->members);
        for (unsigned i = 0; i < asked.numProcArrayEntries && i < REAL_MOST; i++)
            add(listing, &real[i]);
        if (!list->mode)
            add_unlisted(listing);
    }
    if (result == NVML_SUCCESS) {
        unsigned room = list->procArray ? list->numProcArrayEntries : 0;
        list->numProcArrayEntries = listing->count;
        if (listing->count > room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        else if (listing->count)
            memcpy(list->procArray, listing->processes, listing->count * sizeof *real);
    }
    free(listing);
    free(real);
    return result;
}

/* Of the process that is `at` in the driver's list, unless it was in it before: what the driver counts less what was charged. */
static int64_t difference(const nvmlProcessInfo_t *listed, unsigned at, const struct member_memory *members, unsigned count)
{
    uint64_t charged_bytes = 0, has_bytes = listed[at].usedGpuMemory;
    bool ours = false;
    for (unsigned i = 0; i < at; i++) {
        if (listed[i].pid == listed[at].pid)
            return 0;
    }
    for (unsigned i = 0; i < count; i++) {
        if (members[i].pid == listed[at].pid) {
            charged_bytes += members[i].bytes;
            ours = true;
        }
    }
    return ours && has_bytes != NVML_VALUE_NOT_AVAILABLE ? (int64_t)(has_bytes - charged_bytes) : 0;
}

uint64_t management_beyond_bytes(const struct container *container, int gpu, nvmlDevice_t device)
{
    struct member_memory members[REGION_SLOTS];
    nvmlProcessInfo_t *listed = calloc(REAL_MOST, sizeof *listed);
    unsigned count = REAL_MOST;
    int64_t sum_bytes = 0;
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    if (listed && real_exists(FUNCTION_nvmlDeviceGetComputeRunningProcesses_v3))
        result = REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, listed);
    else if (listed)
        result = REAL(nvmlDeviceGetComputeRunningProcesses_v2)(device, &count, listed);
    if (result == NVML_SUCCESS) {
        unsigned member_count = management_members(container, gpu, members);
        for (unsigned i = 0; i < count && i < REAL_MOST; i++)
            sum_bytes += difference(listed, i, members, member_count);
    }
    free(listed);
    return sum_bytes > 0 ? (uint64_t)sum_bytes : 0;
}
