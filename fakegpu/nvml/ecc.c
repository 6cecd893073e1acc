/* Memory errors. A description counts those of device memory since the driver came up; the
 * aggregate, which real GPUs keep over reboots, is the same number here. */
#include "node/node.h"
#include "nvml/answers.h"

enum { CORRECTED, UNCORRECTED, KINDS };

static nvmlReturn_t read_ecc_gpu(nvmlDevice_t device, struct gpu *gpu, const char *caller)
{
    nvmlReturn_t status = node_device(device, gpu, NULL, caller);
    if (status != NVML_SUCCESS)
        return status;
    return gpu_has_ecc(gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static uint64_t errors_of(const struct gpu *gpu, unsigned kind)
{
    return kind == CORRECTED ? gpu->ecc_corrected : gpu->ecc_uncorrected;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct gpu gpu;
    REQUIRE(current && pending);
    nvmlReturn_t status = read_ecc_gpu(device, &gpu, __func__);
    if (status == NVML_SUCCESS)
        *current = *pending = gpu.ecc == SWITCH_ON;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode)
{
    struct gpu gpu;
    REQUIRE(mode);
    nvmlReturn_t status = read_ecc_gpu(device, &gpu, __func__);
    if (status == NVML_SUCCESS)
        *mode = 1;
    return status;
}

/* `since` is volatile or aggregate. A GPU whose ECC is off counts nothing. */
static nvmlReturn_t answer_errors(nvmlDevice_t device, unsigned kind, unsigned since, uint64_t *count,
                                  const char *caller)
{
    struct gpu gpu;
    REQUIRE(count && kind < KINDS && since < 2);
    nvmlReturn_t status = read_ecc_gpu(device, &gpu, caller);
    if (status != NVML_SUCCESS)
        return status;
    if (gpu.ecc != SWITCH_ON)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = errors_of(&gpu, kind);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned since, uint64_t *count)
{
    return answer_errors(device, kind, since, count, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned kind, unsigned since,
                                                   nvmlEccErrorCounts_t *counts)
{
    uint64_t count;
    REQUIRE(counts);
    nvmlReturn_t status = answer_errors(device, kind, since, &count, __func__);
    if (status == NVML_SUCCESS)
        *counts = (nvmlEccErrorCounts_t){.deviceMemory = count};
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned kind, unsigned since,
                                                    unsigned location, uint64_t *count)
{
    enum { DEVICE_MEMORY = 2, LOCATIONS = 8 };
    REQUIRE(location < LOCATIONS);
    nvmlReturn_t status = answer_errors(device, kind, since, count, __func__);
    if (status == NVML_SUCCESS && location != DEVICE_MEMORY)
        *count = 0;
    return status;
}

/* --- pages and rows taken out of service: none ---------------------------------------------------- */

/* From Ampere on, rows are remapped; before, pages were retired. */
static bool remaps_rows(const struct gpu *gpu)
{
    return gpu->compute_major >= 8;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, uint64_t *pages)
{
    struct gpu gpu;
    (void)pages;
    REQUIRE(count && cause < 2);
    nvmlReturn_t status = read_ecc_gpu(device, &gpu, __func__);
    if (status == NVML_SUCCESS && remaps_rows(&gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS)
        *count = 0;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count, uint64_t *pages,
                                                 uint64_t *timestamps)
{
    (void)timestamps;
    return nvmlDeviceGetRetiredPages(device, cause, count, pages);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    struct gpu gpu;
    REQUIRE(pending);
    nvmlReturn_t status = read_ecc_gpu(device, &gpu, __func__);
    if (status == NVML_SUCCESS && remaps_rows(&gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS)
        *pending = 0;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                              unsigned *pending, unsigned *failed)
{
    REQUIRE(corrected && uncorrected && pending && failed);
    READ_GPU(device, gpu);
    if (!remaps_rows(&gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}
