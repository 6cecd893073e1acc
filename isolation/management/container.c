#define _GNU_SOURCE
#include "management/management.h"

#include "driver/real.h"
#include "files/account.h"
#include "files/members.h"

nvmlReturn_t management_gpu(nvmlDevice_t device, const struct container **container, int *gpu)
{
    char uuid[96];
    *container = container_here();
    if (!*container)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    if (result == NVML_SUCCESS)
        *gpu = container_gpu(*container, uuid);
    return result;
}

static unsigned slots_used(const struct region *region)
{
    unsigned used = atomic_load(&region->header.slots_used);
    return used < REGION_SLOTS ? used : REGION_SLOTS;
}

/* A slot that is memory's counts for one of those who hold it. */
static void add(struct member_memory members[REGION_SLOTS], unsigned *count, uint32_t pid, uint64_t bytes)
{
    unsigned i = 0;
    while (i < *count && members[i].pid != pid)
        i++;
    if (i == *count)
        members[(*count)++] = (struct member_memory){pid, 0};
    members[i].bytes += bytes;
}

unsigned management_members(const struct container *container, int gpu, struct member_memory members[REGION_SLOTS])
{
    const struct region *region = container->region;
    unsigned count = 0;
    pid_t pid;
    for (unsigned i = 0; i < slots_used(region); i++) {
        uint64_t units = account_held_units(region, (unsigned)gpu, i);
        if (!units || !member_alive(container->file, i, &pid) || pid <= 0)
            continue;
        add(members, &count, (uint32_t)pid, units * UNIT_BYTES);
    }
    return count;
}

bool management_is_member(const struct container *container, uint32_t pid)
{
    pid_t found;
    for (unsigned i = 0; i < slots_used(container->region); i++) {
        if (atomic_load(&container->region->slots[i].owner) && member_alive(container->file, i, &found) &&
            (uint32_t)found == pid)
            return true;
    }
    return false;
}

/* Clearing the dead is the CUDA library's; here they are only left out. */
uint64_t management_used_bytes(const struct container *container, int gpu)
{
    const struct region *region = container->region;
    uint64_t units = account_total_units(region, (unsigned)gpu);
    for (unsigned i = 0; i < slots_used(region); i++) {
        uint64_t held = account_held_units(region, (unsigned)gpu, i);
        if (held && !member_alive(container->file, i, NULL))
            units -= held < units ? held : units;
    }
    return units * UNIT_BYTES;
}
