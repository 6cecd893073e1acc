/* The part of NVML's binary interface that the stand-in speaks.
 *
 * Names of functions, codes and layouts are those of NVIDIA's interface, since programs are built
 * against them; sizes are on x86-64 and AArch64, asserted below and held against nvidia-ml-py's own
 * declarations by a test. */
#ifndef FAKEGPU_INTERFACE_NVML_H
#define FAKEGPU_INTERFACE_NVML_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct nvml_device *nvmlDevice_t;
typedef struct nvml_event_set *nvmlEventSet_t;

/* "Not available", for memory of a process. */
#define NVML_VALUE_NOT_AVAILABLE UINT64_MAX

/* 24 and 40 bytes; memory in bytes. The version word of a versioned struct is its size and its version << 24. */
typedef struct { uint64_t total, free, used; } nvmlMemory_t;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { uint64_t total, free, used; } nvmlBAR1Memory_t;
_Static_assert(sizeof(nvmlMemory_t) == 24 && sizeof(nvmlMemory_v2_t) == 40, "memory");

/* 24 and 32 bytes: a cgroup's directory with its whole path; memory in bytes, UINT64_MAX for no hard limit. */
typedef struct { const char *nameSpace; uint64_t softLimit, hardLimit; } nvmlSetMemoryLimits_v1_t;
typedef struct { const char *nameSpace; uint64_t softLimit, hardLimit, currentUsed; } nvmlGetMemoryLimits_v1_t;
_Static_assert(sizeof(nvmlSetMemoryLimits_v1_t) == 24 && sizeof(nvmlGetMemoryLimits_v1_t) == 32, "memory limits");

/* 68 bytes: the short bus id of old programs first, the full one last. */
typedef struct {
    char busIdLegacy[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "PCI, third form");

/* 52 bytes: the first two forms. */
typedef struct {
    char busId[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
} nvmlPciInfo_v2_t;
_Static_assert(sizeof(nvmlPciInfo_v2_t) == 52, "PCI, second form");

/* 64 bytes. */
typedef struct {
    uint32_t version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_t;
_Static_assert(sizeof(nvmlPciInfoExt_t) == 64, "PCI, extended");

/* 8 bytes; percent. */
typedef struct { uint32_t gpu, memory; } nvmlUtilization_t;

/* 16 bytes (first form) and 24 bytes (second and third); memory in bytes, instances ~0 without MIG. */
typedef struct { uint32_t pid; uint64_t usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24, "processes");

/* 32 and 24 bytes. */
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
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32 && sizeof(nvmlProcessDetailList_v1_t) == 24, "process details");

/* 32 bytes; the moment in microseconds of the wall clock, use in percent. */
typedef struct {
    uint32_t pid;
    uint64_t timeStamp;
    uint32_t smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "process utilization");

/* 12 bytes. */
typedef struct { uint32_t version, sensorType; int32_t temperature; } nvmlTemperature_v1_t;
_Static_assert(sizeof(nvmlTemperature_v1_t) == 12, "temperature");

/* 24 and 32 bytes. Data of an XID event is its number. */
typedef struct { nvmlDevice_t device; uint64_t eventType, eventData; } nvmlEventData_v1_t;
typedef struct {
    nvmlDevice_t device;
    uint64_t eventType, eventData;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlEventData_v1_t) == 24 && sizeof(nvmlEventData_t) == 32, "events");
enum {
    EVENT_SINGLE_BIT_ECC = 0x1,
    EVENT_DOUBLE_BIT_ECC = 0x2,
    EVENT_XID_CRITICAL = 0x8,
    EVENTS_KNOWN = EVENT_SINGLE_BIT_ECC | EVENT_DOUBLE_BIT_ECC | EVENT_XID_CRITICAL,
};

/* 40 bytes; times in microseconds. */
typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    uint32_t valueType;
    nvmlReturn_t nvmlReturn;
    union { double dVal; uint32_t uiVal; uint64_t ullVal; } value;
} nvmlFieldValue_t;
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "field values");
enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

/* 32 bytes; errors counted. */
typedef struct { uint64_t l1Cache, l2Cache, deviceMemory, registerFile; } nvmlEccErrorCounts_t;
_Static_assert(sizeof(nvmlEccErrorCounts_t) == 32, "ECC");

/* 16 bytes. */
typedef struct { uint64_t referenceTime, violationTime; } nvmlViolationTime_t;
_Static_assert(sizeof(nvmlViolationTime_t) == 16, "violations");

/* 16 bytes. */
typedef struct { uint64_t protectedMemSizeKib, unprotectedMemSizeKib; } nvmlConfComputeMemSizeInfo_t;
_Static_assert(sizeof(nvmlConfComputeMemSizeInfo_t) == 16, "confidential memory");

/* Nearest first; as the interface numbers them. */
enum {
    TOPOLOGY_INTERNAL = 0,
    TOPOLOGY_SINGLE = 10,
    TOPOLOGY_MULTIPLE = 20,
    TOPOLOGY_HOST_BRIDGE = 30,
    TOPOLOGY_NODE = 40,
    TOPOLOGY_SYSTEM = 50,
};

/* --- Multi-Instance GPU; memory in MiB, whatever its name says ----------------------------------- */

typedef struct nvml_gpu_instance *nvmlGpuInstance_t;
typedef struct nvml_compute_instance *nvmlComputeInstance_t;

/* 8 bytes, in memory slices of a GPU or compute slices of a GPU instance. */
typedef struct { uint32_t start, size; } nvmlGpuInstancePlacement_t;
typedef nvmlGpuInstancePlacement_t nvmlComputeInstancePlacement_t;

/* 48, 152 and 152 bytes. */
typedef struct {
    uint32_t id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount,
        jpegCount, ofaCount;
    uint64_t memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;
typedef struct {
    uint32_t version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
    uint32_t version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount,
        jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
    uint32_t capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48 && sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152 &&
               sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152, "profiles of GPU instances");

/* 24 bytes. */
typedef struct {
    nvmlDevice_t device;
    uint32_t id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "GPU instances");

/* 36, 136 and 140 bytes. */
typedef struct {
    uint32_t id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;
typedef struct {
    uint32_t version;
    nvmlComputeInstanceProfileInfo_t info;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
    uint32_t version;
    nvmlComputeInstanceProfileInfo_t info;
    char name[96];
    uint32_t capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_t) == 36 && sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136 &&
               sizeof(nvmlComputeInstanceProfileInfo_v3_t) == 140, "profiles of compute instances");

/* 32 bytes. */
typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    uint32_t id, profileId;
    nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "compute instances");

/* 40 bytes. */
typedef struct {
    uint32_t multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "attributes");

#endif
