/* Temperature, power, clocks and the PCIe link, as the description says them; utilization. */
#include "node/node.h"
#include "nvml/answers.h"
#include "nvml/state.h"

/* --- temperature and fan ------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees)
{
    REQUIRE(degrees && sensor == 0);
    READ_GPU(device, gpu);
    *degrees = gpu.temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    REQUIRE(temperature);
    READ_GPU(device, gpu);
    if (temperature->version != (sizeof *temperature | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(temperature->sensorType == 0);
    temperature->temperature = (int32_t)gpu.temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind, unsigned *degrees)
{
    enum { SHUTDOWN, SLOWDOWN, MEMORY_MOST, GPU_MOST };
    REQUIRE(degrees && kind < 8);
    READ_GPU(device, gpu);
    switch (kind) {
    case SHUTDOWN:
        *degrees = gpu.shutdown_c;
        return NVML_SUCCESS;
    case SLOWDOWN:
    case GPU_MOST:
        *degrees = gpu.slowdown_c;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *count)
{
    REQUIRE(count);
    READ_GPU(device, gpu);
    *count = gpu.fan_percent >= 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    REQUIRE(percent);
    READ_GPU(device, gpu);
    if (gpu.fan_percent < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *percent = (unsigned)gpu.fan_percent;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *percent)
{
    REQUIRE(fan == 0);
    return nvmlDeviceGetFanSpeed(device, percent);
}

/* --- power: milliwatts --------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    REQUIRE(milliwatts);
    READ_GPU(device, gpu);
    *milliwatts = gpu.power_w * 1000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    REQUIRE(milliwatts);
    READ_GPU(device, gpu);
    *milliwatts = gpu.power_limit_w * 1000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    REQUIRE(least && most);
    READ_GPU(device, gpu);
    *most = gpu.power_limit_w * 1000;
    *least = *most / 2;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode)
{
    REQUIRE(mode);
    READ_GPU(device, gpu);
    *mode = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
    REQUIRE(state);
    READ_GPU(device, gpu);
    *state = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state)
{
    return nvmlDeviceGetPerformanceState(device, state);
}

/* --- clocks: MHz ----------------------------------------------------------------------------------- */

/* A clock of which the description says nothing is not supported. */
static nvmlReturn_t answer_clock(nvmlDevice_t device, unsigned kind, bool most, unsigned *mhz, const char *caller)
{
    struct gpu gpu;
    REQUIRE(mhz && kind < CLOCK_KINDS);
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status != NVML_SUCCESS)
        return status;
    if (!gpu.clock_max_mhz[kind])
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = most ? gpu.clock_max_mhz[kind] : gpu.clock_mhz[kind];
    return NVML_SUCCESS;
}

/* The interface numbers the kinds as enum clock_kind does. */
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
    return answer_clock(device, kind, false, mhz, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
    return answer_clock(device, kind, true, mhz, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned kind, unsigned which, unsigned *mhz)
{
    enum { CURRENT = 0, MOST = 3 };
    REQUIRE(which <= MOST);
    if (which != CURRENT && which != MOST)
        return NVML_ERROR_NOT_SUPPORTED;
    return answer_clock(device, kind, which == MOST, mhz, __func__);
}

/* A bit set: nothing holds the clocks down, but an idle GPU has no need of them. */
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    enum { IDLE = 1 };
    REQUIRE(reasons);
    READ_GPU(device, gpu);
    *reasons = gpu_busy_percent(&gpu) ? 0 : IDLE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    enum { REASONS_OF_535 = 0x1ff };
    REQUIRE(reasons);
    READ_GPU(device, gpu);
    *reasons = REASONS_OF_535;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksThrottleReasons(device, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time)
{
    (void)policy;
    REQUIRE(time);
    READ_GPU(device, gpu);
    *time = (nvmlViolationTime_t){.referenceTime = (uint64_t)wall_clock_us()};
    return NVML_SUCCESS;
}

/* --- utilization: percent ------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    REQUIRE(rates);
    READ_GPU(device, gpu);
    if (gpu.mig == SWITCH_ON)
        return NVML_ERROR_NOT_SUPPORTED; /* it has no utilization as a whole */
    *rates = (nvmlUtilization_t){.gpu = gpu_busy_percent(&gpu), .memory = gpu.memory_percent};
    return NVML_SUCCESS;
}

/* Nobody encodes or decodes pictures here. The period is in microseconds. */
static nvmlReturn_t answer_idle(nvmlDevice_t device, unsigned *percent, unsigned *period_us, const char *caller)
{
    struct gpu gpu;
    REQUIRE(percent && period_us);
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status != NVML_SUCCESS)
        return status;
    *percent = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    return answer_idle(device, percent, period_us, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    return answer_idle(device, percent, period_us, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    return answer_idle(device, percent, period_us, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    return answer_idle(device, percent, period_us, __func__);
}

static nvmlReturn_t answer_no_sessions(nvmlDevice_t device, unsigned *first, unsigned *second, unsigned *third,
                                       const char *caller)
{
    struct gpu gpu;
    REQUIRE(first && second && third);
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status == NVML_SUCCESS)
        *first = *second = *third = 0;
    return status;
}

/* Sessions, frames per second, latency in microseconds. */
EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *rate, unsigned *latency)
{
    return answer_no_sessions(device, sessions, rate, latency, __func__);
}

/* The same three numbers in a struct. */
EXPORT nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, unsigned numbers[3])
{
    REQUIRE(numbers);
    return answer_no_sessions(device, &numbers[0], &numbers[1], &numbers[2], __func__);
}

/* --- the PCIe link --------------------------------------------------------------------------------- */

static nvmlReturn_t answer_link(nvmlDevice_t device, bool width, unsigned *answer, const char *caller)
{
    struct gpu gpu;
    REQUIRE(answer);
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status == NVML_SUCCESS)
        *answer = width ? gpu.pcie_width : gpu.pcie_generation;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    return answer_link(device, false, generation, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    return answer_link(device, false, generation, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    return answer_link(device, false, generation, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    return answer_link(device, true, width, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    return answer_link(device, true, width, __func__);
}

/* KB/s; nothing moves. */
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kilobytes)
{
    REQUIRE(kilobytes && counter < 2);
    READ_GPU(device, gpu);
    *kilobytes = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *count)
{
    REQUIRE(count);
    READ_GPU(device, gpu);
    *count = 0;
    return NVML_SUCCESS;
}
