/* Calls the library from several threads while the description is replaced over and over.
 *
 * Usage: FAKEGPU_NODE=FILE hammer GOOD LOST BROKEN ROUNDS. The three files are the versions that take
 * turns in FILE's place. Whatever a call answers must be one whole version: the memory of GPU 0
 * belongs to its name, and the only errors are those that the versions bring about. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface/nvml.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t left, nvmlDevice_t right, unsigned *level);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned timeout_ms);

enum { THREADS = 4 };
static atomic_bool done;
static atomic_ulong calls;

static void expect(nvmlReturn_t status, const char *what)
{
    if (status != NVML_SUCCESS && status != NVML_ERROR_GPU_IS_LOST && status != NVML_ERROR_TIMEOUT) {
        fprintf(stderr, "%s: %d\n", what, status);
        exit(1);
    }
    atomic_fetch_add(&calls, 1);
}

static void *call(void *argument)
{
    nvmlDevice_t first, second;
    nvmlEventSet_t set = NULL;
    (void)argument;
    while (!atomic_load(&done)) {
        nvmlMemory_v2_t memory = {.version = sizeof memory | 2u << 24};
        nvmlEventData_t event;
        char uuid[96];
        unsigned level;
        expect(nvmlInit_v2(), "init");
        nvmlReturn_t status = nvmlDeviceGetHandleByIndex_v2(0, &first);
        expect(status, "handle");
        if (status == NVML_SUCCESS) {
            status = nvmlDeviceGetMemoryInfo_v2(first, &memory);
            expect(status, "memory");
            if (status == NVML_SUCCESS && memory.total != (UINT64_C(16160) << 20))
                expect(NVML_ERROR_UNKNOWN, "memory of another version");
            expect(nvmlDeviceGetUUID(first, uuid, sizeof uuid), "uuid");
            if (nvmlDeviceGetHandleByIndex_v2(1, &second) == NVML_SUCCESS)
                expect(nvmlDeviceGetTopologyCommonAncestor(first, second, &level), "path");
            expect(nvmlEventSetCreate(&set), "event set");
            status = nvmlDeviceRegisterEvents(first, EVENT_XID_CRITICAL, set);
            expect(status, "register");
            expect(nvmlEventSetWait_v2(set, &event, 0), "wait");
            nvmlEventSetFree(set);
        }
        expect(nvmlShutdown(), "shutdown");
    }
    return NULL;
}

static void put(const char *source, const char *target)
{
    char text[1 << 16], beside[4096];
    FILE *in = fopen(source, "r");
    size_t size = in ? fread(text, 1, sizeof text, in) : 0;
    snprintf(beside, sizeof beside, "%s.new", target);
    FILE *out = fopen(beside, "w");
    if (!in || !out || fwrite(text, 1, size, out) != size || fclose(out) || rename(beside, target)) {
        perror(source);
        exit(1);
    }
    fclose(in);
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    const char *target = getenv("FAKEGPU_NODE");
    if (count != 5 || !target)
        return 2;
    put(arguments[1], target);
    expect(nvmlInit_v2(), "first init");
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call, NULL);
    for (int round = 0; round < atoi(arguments[4]); round++) {
        unsigned long before = atomic_load(&calls);
        put(arguments[1 + round % 3], target);
        while (atomic_load(&calls) < before + 20)
            sched_yield(); /* each version is looked at */
    }
    atomic_store(&done, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    expect(nvmlShutdown(), "last shutdown");
    printf("%lu calls\n", atomic_load(&calls));
    return 0;
}
