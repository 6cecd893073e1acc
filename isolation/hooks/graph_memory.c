/* Memory that graphs allocate themselves. The driver takes it when an instantiated graph runs, keeps it for that device's graphs and gives it
 * back when it is asked to trim; so what an instantiated graph can need is charged when it is instantiated, and for the device the
 * larger of that sum and what the driver has reserved. While one is being instantiated its need is charged on top of what the driver has
 * reserved: that may be of no use to it. */
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/reserved.h"
#include "process/fork_mutex.h"

#include <stdlib.h>

enum { DEVICES_MAX = 64, CHILDREN_DEEP = 64 };

/* What all instantiated graphs can need of a device. */
static uint64_t needed_bytes[DEVICES_MAX];
static void forget_needs(void)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        needed_bytes[i] = 0;
}
MUTEX_FRESH_IN_CHILD(mutex, forget_needs)

/* What one graph needs: pieces side by side in chunks, each in the newest one as long as it has room. */
struct need {
    uint64_t bytes[DEVICES_MAX], room_bytes[DEVICES_MAX];
};

static void add_piece(struct need *need, int device, uint64_t bytes)
{
    uint64_t size = bytes > UINT64_MAX - 512 ? bytes : (bytes + 511) / 512 * 512;
    if (device < 0 || device >= DEVICES_MAX)
        return;
    if (size > need->room_bytes[device]) {
        uint64_t chunk = reserve_growth_bytes(size);
        if (__builtin_add_overflow(need->bytes[device], chunk, &need->bytes[device]))
            need->bytes[device] = UINT64_MAX;
        need->room_bytes[device] = chunk > size ? chunk - size : 0;
    } else {
        need->room_bytes[device] -= size;
    }
}

/* CUDA_ERROR_OUT_OF_MEMORY: what it needs cannot be counted. */
static CUresult add_graph(struct need *need, CUgraph graph, int deep);

static CUresult add_node(struct need *need, CUgraphNode node, int deep)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    CUgraph child;
    int type;
    CUresult result = REAL(cuGraphNodeGetType)(node, &type);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        result = REAL(cuGraphMemAllocNodeGetParams)(node, &parameters);
        if (result == CUDA_SUCCESS && parameters.poolProps.location.type != CU_MEM_LOCATION_TYPE_HOST)
            add_piece(need, parameters.poolProps.location.id & 0xff, parameters.bytesize);
    } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
        if (deep == CHILDREN_DEEP)
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
        if (result == CUDA_SUCCESS)
            result = add_graph(need, child, deep + 1);
    }
    return result;
}

static CUresult add_graph(struct need *need, CUgraph graph, int deep)
{
    size_t count = 0;
    CUresult result = REAL(cuGraphGetNodes)(graph, NULL, &count);
    if (result != CUDA_SUCCESS || !count)
        return result;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(cuGraphGetNodes)(graph, nodes, &count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = add_node(need, nodes[i], deep);
    free(nodes);
    return result;
}

/* With the mutex. */
static CUresult settle_device(CUdevice device)
{
    int gpu;
    CUresult result = gpu_of_device(device, &gpu);
    if (result == CUDA_SUCCESS)
        result = reserved_settle(HOLDING_GRAPHS, (uint64_t)device, gpu, 0, needed_bytes[device]);
    return result;
}

static void settle_known(const struct holding *held, void *unused)
{
    (void)unused;
    settle_device((CUdevice)held->key);
}

void graph_memory_settle(void)
{
    pthread_mutex_lock(&mutex);
    holdings_each(HOLDING_GRAPHS, NULL, settle_known, NULL);
    pthread_mutex_unlock(&mutex);
}

/* With the mutex. */
static void leave(const struct need *need, int devices)
{
    for (int device = 0; device < devices; device++) {
        if (need->bytes[device]) {
            needed_bytes[device] -= need->bytes[device];
            settle_device(device);
        }
    }
}

CUresult cuDeviceGraphMemTrim(CUdevice device);

/* With the mutex: all needs, and at least what the driver may have once it has taken `more_bytes`. */
static CUresult settle_before(CUdevice device, uint64_t more_bytes)
{
    int gpu;
    uint64_t least_bytes = 0;
    CUresult result = gpu_of_device(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &least_bytes) != CUDA_SUCCESS)
        least_bytes = 0;
    if (__builtin_add_overflow(least_bytes, more_bytes, &least_bytes))
        least_bytes = UINT64_MAX;
    if (least_bytes < needed_bytes[device])
        least_bytes = needed_bytes[device];
    return reserved_settle(HOLDING_GRAPHS, (uint64_t)device, gpu, 0, least_bytes);
}

/* With the mutex. Near the limit, memory of no graph is released first. */
static CUresult enter(const struct need *need)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        if (!need->bytes[device])
            continue;
        needed_bytes[device] += need->bytes[device];
        CUresult result = settle_before(device, need->bytes[device]);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && REAL(cuDeviceGraphMemTrim)(device) == CUDA_SUCCESS)
            result = settle_before(device, need->bytes[device]);
        if (result != CUDA_SUCCESS) {
            leave(need, device + 1);
            return result;
        }
    }
    return CUDA_SUCCESS;
}

/* With the mutex: the driver has taken what it takes at once. */
static void settle_after(const struct need *need)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        if (need->bytes[device])
            settle_device(device);
    }
}

/* A graph's needs, by device in the address's unused bits. */
static uint64_t key_of(CUgraphExec exec, int device)
{
    return (uintptr_t)exec ^ (uint64_t)device << 56;
}

static void note(CUgraphExec exec, const struct need *need)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        struct holding held = {.key = key_of(exec, device), .kind = HOLDING_EXEC, .gpu = GPU_NOT_ALLOCATED,
                               .other = need->bytes[device]};
        if (held.other)
            holding_put(&held);
    }
    reserved_note_freed(0); /* the driver may reserve more than was thought: look again after the next wait */
}

/* Around each way to instantiate; graphs without memory of their own, nearly all, are not charged. */
#define INSTANTIATE(name, parameters, arguments)                                                           \
    EXPORT CUresult name parameters                                                                        \
    {                                                                                                      \
        struct need need = {0};                                                                            \
        CUresult counted = exec ? add_graph(&need, graph, 0) : CUDA_ERROR_INVALID_VALUE;                   \
        if (counted == CUDA_ERROR_OUT_OF_MEMORY)                                                           \
            return counted;                                                                                \
        if (counted != CUDA_SUCCESS)                                                                       \
            return REAL(name) arguments;                                                                   \
        pthread_mutex_lock(&mutex);                                                                        \
        CUresult result = enter(&need);                                                                    \
        if (result == CUDA_SUCCESS) {                                                                      \
            result = REAL(name) arguments;                                                                 \
            if (result == CUDA_SUCCESS)                                                                    \
                note(*exec, &need);                                                                        \
            else                                                                                           \
                leave(&need, DEVICES_MAX);                                                                 \
            settle_after(&need);                                                                           \
        }                                                                                                  \
        pthread_mutex_unlock(&mutex);                                                                      \
        return result;                                                                                     \
    }
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
            (exec, graph, node, log, log_bytes))
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
            (exec, graph, node, log, log_bytes))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, void *parameters), (exec, graph, parameters))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, void *parameters),
            (exec, graph, parameters))

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct need need = {0};
    struct holding held;
    for (int device = 0; device < DEVICES_MAX; device++) {
        if (holding_take(HOLDING_EXEC, key_of(exec, device), &held))
            need.bytes[device] = held.other;
    }
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    pthread_mutex_lock(&mutex);
    leave(&need, DEVICES_MAX);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    graph_memory_settle();
    return result;
}
