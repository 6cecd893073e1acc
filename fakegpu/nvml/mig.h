/* GPUs in MIG mode, and handles of their instances. */
#ifndef FAKEGPU_NVML_MIG_H
#define FAKEGPU_NVML_MIG_H

#include "description/mig.h"
#include "node/node.h"

/* What a handle stands for. It keeps its value for the life of the process, as handles of GPUs do. */
struct nvml_gpu_instance {
    nvmlDevice_t device;
    uint32_t id;
};
struct nvml_compute_instance {
    nvmlGpuInstance_t gpu_instance;
    uint32_t id;
};

/* Copies a GPU that is in MIG mode; NVML_ERROR_NOT_SUPPORTED for others. */
nvmlReturn_t mig_gpu(nvmlDevice_t device, struct gpu *gpu, const char *caller);

/* NULL: the process has used too many. Not under the node's lock. */
nvmlGpuInstance_t mig_instance_handle(nvmlDevice_t device, uint32_t id);
nvmlComputeInstance_t mig_compute_handle(nvmlGpuInstance_t instance, uint32_t id);
bool mig_is_instance_handle(nvmlGpuInstance_t instance);
bool mig_is_compute_handle(nvmlComputeInstance_t compute);

/* Copies the GPU of an instance, in which `found` points; NVML_ERROR_NOT_FOUND: it has been destroyed. */
nvmlReturn_t mig_instance(nvmlGpuInstance_t instance, struct gpu *gpu, struct gpu_instance **found, const char *caller);

#endif
