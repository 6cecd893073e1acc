/* Which GPUs there are, what they are called, and their memory. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "description/mig.h"
#include "node/node.h"
#include "nvml/answers.h"
#include "nvml/state.h"

/* --- handles ---------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    const struct node *node;
    REQUIRE(count);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    *count = node->visible_count;
    node_unlock();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* What a handle is looked up by: exactly one is set. */
struct wanted {
    const unsigned *index;
    const char *uuid, *serial, *bus_id;
};

static bool fits(const struct gpu *gpu, unsigned index, const struct wanted *wanted)
{
    if (wanted->index)
        return *wanted->index == index;
    if (wanted->uuid)
        return !strcmp(wanted->uuid, gpu->uuid);
    if (wanted->serial)
        return gpu->serial[0] && !strcmp(wanted->serial, gpu->serial);
    char bus_id[32];
    write_bus_id(&gpu->pci, bus_id);
    /* Programs write the domain with four digits or eight, and letters of either case. */
    return !strcasecmp(wanted->bus_id, bus_id) || (!strncmp(bus_id, "0000", 4) && !strcasecmp(wanted->bus_id, bus_id + 4));
}

static nvmlReturn_t find_mig_handle(const struct node *node, const char *uuid, nvmlDevice_t *device)
{
    struct gpu one;
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        for (uint32_t index = 0; mig_device(gpu, index, &one); index++) {
            if (!strcmp(one.uuid, uuid))
                return (*device = node_handle(&one)) ? gpu_state(gpu) : NVML_ERROR_MEMORY;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t find_handle(const struct wanted *wanted, nvmlDevice_t *device, const char *caller)
{
    const struct node *node;
    nvmlReturn_t status = node_lock(&node, caller);
    if (status != NVML_SUCCESS)
        return status;
    status = wanted->index ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        if (!fits(gpu, i, wanted))
            continue;
        status = gpu_state(gpu);
        if (status == NVML_SUCCESS && !(*device = node_handle(gpu)))
            status = NVML_ERROR_MEMORY;
    }
    if (status == NVML_ERROR_NOT_FOUND && wanted->uuid)
        status = find_mig_handle(node, wanted->uuid, device);
    node_unlock();
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    REQUIRE(device);
    return find_handle(&(struct wanted){.index = &index}, device, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    REQUIRE(uuid && device);
    return find_handle(&(struct wanted){.uuid = uuid}, device, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    REQUIRE(serial && device);
    return find_handle(&(struct wanted){.serial = serial}, device, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    REQUIRE(bus_id && device);
    return find_handle(&(struct wanted){.bus_id = bus_id}, device, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct gpu gpu;
    REQUIRE(index);
    nvmlReturn_t status = node_gpu(device, &gpu, index, __func__);
    if (status != NVML_ERROR_NOT_SUPPORTED)
        return status;
    const struct node *node;
    uint32_t parent;
    struct gpu other;
    status = node_device(device, &gpu, &parent, __func__);
    if (status == NVML_SUCCESS)
        status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    for (*index = 0; mig_device(&node->description->gpus[parent], *index, &other) && strcmp(other.uuid, gpu.uuid);)
        ++*index;
    node_unlock();
    return NVML_SUCCESS;
}

/* --- identity --------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    READ_DEVICE(device, gpu);
    return answer_text(gpu.model, name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    READ_DEVICE(device, gpu);
    return answer_text(gpu.uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    READ_GPU(device, gpu);
    return gpu.serial[0] ? answer_text(gpu.serial, serial, length) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
    READ_GPU(device, gpu);
    return gpu.vbios[0] ? answer_text(gpu.vbios, version, length) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    REQUIRE(minor);
    READ_GPU(device, gpu);
    *minor = gpu.minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
    enum { UNKNOWN = 0, TESLA = 2, GEFORCE = 5, NVIDIA = 14 };
    REQUIRE(brand);
    READ_GPU(device, gpu);
    *brand = strstr(gpu.model, "Tesla") ? TESLA : strstr(gpu.model, "GeForce") ? GEFORCE
             : !strncmp(gpu.model, "NVIDIA", 6) ? NVIDIA : UNKNOWN;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    REQUIRE(architecture);
    READ_GPU(device, gpu);
    switch (gpu.compute_major) {
    case 3:
    case 5:
    case 6: /* Kepler, Maxwell, Pascal */
        *architecture = gpu.compute_major == 3 ? 2 : gpu.compute_major - 2;
        break;
    case 7: /* Volta, Turing */
        *architecture = gpu.compute_minor < 5 ? 5 : 6;
        break;
    case 8: /* Ampere, Ada */
        *architecture = gpu.compute_minor < 9 ? 7 : 8;
        break;
    case 9: /* Hopper */
        *architecture = 9;
        break;
    case 10:
    case 12: /* Blackwell */
        *architecture = 10;
        break;
    default:
        *architecture = UINT32_MAX;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    REQUIRE(major && minor);
    READ_GPU(device, gpu);
    *major = (int)gpu.compute_major;
    *minor = (int)gpu.compute_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *board)
{
    REQUIRE(board);
    READ_GPU(device, gpu);
    *board = gpu.pci.domain << 16 | gpu.pci.bus << 8 | gpu.pci.device;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *several)
{
    REQUIRE(several);
    READ_GPU(device, gpu);
    *several = 0;
    return NVML_SUCCESS;
}

/* --- PCI ---------------------------------------------------------------------------------------- */

/* NVIDIA's vendor number; a description names no product number. */
enum { VENDOR = 0x10de, DISPLAY_CLASS = 3, CONTROLLER_3D = 2 };

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    REQUIRE(pci);
    READ_GPU(device, gpu);
    *pci = (nvmlPciInfo_t){.domain = gpu.pci.domain, .bus = gpu.pci.bus, .device = gpu.pci.device,
                           .pciDeviceId = VENDOR, .pciSubSystemId = VENDOR};
    write_bus_id(&gpu.pci, pci->busId);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", gpu.pci.domain & 0xffff,
             gpu.pci.bus & 0xff, gpu.pci.device & 0xff, gpu.pci.function & 0xf);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_t whole;
    REQUIRE(pci);
    nvmlReturn_t status = nvmlDeviceGetPciInfo_v3(device, &whole);
    if (status != NVML_SUCCESS)
        return status;
    *pci = (nvmlPciInfo_v2_t){.domain = whole.domain, .bus = whole.bus, .device = whole.device,
                              .pciDeviceId = whole.pciDeviceId, .pciSubSystemId = whole.pciSubSystemId};
    strcpy(pci->busId, whole.busIdLegacy);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    REQUIRE(pci);
    READ_GPU(device, gpu);
    if (pci->version != (sizeof *pci | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *pci = (nvmlPciInfoExt_t){.version = pci->version, .domain = gpu.pci.domain, .bus = gpu.pci.bus,
                              .device = gpu.pci.device, .pciDeviceId = VENDOR, .pciSubSystemId = VENDOR,
                              .baseClass = DISPLAY_CLASS, .subClass = CONTROLLER_3D};
    write_bus_id(&gpu.pci, pci->busId);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned *type)
{
    enum { BUS_PCIE = 2 };
    REQUIRE(type);
    READ_GPU(device, gpu);
    *type = BUS_PCIE;
    return NVML_SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------- */

/* The description may have grown tighter under running processes. */
static uint64_t free_bytes(uint64_t total_bytes, uint64_t taken_bytes)
{
    return taken_bytes < total_bytes ? total_bytes - taken_bytes : 0;
}

/* The second form reports what the driver keeps for itself separately; the first counts it as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    REQUIRE(memory);
    READ_DEVICE(device, gpu);
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = gpu.total_mib * MIB;
    memory->reserved = gpu.reserved_mib * MIB;
    memory->used = gpu_used_bytes(&gpu);
    memory->free = free_bytes(memory->total, memory->reserved + memory->used);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    REQUIRE(memory);
    READ_DEVICE(device, gpu);
    memory->total = gpu.total_mib * MIB;
    memory->used = gpu.reserved_mib * MIB + gpu_used_bytes(&gpu);
    memory->free = free_bytes(memory->total, memory->used);
    return NVML_SUCCESS;
}

/* The window through which the CPU sees the GPU's memory: all of it, rounded up to a power of two; of a MIG device its part. */
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    REQUIRE(memory);
    READ_DEVICE(device, gpu);
    uint64_t total_mib = 256;
    while (total_mib < gpu.total_mib)
        total_mib *= 2;
    if (gpu.mig_device)
        total_mib = gpu.instances[0].profile->memory_slices * UINT64_C(16384);
    *memory = (nvmlBAR1Memory_t){.total = total_mib * MIB, .free = (total_mib - 1) * MIB, .used = MIB};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes)
{
    REQUIRE(sizes);
    READ_GPU(device, gpu);
    *sizes = (nvmlConfComputeMemSizeInfo_t){.unprotectedMemSizeKib = gpu.total_mib * UINT64_C(1024)};
    return NVML_SUCCESS;
}

/* --- modes -------------------------------------------------------------------------------------- */

static nvmlReturn_t answer_zero(nvmlDevice_t device, unsigned *answer, const char *caller)
{
    struct gpu gpu;
    REQUIRE(answer);
    nvmlReturn_t status = node_gpu(device, &gpu, NULL, caller);
    if (status == NVML_SUCCESS)
        *answer = 0;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode)
{
    return answer_zero(device, mode, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active)
{
    return answer_zero(device, active, __func__);
}

/* 0: any number of processes may use the GPU. */
EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    return answer_zero(device, mode, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
    return answer_zero(device, mode, __func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    REQUIRE(mode);
    READ_GPU(device, gpu);
    *mode = gpu.persistence == SWITCH_ON;
    return NVML_SUCCESS;
}
