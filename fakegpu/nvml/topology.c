/* How GPUs reach each other and the CPUs: PCIe, NUMA, NVLink. */
#include "description/reading.h"
#include "nvml/topology.h"

#include "node/node.h"
#include "nvml/answers.h"

/* --- links of a GPU ----------------------------------------------------------------------------- */

enum { SWITCHES = 4, SWITCH_DOMAIN = 0xffff };

uint32_t link_count(const struct description *description, uint32_t position)
{
    uint32_t count = description->gpus[position].switch_links;
    for (uint32_t i = 0; i < description->gpu_count; i++)
        count += description->nvlinks[position][i];
    return count;
}

bool link_end(const struct description *description, uint32_t position, uint32_t link, struct link_end *end)
{
    for (uint32_t i = 0; i < description->gpu_count; i++) {
        uint32_t here = description->nvlinks[position][i];
        if (link < here) {
            *end = (struct link_end){.peer = i, .pci = description->gpus[i].pci};
            return true;
        }
        link -= here;
    }
    if (link >= description->gpus[position].switch_links)
        return false;
    /* Links are dealt out to the switches in turn, at an address that no GPU has. */
    *end = (struct link_end){.to_switch = true, .peer = link % SWITCHES,
                             .pci = {.domain = SWITCH_DOMAIN, .bus = 1 + link % SWITCHES}};
    return true;
}

uint32_t link_generation(const struct gpu *gpu)
{
    switch (gpu->compute_major) {
    case 6:
        return 1;
    case 7:
        return 2;
    case 8:
        return 3;
    case 9:
        return 4;
    case 10:
        return 5;
    default:
        return 0;
    }
}

uint32_t link_speed_mbps(const struct gpu *gpu)
{
    static const uint32_t speeds[] = {0, 20000, 25781, 25000, 26562, 53125};
    return speeds[link_generation(gpu)];
}

/* Locks, finds the GPU, and leaves the lock held on success only. */
static nvmlReturn_t lock_gpu(nvmlDevice_t device, const struct node **node, uint32_t *position, const char *caller)
{
    nvmlReturn_t status = node_lock(node, caller);
    if (status != NVML_SUCCESS)
        return status;
    status = node_find(*node, device, position);
    if (status == NVML_SUCCESS)
        status = gpu_state(&(*node)->description->gpus[*position]);
    if (status != NVML_SUCCESS)
        node_unlock();
    return status;
}

static nvmlReturn_t read_link(nvmlDevice_t device, unsigned link, struct link_end *end, const char *caller)
{
    const struct node *node;
    uint32_t position;
    REQUIRE(link < LINKS_MAX);
    nvmlReturn_t status = lock_gpu(device, &node, &position, caller);
    if (status != NVML_SUCCESS)
        return status;
    bool there = link_end(node->description, position, link, end);
    node_unlock();
    return there ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    struct link_end end;
    REQUIRE(active);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status == NVML_SUCCESS)
        *active = 1;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    struct link_end end;
    REQUIRE(version);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status != NVML_SUCCESS)
        return status;
    READ_GPU(device, gpu);
    *version = link_generation(&gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability,
                                                  unsigned *answer)
{
    enum { PEER_ACCESS, SYSTEM_ACCESS, PEER_ATOMICS, SYSTEM_ATOMICS, BRIDGE, VALID, CAPABILITIES };
    struct link_end end;
    REQUIRE(answer && capability < CAPABILITIES);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status == NVML_SUCCESS)
        *answer = capability != BRIDGE;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    struct link_end end;
    REQUIRE(pci);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status != NVML_SUCCESS)
        return status;
    *pci = (nvmlPciInfo_t){.domain = end.pci.domain, .bus = end.pci.bus, .device = end.pci.device};
    write_bus_id(&end.pci, pci->busId);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    enum { GPU = 0, SWITCH = 2 };
    struct link_end end;
    REQUIRE(type);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status == NVML_SUCCESS)
        *type = end.to_switch ? SWITCH : GPU;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                                    uint64_t *count)
{
    struct link_end end;
    REQUIRE(count && counter < 5);
    nvmlReturn_t status = read_link(device, link, &end, __func__);
    if (status == NVML_SUCCESS)
        *count = 0;
    return status;
}

/* --- pairs of GPUs ---------------------------------------------------------------------------------- */

struct pair {
    bool same, switched;
    enum path path;
    uint32_t links;
};

static nvmlReturn_t read_pair(nvmlDevice_t left, nvmlDevice_t right, struct pair *pair, const char *caller)
{
    const struct node *node;
    uint32_t a, b;
    nvmlReturn_t status = lock_gpu(left, &node, &a, caller);
    if (status != NVML_SUCCESS)
        return status;
    status = node_find(node, right, &b);
    if (status == NVML_SUCCESS)
        status = gpu_state(&node->description->gpus[b]);
    if (status == NVML_SUCCESS) {
        const struct description *description = node->description;
        *pair = (struct pair){
            .same = a == b,
            .switched = description->gpus[a].switch_links && description->gpus[b].switch_links,
            .path = description_path(description, a, b),
            .links = description->nvlinks[a][b],
        };
    }
    node_unlock();
    return status;
}

static unsigned level_of(const struct pair *pair)
{
    static const unsigned levels[] = {[PATH_PIX] = TOPOLOGY_SINGLE,      [PATH_PXB] = TOPOLOGY_MULTIPLE,
                                      [PATH_PHB] = TOPOLOGY_HOST_BRIDGE, [PATH_NODE] = TOPOLOGY_NODE,
                                      [PATH_SYS] = TOPOLOGY_SYSTEM};
    return pair->same ? TOPOLOGY_INTERNAL : levels[pair->path];
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t left, nvmlDevice_t right, unsigned *level)
{
    struct pair pair;
    REQUIRE(level);
    nvmlReturn_t status = read_pair(left, right, &pair, __func__);
    if (status == NVML_SUCCESS)
        *level = level_of(&pair);
    return status;
}

/* The handles of visible GPUs that `choose` takes; count first, as the interface does it. */
static nvmlReturn_t collect(const struct node *node, const bool chosen[GPUS_MAX], unsigned *count,
                            nvmlDevice_t *devices)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < node->visible_count; i++) {
        uint32_t position = node->visible[i];
        if (!chosen[position])
            continue;
        if (devices && found < *count)
            devices[found] = node_handle(&node->description->gpus[position]);
        found++;
    }
    bool fits = !devices || found <= *count;
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                                     nvmlDevice_t *devices)
{
    const struct node *node;
    uint32_t position;
    bool chosen[GPUS_MAX] = {false};
    REQUIRE(count);
    nvmlReturn_t status = lock_gpu(device, &node, &position, __func__);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < node->description->gpu_count; i++) {
        struct pair pair = {.path = description_path(node->description, position, i)};
        chosen[i] = i != position && level_of(&pair) == level;
    }
    status = collect(node, chosen, count, devices);
    node_unlock();
    return status;
}

/* GPUs near a CPU. */
EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices)
{
    const struct node *node;
    bool chosen[GPUS_MAX] = {false};
    REQUIRE(count && cpu < CPUS_MAX);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < node->description->gpu_count; i++)
        chosen[i] = node->description->gpus[i].cpus[cpu / 64] >> (cpu % 64) & 1;
    status = collect(node, chosen, count, devices);
    node_unlock();
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t left, nvmlDevice_t right, int *same)
{
    struct pair pair;
    REQUIRE(same);
    nvmlReturn_t status = read_pair(left, right, &pair, __func__);
    if (status == NVML_SUCCESS)
        *same = pair.same;
    return status;
}

/* Over PCIe, peers must be under one host bridge; over NVLink, linked or switched. */
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t left, nvmlDevice_t right, unsigned index, unsigned *answer)
{
    enum { READ_BY, WRITE_BY, NVLINK, ATOMICS, PCI };
    enum { OK = 0, TOPOLOGY_NOT_SUPPORTED = 3, NOT_SUPPORTED = 5 };
    struct pair pair;
    REQUIRE(answer && index <= PCI);
    nvmlReturn_t status = read_pair(left, right, &pair, __func__);
    if (status != NVML_SUCCESS)
        return status;
    bool linked = pair.links || (pair.switched && !pair.same);
    bool near = pair.path <= PATH_NODE;
    if (index == NVLINK || index == ATOMICS)
        *answer = linked ? OK : NOT_SUPPORTED;
    else if (index == PCI)
        *answer = near ? OK : TOPOLOGY_NOT_SUPPORTED;
    else
        *answer = linked || near ? OK : TOPOLOGY_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* --- CPUs and NUMA nodes ----------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *cpus)
{
    REQUIRE(words && cpus);
    READ_GPU(device, gpu);
    bool said = false;
    for (unsigned i = 0; i < words; i++) {
        cpus[i] = i < CPUS_MAX / 64 ? gpu.cpus[i] : 0;
        said = said || cpus[i];
    }
    return said ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *cpus,
                                                        unsigned scope)
{
    REQUIRE(scope < 2);
    return nvmlDeviceGetCpuAffinity(device, words, cpus);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *nodes,
                                                unsigned scope)
{
    REQUIRE(words && nodes && scope < 2);
    READ_GPU(device, gpu);
    if (gpu.numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < words; i++)
        nodes[i] = 0;
    nodes[0] = 1ul << gpu.numa;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    REQUIRE(node);
    READ_GPU(device, gpu);
    if (gpu.numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)gpu.numa;
    return NVML_SUCCESS;
}
