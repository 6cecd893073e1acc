/* What programs ask of a device: name, UUID, size, and the lines of its data sheet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/context/context.h"
#include "cuda/device/data_sheet.h"

EXPORT CUresult cuDeviceGetCount(int *count)
{
    READY();
    REQUIRE_CU(count);
    *count = device_count();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    READY();
    REQUIRE_CU(device);
    if (!device_get(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(name && length > 0);
    snprintf(name, (size_t)length, "%s", device->gpu.model);
    return CUDA_SUCCESS;
}

/* The hexadecimal digits after "GPU-" or "MIG-" are sixteen bytes. */
static void parse_uuid(const char *text, CUuuid *uuid)
{
    const char *digits = text + strlen("GPU-");
    for (int i = 0; i < 16; i++) {
        char pair[3] = "";
        for (int j = 0; j < 2; digits++) {
            if (*digits != '-')
                pair[j++] = *digits;
        }
        uuid->bytes[i] = (char)strtoul(pair, NULL, 16);
    }
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(uuid);
    parse_uuid(device->gpu.uuid, uuid);
    return CUDA_SUCCESS;
}

/* The first form, which is older than MIG, has the GPU's for each of its MIG devices. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(uuid);
    parse_uuid(device->gpu.mig_device ? device->gpu.parent_uuid : device->gpu.uuid, uuid);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(bytes);
    *bytes = device_total_bytes(device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(bytes);
    uint64_t total_bytes = device_total_bytes(device);
    *bytes = total_bytes < UINT32_MAX ? (unsigned)total_bytes : UINT32_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(major && minor);
    *major = (int)device->gpu.compute_major;
    *minor = (int)device->gpu.compute_minor;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(value);
    return data_sheet_value(&device->gpu, attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    REQUIRE_CU(properties);
    *properties = (CUdevprop){
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 49152,
        .totalConstantMemory = 65536,
        .SIMDWidth = 32,
        .memPitch = 2147483647,
        .regsPerBlock = 65536,
        .clockRate = (int)device->gpu.clock_max_mhz[CLOCK_SM] * 1000,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    char whole[32];
    DEVICE(ordinal, device);
    const struct pci_address *pci = &device->gpu.pci;
    snprintf(whole, sizeof whole, "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->device, pci->function);
    REQUIRE_CU(text && length > (int)strlen(whole));
    strcpy(text, whole);
    return CUDA_SUCCESS;
}

/* The last part may be left out, and the first where it is 0. */
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned domain = 0, bus, slot, function = 0;
    READY();
    REQUIRE_CU(device && text);
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = function = 0;
        REQUIRE_CU(sscanf(text, "%x:%x.%x", &bus, &slot, &function) >= 2);
    }
    for (int i = 0; i < device_count(); i++) {
        const struct pci_address *pci = &device_get(i)->gpu.pci;
        if (pci->domain == domain && pci->bus == bus && pci->device == slot && pci->function == function) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* Only one-level affinity exists here: none. */
EXPORT CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice ordinal)
{
    DEVICE(ordinal, device);
    (void)device;
    REQUIRE_CU(supported && !type);
    *supported = 0;
    return CUDA_SUCCESS;
}
