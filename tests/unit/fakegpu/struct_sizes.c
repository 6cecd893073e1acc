/* Prints the size of each struct of nvml.h; a test holds them against nvidia-ml-py's. */
#include <stdio.h>

#include "interface/nvml.h"

#define SIZE(type) printf(#type " %zu\n", sizeof(type))

int main(void)
{
    SIZE(nvmlMemory_t);
    SIZE(nvmlMemory_v2_t);
    SIZE(nvmlBAR1Memory_t);
    SIZE(nvmlSetMemoryLimits_v1_t);
    SIZE(nvmlGetMemoryLimits_v1_t);
    SIZE(nvmlPciInfo_t);
    SIZE(nvmlPciInfo_v2_t);
    SIZE(nvmlPciInfoExt_t);
    SIZE(nvmlUtilization_t);
    SIZE(nvmlProcessInfo_t);
    SIZE(nvmlProcessDetail_v1_t);
    SIZE(nvmlProcessDetailList_v1_t);
    SIZE(nvmlProcessUtilizationSample_t);
    SIZE(nvmlTemperature_v1_t);
    SIZE(nvmlEventData_t);
    SIZE(nvmlFieldValue_t);
    SIZE(nvmlEccErrorCounts_t);
    SIZE(nvmlViolationTime_t);
    SIZE(nvmlConfComputeMemSizeInfo_t);
    SIZE(nvmlGpuInstanceProfileInfo_t);
    SIZE(nvmlGpuInstanceProfileInfo_v2_t);
    SIZE(nvmlGpuInstanceInfo_t);
    SIZE(nvmlComputeInstanceProfileInfo_t);
    SIZE(nvmlComputeInstanceProfileInfo_v2_t);
    SIZE(nvmlComputeInstanceInfo_t);
    SIZE(nvmlGpuInstancePlacement_t);
    SIZE(nvmlDeviceAttributes_t);
    return 0;
}
