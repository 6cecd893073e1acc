#define _GNU_SOURCE
#include "measure.h"

#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

#include "place.h"
#include "words.h"

enum { PROCESSES_MAX = 512 };

struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };

struct memory { unsigned long long total, free, used; };

static struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, void **device);
    int (*list)(void *device, unsigned *count, struct process *processes);
    int (*memory)(void *device, struct memory *memory);
    bool open;
} management;

static bool load(void)
{
    void *library = dlopen(MANAGEMENT_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        say("%s: cannot be loaded", MANAGEMENT_LIBRARY);
        return false;
    }
    management.init = (int (*)(void))dlsym(library, "nvmlInit_v2");
    management.shutdown = (int (*)(void))dlsym(library, "nvmlShutdown");
    management.find = (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByUUID");
    management.list = (int (*)(void *, unsigned *, struct process *))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!management.list)
        management.list =
            (int (*)(void *, unsigned *, struct process *))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    management.memory = (int (*)(void *, struct memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    return management.init && management.shutdown && management.find && management.list && management.memory;
}

bool measure_open(void)
{
    management.open = (management.memory || load()) && !management.init();
    return management.open;
}

void measure_close(void)
{
    if (management.open)
        management.shutdown();
    management.open = false;
}

bool measure_own_bytes(const char *uuid, uint64_t *bytes)
{
    static struct process processes[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    void *device;
    *bytes = 0;
    if (!management.open || management.find(uuid, &device) || management.list(device, &count, processes))
        return false;
    for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++) {
        if (processes[i].pid == (unsigned)getpid() && processes[i].bytes != ~0ULL) {
            *bytes = processes[i].bytes;
            return true;
        }
    }
    return false;
}

bool measure_all_bytes(const char *uuid, uint64_t *bytes)
{
    struct memory memory;
    void *device;
    if (!management.open || management.find(uuid, &device) || management.memory(device, &memory))
        return false;
    *bytes = memory.used;
    return true;
}
