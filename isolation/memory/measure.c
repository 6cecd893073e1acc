#define _GNU_SOURCE
#include "memory/measure.h"

#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

#include "process/fork_mutex.h"
#include "process/log.h"
#include "process/place.h"

struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };

struct memory { unsigned long long total, free, used; };

static struct {
    int (*init)(void);
    int (*find)(const char *uuid, void **device);
    int (*list)(void *device, unsigned *count, struct process *processes);
    int (*memory)(void *device, struct memory *memory);
    bool tried, open;
} management;

/* It stays open in a child of fork, as far as it is usable there: the driver lists the child by another number, or not at all. */
static void nothing(void) {}
MUTEX_FRESH_IN_CHILD(mutex, nothing)

static bool load(void)
{
    void *library = dlopen(MANAGEMENT_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        log_message("%s: cannot be loaded", MANAGEMENT_LIBRARY);
        return false;
    }
    management.init = (int (*)(void))dlsym(library, "nvmlInit_v2");
    management.find = (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByUUID");
    management.list = (int (*)(void *, unsigned *, struct process *))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!management.list)
        management.list =
            (int (*)(void *, unsigned *, struct process *))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    management.memory = (int (*)(void *, struct memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    return management.init && management.find && management.list && management.memory;
}

/* It is never closed again: it would be opened for every look. */
bool measure_open(void)
{
    pthread_mutex_lock(&mutex);
    if (!management.tried && !load())
        management.init = NULL;
    management.tried = true;
    if (!management.open)
        management.open = management.init && !management.init();
    bool open = management.open;
    pthread_mutex_unlock(&mutex);
    return open;
}

/* A process may be in the driver's list more than once where numbers are of another pid namespace than the driver's; each time with all that it has. */
static bool is_among(const struct measured *processes, unsigned count, unsigned pid)
{
    for (unsigned i = 0; i < count; i++) {
        if (processes[i].pid == pid)
            return true;
    }
    return false;
}

bool measure_each(const char *uuid, struct measured processes[MEASURED_MAX], unsigned *count)
{
    static struct process listed[MEASURED_MAX];
    unsigned found = MEASURED_MAX;
    void *device;
    *count = 0;
    pthread_mutex_lock(&mutex);
    bool known = management.open && !management.find(uuid, &device) && !management.list(device, &found, listed);
    for (unsigned i = 0; known && i < found && i < MEASURED_MAX; i++) {
        if (listed[i].bytes != ~0ULL && !is_among(processes, *count, listed[i].pid))
            processes[(*count)++] = (struct measured){listed[i].pid, listed[i].bytes};
    }
    pthread_mutex_unlock(&mutex);
    return known;
}

bool measure_own_bytes(const char *uuid, uint64_t *bytes)
{
    struct measured processes[MEASURED_MAX];
    unsigned count;
    *bytes = 0;
    if (!measure_each(uuid, processes, &count))
        return false;
    for (unsigned i = 0; i < count; i++) {
        if (processes[i].pid == (unsigned)getpid()) {
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
    pthread_mutex_lock(&mutex);
    bool known = management.open && !management.find(uuid, &device) && !management.memory(device, &memory);
    pthread_mutex_unlock(&mutex);
    if (known)
        *bytes = memory.used;
    return known;
}
