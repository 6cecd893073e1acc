#include "cuda/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "description/mig.h"
#include "description/words.h"

enum { NAMES_MAX = 4096 };

#define MIB (UINT64_C(1) << 20)

static struct device devices[GPUS_MAX];
static int count;
static char state_directory[STATE_DIRECTORY_MAX];

static void describe(const struct gpu *gpu)
{
    struct device *device = &devices[count];
    *device = (struct device){.gpu = *gpu, .ordinal = count, .directory = state_directory, .slot = -1, .state = {.lock_file = -1}};
    pthread_mutex_init(&device->mutex, NULL);
    count++;
}

/* Fills the whole GPUs that the process sees. Returns how many. */
static int list_whole(const struct node *node, const struct gpu **gpus)
{
    int found = 0;
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        if (gpu->fault != GPU_LOST && gpu->mig != SWITCH_ON) /* a lost one has fallen off the bus */
            gpus[found++] = gpu;
    }
    return found;
}

/* The MIG device of that UUID; NULL: the first one. */
static bool find_mig(const struct node *node, const char *name, struct gpu *mig)
{
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        for (uint32_t index = 0; gpu->fault != GPU_LOST && mig_device(gpu, index, mig); index++) {
            if (!name || !strcmp(mig->uuid, name))
                return true;
        }
    }
    return false;
}

/* By index or by UUID, which may be cut short. */
static int find_listed(const struct gpu **gpus, int all, const char *name)
{
    uint32_t index;
    if (word_number(name, 0, GPUS_MAX - 1, &index))
        return (int)index < all ? (int)index : -1;
    for (int i = 0; i < all && !strncmp(name, "GPU-", 4); i++) {
        if (!strncmp(gpus[i]->uuid, name, strlen(name)))
            return i;
    }
    return -1;
}

/* In the order of the names, up to the first one that is no device. */
static void choose(const struct node *node, const char *names, const struct gpu **gpus, int all)
{
    char copy[NAMES_MAX];
    bool taken[GPUS_MAX] = {false};
    struct gpu mig;
    bool has_mig = find_mig(node, NULL, &mig);
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name = copy, *next; name; name = next) {
        if ((next = strchr(name, ',')))
            *next++ = '\0';
        bool by_index = *name >= '0' && *name <= '9';
        if (!count && (has_mig && by_index ? !strcmp(name, "0") : find_mig(node, name, &mig))) {
            describe(&mig);
            return;
        }
        int found = has_mig && by_index ? -1 : find_listed(gpus, all, name);
        if (found < 0 || taken[found])
            return;
        taken[found] = true;
        describe(gpus[found]);
    }
}

/* A process sees one MIG device at most, and no GPU beside it (NVIDIA's MIG user guide, "CUDA device enumeration"). */
CUresult devices_describe(const struct node *node, const char *directory)
{
    const struct gpu *gpus[GPUS_MAX];
    struct gpu mig;
    const char *names = getenv("CUDA_VISIBLE_DEVICES");
    int all = list_whole(node, gpus);
    count = 0;
    snprintf(state_directory, sizeof state_directory, "%s", directory);
    if (names)
        choose(node, names, gpus, all);
    else if (find_mig(node, NULL, &mig))
        describe(&mig);
    else
        for (int i = 0; i < all; i++)
            describe(gpus[i]);
    return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int device_count(void)
{
    return count;
}

struct device *device_get(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < count ? &devices[ordinal] : NULL;
}

uint64_t device_total_bytes(const struct device *device)
{
    return (uint64_t)(device->gpu.total_mib - device->gpu.reserved_mib) * MIB;
}

uint64_t device_limit_bytes(const struct device *device)
{
    uint64_t others_mib = device->gpu.reserved_mib;
    for (uint32_t i = 0; i < device->gpu.process_count; i++)
        others_mib += device->gpu.processes[i].used_mib;
    return others_mib < device->gpu.total_mib ? (device->gpu.total_mib - others_mib) * MIB : 0;
}

uint64_t context_cost_bytes(const struct device *device)
{
    return device->gpu.context_mib * MIB;
}
