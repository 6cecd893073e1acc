/* cuInit, versions, and what this process is to the driver: not initialised, ready, a fork of one that was, or ending. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cuda/entry/driver.h"
#include "cuda/entry/log.h"
#include "node/node.h"

enum phase { NEW, READY, FORKED, ENDED };
static _Atomic enum phase phase;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int cuda_version;

/* The child has none of its parent's locks on slots, and no thread that would finish anything: as with the real driver,
 * nothing but the program's next exec helps it. */
static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    if (atomic_load(&phase) == READY)
        atomic_store(&phase, FORKED);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* The program exits. NVIDIA's 535 answers everything with this error after its exit handlers, which it registers in cuInit. */
static void end(void)
{
    atomic_store(&phase, ENDED);
}

CUresult driver_ready(void)
{
    enum phase now = atomic_load_explicit(&phase, memory_order_acquire);
    return now == READY ? CUDA_SUCCESS : now == ENDED ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult from_nvml(nvmlReturn_t status)
{
    switch (status) {
    case NVML_SUCCESS:
        return CUDA_SUCCESS;
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case NVML_ERROR_DRIVER_NOT_LOADED:
    case NVML_ERROR_NOT_FOUND:
        return CUDA_ERROR_NO_DEVICE;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

/* The node stays open: its description is looked at again for faults. */
static CUresult initialise(void)
{
    const struct node *node;
    char directory[STATE_DIRECTORY_MAX];
    nvmlReturn_t status = node_open();
    if (status != NVML_SUCCESS)
        return from_nvml(status);
    if (node_state_directory(directory) != NVML_SUCCESS) {
        driver_log("the path of the GPUs' state is too long; set FAKEGPU_STATE to a shorter one");
        node_close();
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if ((status = node_lock(&node, "cuInit")) != NVML_SUCCESS) {
        node_close();
        return from_nvml(status);
    }
    cuda_version = (int)(node->description->cuda_major * 1000 + node->description->cuda_minor * 10);
    CUresult result = devices_describe(node, directory);
    node_unlock();
    if (result != CUDA_SUCCESS)
        node_close();
    return result;
}

EXPORT CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (atomic_load_explicit(&phase, memory_order_acquire)) {
    case READY:
        return CUDA_SUCCESS;
    case FORKED:
        return CUDA_ERROR_NOT_INITIALIZED;
    case ENDED:
        return CUDA_ERROR_DEINITIALIZED;
    default:
        break;
    }
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (atomic_load(&phase) == NEW && (result = initialise()) == CUDA_SUCCESS) {
        atexit(end);
        atomic_store_explicit(&phase, READY, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Answers before cuInit too. */
EXPORT CUresult cuDriverGetVersion(int *version)
{
    const struct node *node;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&phase) == ENDED)
        return CUDA_ERROR_DEINITIALIZED;
    if (cuda_version) {
        *version = cuda_version;
        return CUDA_SUCCESS;
    }
    CUresult result = from_nvml(node_open());
    if (result != CUDA_SUCCESS)
        return result;
    result = from_nvml(node_lock(&node, __func__));
    if (result == CUDA_SUCCESS) {
        *version = (int)(node->description->cuda_major * 1000 + node->description->cuda_minor * 10);
        node_unlock();
    }
    node_close();
    return result;
}
