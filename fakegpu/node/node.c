#define _GNU_SOURCE /* dladdr */
#include "description/reading.h"
#include "node/node.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "description/mig.h"
#include "description/writing.h"
#include "node/replacing.h"
#include "node/visible.h"

struct nvml_device {
    char uuid[41];
};

/* Which version of the file was read; all zero: none. */
struct version {
    dev_t device;
    ino_t inode;
    struct timespec changed;
    off_t size;
};

enum { HANDLES_MAX = 1024, VARIABLE_MAX = 4096 };

/* Where a machine that has the driver installed keeps the description; containers get it at the same place. */
#define DEFAULT_NODE "/etc/fakegpu/node.conf"
#define DEFAULT_STATE "/run/fakegpu"
/* Where installed libraries lie; what is before it in this one's path is the root of its machine. */
#define LIBRARIES "/usr/lib"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned opened;                      /* node_open without node_close */
static struct description *description;      /* the last good one, NULL before it */
static struct version read_version;          /* of the file as last read, good or not */
static bool file_gone;                       /* as last looked at */
static struct node node;
static char unknown_name[UNKNOWN_NAME_MAX];                /* named in FAKEGPU_VISIBLE_DEVICES, but no GPU of the node */
/* As it was at the first node_open: getenv is unsafe beside a thread that sets variables. */
static struct {
    char node[VARIABLE_MAX], visible[VARIABLE_MAX], trace[VARIABLE_MAX], state[VARIABLE_MAX];
    char cgroups[VARIABLE_MAX], proc[VARIABLE_MAX];
    bool installed; /* the description is the machine's, none other was named */
} environment;
static struct nvml_device handles[HANDLES_MAX];
static size_t handle_count;

/* A child of fork must not inherit a mutex that another thread held. */
static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* One write, so that lines of several threads and processes do not mix. */
static void report(const char *problem, const char *advice)
{
    char line[MESSAGE_MAX + 256];
    int size = snprintf(line, sizeof line, "fakegpu: %s%s\n", problem, advice);
    if (size > 0 && write(STDERR_FILENO, line, strnlen(line, sizeof line)) < 0)
        return; /* nothing reads stderr */
}

/* Lines name what clients call, in order; for finding out what a new client wants. */
static void trace(const char *caller)
{
    char line[128];
    if (!environment.trace[0])
        return;
    int size = snprintf(line, sizeof line, "%s\n", caller);
    int file = open(environment.trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    if (write(file, line, (size_t)size) < 0)
        size = 0; /* a trace that cannot be written is no reason to fail */
    close(file);
}

/* Whether the variable has changed. */
static bool take_variable(const char *name, const char *unset, char value[VARIABLE_MAX])
{
    char before[VARIABLE_MAX];
    const char *found = getenv(name);
    strcpy(before, value);
    snprintf(value, VARIABLE_MAX, "%s", found ? found : unset);
    return strcmp(before, value);
}

static void forget_description(void)
{
    free(description);
    description = NULL;
    memset(&read_version, 0, sizeof read_version);
}

/* A program may change its directory afterwards. */
static void make_absolute(char path[VARIABLE_MAX])
{
    char here[VARIABLE_MAX], whole[2 * VARIABLE_MAX];
    if (!*path || *path == '/' || !getcwd(here, sizeof here))
        return;
    int size = snprintf(whole, sizeof whole, "%s/%s", here, path);
    if (size > 0 && size < VARIABLE_MAX)
        memcpy(path, whole, (size_t)size + 1);
}

/* The description of the machine that this library is installed on. A program may have that machine's files
 * under another root, such as /host; where the library was loaded from shows it, links followed. */
static void installed_node(char path[VARIABLE_MAX])
{
    Dl_info found;
    char *loaded = NULL, *end = NULL;
    if (dladdr(&environment, &found) && found.dli_fname && found.dli_fname[0] == '/')
        loaded = realpath(found.dli_fname, NULL);
    if (loaded)
        end = strstr(loaded, LIBRARIES "/");
    int root = end ? (int)(end - loaded) : 0;
    if (root > VARIABLE_MAX / 2)
        root = 0;
    snprintf(path, VARIABLE_MAX, "%.*s" DEFAULT_NODE, root, root ? loaded : "");
    free(loaded);
}

static void take_environment(void)
{
    char before[VARIABLE_MAX], installed[VARIABLE_MAX];
    strcpy(before, environment.node);
    installed_node(installed);
    environment.installed = !getenv("FAKEGPU_NODE");
    take_variable("FAKEGPU_NODE", installed, environment.node);
    make_absolute(environment.node);
    bool moved = strcmp(before, environment.node);
    moved |= take_variable("FAKEGPU_VISIBLE_DEVICES", "all", environment.visible);
    take_variable("FAKEGPU_TRACE", "", environment.trace);
    take_variable("FAKEGPU_STATE", "", environment.state);
    make_absolute(environment.state);
    take_variable("FAKEGPU_CGROUPS", "/sys/fs/cgroup", environment.cgroups);
    make_absolute(environment.cgroups);
    take_variable("FAKEGPU_PROC", "/proc", environment.proc);
    make_absolute(environment.proc);
    if (moved) {
        forget_description();
        file_gone = false;
    }
}

/* --- the file --------------------------------------------------------------------------------- */

static bool same_version(const struct version *a, const struct version *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static struct version version_of(const struct stat *status)
{
    return (struct version){status->st_dev, status->st_ino, status->st_mtim, status->st_size};
}

/* Reads at most one byte more than a description may have. Returns its size, or -1. */
static ssize_t read_whole(int file, char *text)
{
    size_t size = 0, room = DESCRIPTION_MAX_BYTES + 1;
    while (size < room) {
        ssize_t got = read(file, text + size, room - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (!got)
            break;
        size += (size_t)got;
    }
    return (ssize_t)size;
}

static void read_file(const char *path, int file)
{
    char message[MESSAGE_MAX];
    char *text = malloc(DESCRIPTION_MAX_BYTES + 1);
    struct description *fresh = malloc(sizeof *fresh);
    ssize_t size = text && fresh ? read_whole(file, text) : -1;
    if (size < 0) {
        snprintf(message, sizeof message, "%.300s: cannot be read: %s", path, strerror(errno));
        report(message, "");
    } else if (description_read(text, (size_t)size, path, fresh, message)) {
        free(description);
        description = fresh;
        fresh = NULL;
        node.description = description;
        node.visible_count = visible_choose(description, environment.visible, environment.installed, node.visible, unknown_name);
    } else {
        report(message, description ? " (the description before it stays in force)" : "");
    }
    free(fresh);
    free(text);
}

static void look_at_file(void)
{
    const char *path = environment.node;
    struct stat status;
    int file = -1, problem = 0;
    /* Nearly every call ends here. */
    if (!stat(path, &status)) {
        struct version present = version_of(&status);
        if (!file_gone && same_version(&present, &read_version))
            return;
    }
    file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
    if (file < 0 || fstat(file, &status))
        problem = errno;
    else if (!S_ISREG(status.st_mode))
        problem = EINVAL;
    if (!problem) {
        file_gone = false;
        read_version = version_of(&status);
        read_file(path, file);
    } else if (!file_gone) {
        char message[MESSAGE_MAX];
        file_gone = true;
        memset(&read_version, 0, sizeof read_version);
        if (environment.installed || !*path)
            snprintf(message, sizeof message, "FAKEGPU_NODE: not set, and no %.300s",
                     *path ? path : DEFAULT_NODE);
        else
            snprintf(message, sizeof message, "FAKEGPU_NODE: %.300s: %s", path, strerror(problem));
        report(message, "; name the file that describes the node's GPUs");
    }
    if (file >= 0)
        close(file);
}

/* Brings everything up to date. */
static nvmlReturn_t refresh(void)
{
    look_at_file();
    if (file_gone)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!description)
        return NVML_ERROR_UNKNOWN;
    switch (description->fault) {
    case DRIVER_NOT_LOADED:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case DRIVER_VERSION_MISMATCH:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    default:
        return NVML_SUCCESS;
    }
}

/* A container that asks for a GPU that the node lacks would not start; its NVML does not either. */
static nvmlReturn_t refuse_stranger(void)
{
    static bool reported;
    char message[MESSAGE_MAX];
    snprintf(message, sizeof message, "FAKEGPU_VISIBLE_DEVICES: the node has no GPU '%s'", unknown_name);
    if (!reported)
        report(message, "; name UUIDs or indices of its GPUs, 'all' or 'none'");
    reported = true;
    return NVML_ERROR_NOT_FOUND;
}

/* --- what the library calls ------------------------------------------------------------------- */

nvmlReturn_t node_open(void)
{
    pthread_mutex_lock(&mutex);
    if (!opened)
        take_environment();
    trace("nvmlInit");
    nvmlReturn_t status = refresh();
    if (status == NVML_SUCCESS && unknown_name[0])
        status = refuse_stranger();
    if (status == NVML_SUCCESS)
        opened++;
    pthread_mutex_unlock(&mutex);
    return status;
}

nvmlReturn_t node_close(void)
{
    pthread_mutex_lock(&mutex);
    nvmlReturn_t status = opened ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (opened && !--opened)
        forget_description();
    pthread_mutex_unlock(&mutex);
    return status;
}

nvmlReturn_t node_lock(const struct node **result, const char *caller)
{
    pthread_mutex_lock(&mutex);
    trace(caller);
    nvmlReturn_t status = opened ? refresh() : NVML_ERROR_UNINITIALIZED;
    *result = &node;
    if (status != NVML_SUCCESS)
        pthread_mutex_unlock(&mutex);
    return status;
}

void node_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* Beside the description that was named; on a machine that has the driver installed, where such things lie. */
nvmlReturn_t node_state_directory(char path[STATE_DIRECTORY_MAX])
{
    const char *named = environment.node;
    int size;
    pthread_mutex_lock(&mutex);
    if (environment.state[0])
        size = snprintf(path, STATE_DIRECTORY_MAX, "%s", environment.state);
    else if (environment.installed)
        size = snprintf(path, STATE_DIRECTORY_MAX, "%.*s" DEFAULT_STATE, (int)(strlen(named) - strlen(DEFAULT_NODE)), named);
    else
        size = snprintf(path, STATE_DIRECTORY_MAX, "%s.state", named);
    pthread_mutex_unlock(&mutex);
    return size < STATE_DIRECTORY_MAX ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

void node_cgroups(uint64_t ids[CGROUPS_DEEP])
{
    pthread_mutex_lock(&mutex);
    cgroups_of_process(environment.cgroups, environment.proc, ids);
    pthread_mutex_unlock(&mutex);
}

bool node_is_cgroup(const char *path)
{
    pthread_mutex_lock(&mutex);
    size_t size = strlen(environment.cgroups);
    bool below = !strncmp(path, environment.cgroups, size) && path[size] == '/' && path[size + 1] && !strstr(path, "/..");
    pthread_mutex_unlock(&mutex);
    return below;
}

nvmlDevice_t node_handle(const struct gpu *gpu)
{
    for (size_t i = 0; i < handle_count; i++) {
        if (!strcmp(handles[i].uuid, gpu->uuid))
            return &handles[i];
    }
    if (handle_count == HANDLES_MAX)
        return NULL;
    strcpy(handles[handle_count].uuid, gpu->uuid);
    return &handles[handle_count++];
}

static bool is_handle(nvmlDevice_t device)
{
    uintptr_t at = (uintptr_t)device, first = (uintptr_t)handles;
    return at >= first && at < first + handle_count * sizeof *handles && (at - first) % sizeof *handles == 0;
}

static bool is_mig_handle(nvmlDevice_t device)
{
    return !strncmp(device->uuid, "MIG-", 4);
}

nvmlReturn_t node_find(const struct node *here, nvmlDevice_t device, uint32_t *position)
{
    if (!is_handle(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (is_mig_handle(device))
        return NVML_ERROR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < here->visible_count; i++) {
        if (!strcmp(here->description->gpus[here->visible[i]].uuid, device->uuid)) {
            *position = here->visible[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_GPU_IS_LOST; /* it was there when its handle was returned */
}

nvmlReturn_t gpu_state(const struct gpu *gpu)
{
    switch (gpu->fault) {
    case GPU_LOST:
        return NVML_ERROR_GPU_IS_LOST;
    case GPU_RESET_REQUIRED:
        return NVML_ERROR_RESET_REQUIRED;
    case GPU_UNKNOWN_ERROR:
        return NVML_ERROR_UNKNOWN;
    default:
        return NVML_SUCCESS;
    }
}

nvmlReturn_t node_gpu(nvmlDevice_t device, struct gpu *gpu, uint32_t *index, const char *caller)
{
    const struct node *here;
    uint32_t position;
    nvmlReturn_t status = node_lock(&here, caller);
    if (status != NVML_SUCCESS)
        return status;
    status = node_find(here, device, &position);
    if (status == NVML_SUCCESS)
        status = gpu_state(&here->description->gpus[position]);
    if (status == NVML_SUCCESS) {
        *gpu = here->description->gpus[position];
        for (uint32_t i = 0; index && i < here->visible_count; i++) {
            if (here->visible[i] == position)
                *index = i;
        }
    }
    node_unlock();
    return status;
}

/* A MIG device that has been destroyed is no device any more. */
static nvmlReturn_t find_mig(const struct node *here, nvmlDevice_t device, struct gpu *gpu, uint32_t *parent)
{
    for (uint32_t i = 0; i < here->visible_count; i++) {
        const struct gpu *whole = &here->description->gpus[here->visible[i]];
        for (uint32_t index = 0; mig_device(whole, index, gpu); index++) {
            if (strcmp(gpu->uuid, device->uuid))
                continue;
            if (parent)
                *parent = here->visible[i];
            return gpu_state(whole);
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t node_device(nvmlDevice_t device, struct gpu *gpu, uint32_t *parent, const char *caller)
{
    const struct node *here;
    uint32_t position;
    nvmlReturn_t status = node_lock(&here, caller);
    if (status != NVML_SUCCESS)
        return status;
    if (is_handle(device) && is_mig_handle(device)) {
        status = find_mig(here, device, gpu, parent);
    } else {
        status = node_find(here, device, &position);
        if (status == NVML_SUCCESS)
            status = gpu_state(&here->description->gpus[position]);
        if (status == NVML_SUCCESS)
            *gpu = here->description->gpus[position];
        if (status == NVML_SUCCESS && parent)
            *parent = position;
    }
    node_unlock();
    return status;
}

static bool read_text(const char *path, char *text, size_t *size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read_whole(file, text);
    if (file >= 0)
        close(file);
    *size = got < 0 ? 0 : (size_t)got;
    return got >= 0;
}

/* Under lock, and with the folder's. */
static nvmlReturn_t write_instances(uint32_t position, const struct gpu *gpu)
{
    size_t size, room = DESCRIPTION_MAX_BYTES + 1;
    char *text = malloc(room), *fresh = malloc(room);
    bool written = false;
    if (text && fresh && read_text(environment.node, text, &size)) {
        size = description_with_instances(text, size, position, gpu, fresh, DESCRIPTION_MAX_BYTES);
        written = size && replacing_write(environment.node, fresh, size);
    }
    free(text);
    free(fresh);
    return written ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t node_change(nvmlDevice_t device, gpu_change *change, void *argument, const char *caller)
{
    const struct node *here;
    uint32_t position;
    struct gpu gpu;
    nvmlReturn_t status = node_lock(&here, caller);
    if (status != NVML_SUCCESS)
        return status;
    int folder = replacing_begin(environment.node);
    if (folder < 0)
        status = NVML_ERROR_NO_PERMISSION;
    if (status == NVML_SUCCESS && (status = refresh()) == NVML_SUCCESS)
        status = node_find(here, device, &position);
    if (status == NVML_SUCCESS)
        status = gpu_state(&here->description->gpus[position]);
    if (status == NVML_SUCCESS) {
        gpu = here->description->gpus[position];
        status = change(&gpu, argument);
    }
    if (status == NVML_SUCCESS)
        status = write_instances(position, &gpu);
    if (folder >= 0)
        replacing_end(folder);
    node_unlock();
    return status;
}
