/* The part of NVML's binary interface that is limited, and what its hooks ask of the container. */
#ifndef ISOLATION_MANAGEMENT_MANAGEMENT_H
#define ISOLATION_MANAGEMENT_MANAGEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "process/container.h"

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_UNKNOWN = 999,
};
typedef struct nvml_device *nvmlDevice_t;
#define NVML_VALUE_NOT_AVAILABLE UINT64_MAX

/* Memory in bytes. */
typedef struct { uint64_t total, free, used; } nvmlMemory_t;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { uint32_t pid; uint64_t usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct { uint32_t pid; uint64_t usedGpuMemory; uint32_t gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
    uint64_t usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
typedef struct {
    uint32_t version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;
/* Percent; moments in microseconds of the wall clock. */
typedef struct { uint32_t gpu, memory; } nvmlUtilization_t;
typedef struct { uint32_t pid; uint64_t timeStamp; uint32_t smUtil, memUtil, encUtil, decUtil; } nvmlProcessUtilizationSample_t;
typedef struct {
    uint64_t timeStamp;
    uint32_t pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
typedef struct {
    uint32_t version, processSamplesCount;
    uint64_t lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;
_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24 &&
               sizeof(nvmlProcessDetail_v1_t) == 32 && sizeof(nvmlProcessDetailList_v1_t) == 24 &&
               sizeof(nvmlProcessUtilizationSample_t) == 32 && sizeof(nvmlProcessUtilizationInfo_v1_t) == 40 &&
               sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24, "the interface's layouts");

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);

/* --- management/container.c ---------------------------------------------------------------------------------------- */

/* The container, and which of its GPUs a handle is; *gpu is -1 for one that was not allocated to it. An error: the driver's own for a
 * bad handle, or NVML_ERROR_NO_PERMISSION without limits. */
nvmlReturn_t management_gpu(nvmlDevice_t device, const struct container **container, int *gpu);

/* A process of the container that holds memory of the GPU. */
struct member_memory { uint32_t pid; uint64_t bytes; };

/* Those alive that have a process id in this pid namespace; at most REGION_SLOTS. */
unsigned management_members(const struct container *container, int gpu, struct member_memory members[REGION_SLOTS]);

/* Whether the process is one of them, holding memory of whatever GPU. */
bool management_is_member(const struct container *container, uint32_t pid);

/* What the driver counts for the container's processes beyond what they were charged (as in memory/beyond.h), as of now; 0 where it does not say. */
uint64_t management_beyond_bytes(const struct container *container, int gpu, nvmlDevice_t device);

/* What the living were charged of the GPU together. */
uint64_t management_used_bytes(const struct container *container, int gpu);

#endif
