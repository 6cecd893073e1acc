/* Events: XIDs and ECC errors.
 *
 * A description says how often each has happened so far. An event set keeps, for each registered
 * GPU, the counts that it has reported; whatever the file counts beyond them becomes events, one for
 * each step. A line that is taken out lowers the count, so that putting it back is news again.
 * Waiting looks at the file every tenth of a second: no other file system event is as sure, above all
 * where the file is a mount into a container. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/node.h"

enum { LOOK_EVERY_MS = 100 };

struct counts {
    uint32_t xid_count;
    struct xid xids[XIDS_MAX];
    uint32_t ecc_corrected, ecc_uncorrected;
};

struct registration {
    struct registration *next;
    nvmlDevice_t device;
    uint64_t types;
    struct counts reported;
};

/* Guarded by the node's lock. */
struct nvml_event_set {
    struct registration *first;
};

static void take_counts(const struct gpu *gpu, struct counts *counts)
{
    counts->xid_count = gpu->xid_count;
    memcpy(counts->xids, gpu->xids, sizeof counts->xids);
    counts->ecc_corrected = gpu->ecc_corrected;
    counts->ecc_uncorrected = gpu->ecc_uncorrected;
}

static uint32_t *reported_of(struct counts *counts, uint32_t xid)
{
    for (uint32_t i = 0; i < counts->xid_count; i++) {
        if (counts->xids[i].number == xid)
            return &counts->xids[i].count;
    }
    return NULL;
}

/* Forgets what the file no longer counts, and makes room for what it counts newly. */
static void follow(struct counts *reported, const struct gpu *gpu)
{
    struct counts next;
    take_counts(gpu, &next);
    for (uint32_t i = 0; i < next.xid_count; i++) {
        uint32_t *before = reported_of(reported, next.xids[i].number);
        if (!before || *before < next.xids[i].count)
            next.xids[i].count = before ? *before : 0;
    }
    if (reported->ecc_corrected < next.ecc_corrected)
        next.ecc_corrected = reported->ecc_corrected;
    if (reported->ecc_uncorrected < next.ecc_uncorrected)
        next.ecc_uncorrected = reported->ecc_uncorrected;
    *reported = next;
}

/* The next event to report, counted as reported. */
static bool next_event(struct registration *registration, const struct gpu *gpu, uint64_t *type, uint64_t *data)
{
    struct counts *reported = &registration->reported;
    follow(reported, gpu);
    for (uint32_t i = 0; i < gpu->xid_count; i++) {
        if (reported->xids[i].count == gpu->xids[i].count)
            continue;
        if (!(registration->types & EVENT_XID_CRITICAL)) {
            reported->xids[i].count = gpu->xids[i].count;
            continue;
        }
        reported->xids[i].count++;
        *type = EVENT_XID_CRITICAL;
        *data = gpu->xids[i].number;
        return true;
    }
    *data = 0;
    if (reported->ecc_uncorrected < gpu->ecc_uncorrected) {
        reported->ecc_uncorrected++;
        *type = EVENT_DOUBLE_BIT_ECC;
        if (registration->types & EVENT_DOUBLE_BIT_ECC)
            return true;
        reported->ecc_uncorrected = gpu->ecc_uncorrected;
    }
    if (reported->ecc_corrected < gpu->ecc_corrected) {
        reported->ecc_corrected++;
        *type = EVENT_SINGLE_BIT_ECC;
        if (registration->types & EVENT_SINGLE_BIT_ECC)
            return true;
        reported->ecc_corrected = gpu->ecc_corrected;
    }
    return false;
}

/* --- the interface -------------------------------------------------------------------------------- */

static uint64_t supported_events(const struct gpu *gpu)
{
    return gpu->ecc == SWITCH_UNSAID ? EVENT_XID_CRITICAL : EVENTS_KNOWN;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, uint64_t *types)
{
    REQUIRE(types);
    READ_GPU(device, gpu);
    *types = supported_events(&gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    const struct node *node;
    REQUIRE(set);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    *set = calloc(1, sizeof **set);
    node_unlock();
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    REQUIRE(set);
    for (struct registration *one = set->first, *next; one; one = next) {
        next = one->next;
        free(one);
    }
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    const struct node *node;
    uint32_t position;
    REQUIRE(set);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    status = node_find(node, device, &position);
    const struct gpu *gpu = status == NVML_SUCCESS ? &node->description->gpus[position] : NULL;
    if (gpu)
        status = gpu_state(gpu);
    if (status == NVML_SUCCESS && types & ~supported_events(gpu))
        status = NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS) {
        struct registration *one = set->first;
        while (one && one->device != device)
            one = one->next;
        if (!one && (one = calloc(1, sizeof *one))) {
            *one = (struct registration){.next = set->first, .device = device};
            take_counts(gpu, &one->reported);
            set->first = one;
        }
        if (one)
            one->types |= types;
        else
            status = NVML_ERROR_MEMORY;
    }
    node_unlock();
    return status;
}

/* One look: an event, NVML_ERROR_TIMEOUT for none, or what ails the node or a registered GPU. */
static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *event, const char *caller)
{
    const struct node *node;
    nvmlReturn_t status = node_lock(&node, caller);
    if (status != NVML_SUCCESS)
        return status;
    status = NVML_ERROR_TIMEOUT;
    for (struct registration *one = set->first; one; one = one->next) {
        uint32_t position;
        if (node_find(node, one->device, &position) != NVML_SUCCESS) {
            status = NVML_ERROR_GPU_IS_LOST;
            continue;
        }
        const struct gpu *gpu = &node->description->gpus[position];
        uint64_t type, data;
        if (next_event(one, gpu, &type, &data)) {
            *event = (nvmlEventData_t){.device = one->device, .eventType = type, .eventData = data,
                                       .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
            status = NVML_SUCCESS;
            break;
        }
        if (gpu->fault == GPU_LOST)
            status = NVML_ERROR_GPU_IS_LOST;
    }
    node_unlock();
    return status;
}

static int64_t monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned timeout_ms)
{
    REQUIRE(set && event);
    int64_t end_ms = monotonic_ms() + timeout_ms;
    const char *caller = __func__;
    for (;;) {
        nvmlReturn_t status = look(set, event, caller);
        int64_t left_ms = end_ms - monotonic_ms();
        if (status != NVML_ERROR_TIMEOUT || left_ms <= 0)
            return status;
        struct timespec pause = {.tv_nsec = (left_ms < LOOK_EVERY_MS ? left_ms : LOOK_EVERY_MS) * 1000000};
        nanosleep(&pause, NULL); /* a signal only makes the next look come early */
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *event, unsigned timeout_ms)
{
    nvmlEventData_t whole;
    REQUIRE(event);
    nvmlReturn_t status = nvmlEventSetWait_v2(set, &whole, timeout_ms);
    if (status == NVML_SUCCESS)
        *event = (nvmlEventData_v1_t){.device = whole.device, .eventType = whole.eventType, .eventData = whole.eventData};
    return status;
}
