/* The private table that NVIDIA's own nvidia-smi asks for before anything else.
 *
 * Nothing is published about it; this is what nvidia-smi 535 was seen to do with a table that wrote
 * down its calls. The first word is the table's size in bytes. A function beyond it, or one that is
 * NULL, is taken as absent. Of the others it needs only the lists of processes and, for `topo -m`,
 * the path between two bus addresses. Slots count words from the table's start. */
#include <string.h>

#include "description/reading.h"
#include "node/node.h"
#include "nvml/answers.h"

enum {
    SLOTS = 256,
    SLOT_PATH = 23,       /* (bus id, bus id, &path): 0 to 4 for what topo -m prints as PIX, PXB, PHB, NODE, SYS */
    SLOT_LOG = 26,        /* (format, stream's name, text): each line that it prints; the answer is not looked at */
    SLOT_COMPUTE = 213,   /* (device, &count, list of private_process) */
    SLOT_MPS = 214,
    SLOT_GRAPHICS = 215,
};

/* 4128 bytes; memory in bytes. */
struct private_process {
    uint32_t pid;
    uint64_t used;
    uint32_t gpu_instance, compute_instance;
    uint64_t protected_used;
    char name[4096];
};
_Static_assert(sizeof(struct private_process) == 4128, "private process");

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);

static nvmlReturn_t list(list_function *ask, nvmlDevice_t device, unsigned *count, struct private_process *processes)
{
    nvmlProcessInfo_t infos[PROCESSES_MAX];
    unsigned found = PROCESSES_MAX;
    REQUIRE(count && processes);
    nvmlReturn_t status = ask(device, &found, infos);
    if (status != NVML_SUCCESS)
        return status;
    if (found > *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    for (unsigned i = 0; i < found; i++) {
        processes[i] = (struct private_process){.pid = infos[i].pid, .used = infos[i].usedGpuMemory,
                                                .gpu_instance = infos[i].gpuInstanceId,
                                                .compute_instance = infos[i].computeInstanceId};
        if (nvmlSystemGetProcessName(infos[i].pid, processes[i].name, sizeof processes[i].name) != NVML_SUCCESS)
            strcpy(processes[i].name, "[Not Found]");
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t list_compute(nvmlDevice_t device, unsigned *count, struct private_process *processes)
{
    return list(nvmlDeviceGetComputeRunningProcesses_v3, device, count, processes);
}

static nvmlReturn_t list_graphics(nvmlDevice_t device, unsigned *count, struct private_process *processes)
{
    return list(nvmlDeviceGetGraphicsRunningProcesses_v3, device, count, processes);
}

static nvmlReturn_t list_mps(nvmlDevice_t device, unsigned *count, struct private_process *processes)
{
    (void)device, (void)processes;
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

/* Position of the GPU at a bus address; gpu_count for none. */
static uint32_t at_bus_id(const struct node *node, const char *bus_id)
{
    char text[32];
    for (uint32_t i = 0; i < node->visible_count; i++) {
        write_bus_id(&node->description->gpus[node->visible[i]].pci, text);
        if (!strcmp(text, bus_id))
            return node->visible[i];
    }
    return node->description->gpu_count;
}

static nvmlReturn_t find_path(const char *left, const char *right, unsigned *path)
{
    const struct node *node;
    REQUIRE(left && right && path);
    nvmlReturn_t status = node_lock(&node, "path between bus addresses");
    if (status != NVML_SUCCESS)
        return status;
    uint32_t a = at_bus_id(node, left), b = at_bus_id(node, right), count = node->description->gpu_count;
    if (a < count && b < count)
        *path = (unsigned)(description_path(node->description, a, b) - PATH_PIX);
    else
        status = NVML_ERROR_NOT_FOUND;
    node_unlock();
    return status;
}

static nvmlReturn_t log_nothing(void)
{
    return NVML_SUCCESS;
}

typedef void (*slot)(void);

union word {
    uintptr_t size;
    slot function;
};

static const union word table[SLOTS] = {
    [0] = {.size = sizeof table},
    [SLOT_PATH] = {.function = (slot)find_path},
    [SLOT_LOG] = {.function = (slot)log_nothing},
    [SLOT_COMPUTE] = {.function = (slot)list_compute},
    [SLOT_MPS] = {.function = (slot)list_mps},
    [SLOT_GRAPHICS] = {.function = (slot)list_graphics},
};

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **result, const unsigned char id[16])
{
    static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                            0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    REQUIRE(result && id);
    if (memcmp(id, known, sizeof known))
        return NVML_ERROR_NOT_FOUND;
    *result = table;
    return NVML_SUCCESS;
}
