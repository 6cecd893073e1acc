/* Taking memory of a GPU, for which the process has a slot in its state. */
#include "cuda/device/device.h"
#include "cuda/device/shared.h"
#include "cuda/entry/log.h"
#include "node/engine.h"

static CUresult attach(struct device *device)
{
    char message[STATE_MESSAGE_MAX];
    if (device->slot >= 0)
        return CUDA_SUCCESS;
    if (!device->state.state && state_open(device->directory, device->gpu.uuid, true, &device->state, message) != STATE_OK) {
        driver_log("%s", message);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    device->slot = state_take_slot(&device->state);
    if (device->slot < 0) {
        driver_log("GPU %s: has %d processes already; end some", device->gpu.uuid, SLOTS_MAX);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t cgroups[CGROUPS_DEEP];
    node_cgroups(cgroups);
    state_enter_cgroups(device->state.state, (unsigned)device->slot, cgroups);
    shared_clear_slot(device, (unsigned)device->slot); /* its last owner may have died unseen */
    engine_begin(engine_of(device->state.state), (unsigned)device->slot); /* ... or waiting for its turn */
    return CUDA_SUCCESS;
}

CUresult device_attach(struct device *device)
{
    pthread_mutex_lock(&device->mutex);
    CUresult result = attach(device);
    pthread_mutex_unlock(&device->mutex);
    return result;
}

static void clear_slot(unsigned slot, void *argument)
{
    shared_clear_slot(argument, slot);
}

static unsigned reap(struct device *device)
{
    return state_reap(&device->state, clear_slot, device);
}

/* Memory that only descriptors kept, and no longer do, is freed whenever the process allocates or queries: otherwise it would count for it. */
static void sweep(struct device *device)
{
    uint64_t bytes = shared_sweep(device);
    if (bytes)
        device_release(device, bytes);
}

/* Memory of dead processes is freed when it is needed. */
CUresult device_reserve(struct device *device, uint64_t bytes)
{
    uint64_t limit_bytes = device_limit_bytes(device);
    unsigned slot = (unsigned)device->slot;
    pthread_mutex_lock(&device->mutex);
    sweep(device);
    bool granted = state_reserve(&device->state, slot, bytes, limit_bytes);
    if (!granted && reap(device))
        granted = state_reserve(&device->state, slot, bytes, limit_bytes);
    pthread_mutex_unlock(&device->mutex);
    return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void device_release(struct device *device, uint64_t bytes)
{
    state_release(device->state.state, (unsigned)device->slot, bytes);
}

void device_memory(struct device *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    uint64_t limit_bytes = device_limit_bytes(device);
    pthread_mutex_lock(&device->mutex);
    reap(device);
    sweep(device);
    uint64_t settled[SLOTS_MAX], held_bytes = state_settled_bytes(device->state.state, settled);
    pthread_mutex_unlock(&device->mutex);
    *free_bytes = held_bytes < limit_bytes ? limit_bytes - held_bytes : 0;
    *total_bytes = device_total_bytes(device);
    state_within_limits(device->state.state, (unsigned)device->slot, total_bytes, free_bytes);
}
