/* The GPUs that this process sees, and what it takes of them. */
#ifndef FAKEGPU_CUDA_DEVICE_DEVICE_H
#define FAKEGPU_CUDA_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "description/description.h"
#include "interface/cuda.h"
#include "node/node.h"
#include "node/state.h"

struct device {
    struct gpu gpu; /* as described when cuInit was called */
    int ordinal;
    const char *directory; /* where its state lies */
    pthread_mutex_t mutex; /* guards what follows, and state_reserve */
    struct state_files state;
    int slot; /* -1: none yet */
    CUcontext primary; /* NULL: not active */
    _Atomic unsigned contexts; /* living ones, the primary one included */
    unsigned primary_users, primary_flags;
};

/* For cuInit: copies what the description says of the visible GPUs; CUDA_ERROR_NO_DEVICE for none. `directory` is where their state lies. */
CUresult devices_describe(const struct node *node, const char *directory);

int device_count(void);

/* NULL for an ordinal that no visible GPU has. */
struct device *device_get(CUdevice ordinal);

/* Maps the state and takes a slot, once. */
CUresult device_attach(struct device *device);

/* Takes memory from the GPU for this process (rounded by the caller), clearing dead processes if it does not fit at
 * first; CUDA_ERROR_OUT_OF_MEMORY. The device must be attached. */
CUresult device_reserve(struct device *device, uint64_t bytes);
void device_release(struct device *device, uint64_t bytes);

/* What a context takes of the GPU's memory for itself. */
uint64_t context_cost_bytes(const struct device *device);

/* What is free now of the GPU, once dead processes' memory is freed, and what there is; no more than the limits of this
 * process's cgroups leave it. The device must be attached. */
void device_memory(struct device *device, uint64_t *free_bytes, uint64_t *total_bytes);

/* What CUDA calls the GPU's total: without what the driver keeps for itself. */
uint64_t device_total_bytes(const struct device *device);

/* What is usable of the GPU: total without what the driver keeps and what the description gives to others. */
uint64_t device_limit_bytes(const struct device *device);

#endif
