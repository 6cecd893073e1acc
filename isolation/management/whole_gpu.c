/* What a container does not see: use of the whole GPU over time, and other containers' processes, by functions that have no part for one container. */
#include "driver/real.h"
#include "management/management.h"

/* Whatever the arguments are: the calling conventions of x86-64 and AArch64 allow to ignore them. */
#define WITHHELD(name)                                                                                     \
    EXPORT nvmlReturn_t name(void);                                                                        \
    EXPORT nvmlReturn_t name(void) { return NVML_ERROR_NOT_SUPPORTED; }

WITHHELD(nvmlDeviceGetAccountingPids)
WITHHELD(nvmlDeviceGetAccountingStats)
WITHHELD(nvmlDeviceGetAccountingStats_v2)
WITHHELD(nvmlDeviceGetDynamicPstatesInfo)
WITHHELD(nvmlDeviceGetEncoderSessions)
WITHHELD(nvmlDeviceGetFBCSessions)
WITHHELD(nvmlGpmMigSampleGet)
WITHHELD(nvmlGpmSampleGet)

/* Samples of power and clocks are the device's; those of utilization are of everybody's work. */
enum { TOTAL_POWER = 0, PROCESSOR_CLOCK = 5, MEMORY_CLOCK = 6, MODULE_POWER = 7 };

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long since_us, unsigned *value_type, unsigned *count,
                                  void *samples);
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long since_us, unsigned *value_type,
                                         unsigned *count, void *samples)
{
    if (type != TOTAL_POWER && type != PROCESSOR_CLOCK && type != MEMORY_CLOCK && type != MODULE_POWER)
        return NVML_ERROR_NOT_SUPPORTED;
    return REAL(nvmlDeviceGetSamples)(device, type, since_us, value_type, count, samples);
}
