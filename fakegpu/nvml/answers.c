#define _POSIX_C_SOURCE 200809L
#include "nvml/answers.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

nvmlReturn_t answer_text(const char *text, char *buffer, unsigned length)
{
    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

void write_bus_id(const struct pci_address *address, char text[32])
{
    snprintf(text, 32, "%08X:%02X:%02X.%X", address->domain, address->bus, address->device, address->function);
}

int64_t wall_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

uint64_t gpu_used_mib(const struct gpu *gpu)
{
    uint64_t used_mib = 0;
    for (uint32_t i = 0; i < gpu->process_count; i++)
        used_mib += gpu->processes[i].used_mib;
    return used_mib;
}

bool gpu_has_ecc(const struct gpu *gpu)
{
    return gpu->ecc != SWITCH_UNSAID;
}
