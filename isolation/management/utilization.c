/* How busy the GPU is: with the container's own work, as a share of the whole GPU. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/real.h"
#include "management/management.h"

enum { SAMPLES_MOST = 8192 };

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                             unsigned long long since_us);

/* The container's samples since a moment, at the beginning of `samples`, which has room for SAMPLES_MOST. */
static nvmlReturn_t own_samples(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                unsigned long long since_us)
{
    const struct container *container;
    int gpu;
    unsigned real = SAMPLES_MOST;
    *count = 0;
    nvmlReturn_t result = management_gpu(device, &container, &gpu);
    if (result == NVML_SUCCESS)
        result = REAL(nvmlDeviceGetProcessUtilization)(device, samples, &real, since_us);
    for (unsigned i = 0; result == NVML_SUCCESS && i < real && i < SAMPLES_MOST; i++) {
        if (gpu >= 0 && management_is_member(container, samples[i].pid))
            samples[(*count)++] = samples[i];
    }
    return result;
}

static unsigned long long second_ago_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 - 1000000;
}

static bool is_newest(const nvmlProcessUtilizationSample_t *samples, unsigned count, unsigned which)
{
    for (unsigned i = 0; i < count; i++) {
        if (samples[i].pid == samples[which].pid && i != which &&
            (samples[i].timeStamp > samples[which].timeStamp || (samples[i].timeStamp == samples[which].timeStamp && i < which)))
            return false;
    }
    return true;
}

static unsigned capped(unsigned sum, unsigned most) { return sum < most ? sum : most; }

/* Where the driver cannot distinguish processes, what it says of the GPU is not the container's to know. */
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    unsigned count, gpu = 0, memory = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    if (result != NVML_SUCCESS)
        return result;
    nvmlProcessUtilizationSample_t *samples = calloc(SAMPLES_MOST, sizeof *samples);
    if (!samples)
        return NVML_ERROR_UNKNOWN;
    result = own_samples(device, samples, &count, second_ago_us());
    for (unsigned i = 0; i < count; i++) {
        if (is_newest(samples, count, i)) {
            gpu += samples[i].smUtil;
            memory += samples[i].memUtil;
        }
    }
    free(samples);
    if (result == NVML_ERROR_NO_PERMISSION)
        return result;
    /* Samples are of the past second, the driver's rates of less: what all do together is never less than one's part. */
    rates->gpu = capped(gpu, 100);
    rates->memory = capped(memory, 100);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since_us)
{
    unsigned found;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessUtilizationSample_t *own = calloc(SAMPLES_MOST, sizeof *own);
    if (!own)
        return NVML_ERROR_UNKNOWN;
    nvmlReturn_t result = own_samples(device, own, &found, since_us);
    unsigned room = samples ? *count : 0;
    if (result == NVML_SUCCESS && !found)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND)
        *count = found;
    if (result == NVML_SUCCESS && found > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    if (result == NVML_SUCCESS)
        memcpy(samples, own, found * sizeof *own);
    free(own);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    const struct container *container;
    int gpu;
    unsigned found = 0;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = management_gpu(device, &container, &gpu);
    nvmlProcessUtilizationInfo_v1_t *real = calloc(SAMPLES_MOST, sizeof *real);
    nvmlProcessesUtilizationInfo_v1_t asked = {info->version, SAMPLES_MOST, info->lastSeenTimeStamp, real};
    if (!real)
        result = NVML_ERROR_UNKNOWN;
    if (result == NVML_SUCCESS)
        result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &asked);
    for (unsigned i = 0; result == NVML_SUCCESS && i < asked.processSamplesCount && i < SAMPLES_MOST; i++) {
        if (gpu >= 0 && management_is_member(container, real[i].pid))
            real[found++] = real[i];
    }
    if (result == NVML_SUCCESS) {
        unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
        info->processSamplesCount = found;
        info->lastSeenTimeStamp = asked.lastSeenTimeStamp;
        if (found > room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        else if (found)
            memcpy(info->procUtilArray, real, found * sizeof *real);
    }
    free(real);
    return result;
}
