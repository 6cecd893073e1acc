/* The file's name says who is charged, DIRECTORY/<uuid>.ipc-<slot>-<generation>-<number>, so handing that on is renaming it. Each holder has a
 * read lock on the byte of its slot, by an open file description of its own, and so has a lent descriptor on another byte: the kernel
 * takes them away with the last descriptor, however its process ends. */
#define _GNU_SOURCE /* open file description locks */
#include "cuda/device/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


/* Bytes that are locked, beyond those of any memory. */
#define HOLDERS ((off_t)1 << 50)
#define LENT (HOLDERS + SLOTS_MAX + 1) /* NO_SLOT holds nothing */
#define GATE (LENT + 1) /* of who changes holders or the name */
enum { NO_SLOT = SLOTS_MAX /* in the name of memory that only a descriptor keeps, once its last holder is dead */ };

/* What this process was charged for last, and only descriptors may keep. */
struct given_up {
    struct given_up *next;
    const struct device *device;
    struct shared_file shared;
};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct given_up *given_up;
static _Atomic uint64_t last_number;

static bool lock_bytes(int file, int command, short type, off_t start, off_t length, struct flock *lock)
{
    int failed;
    do {
        *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
        failed = fcntl(file, command, lock);
    } while (failed && errno == EINTR);
    return !failed;
}

static void lock_byte(int file, short type, off_t byte)
{
    struct flock lock;
    lock_bytes(file, F_OFD_SETLK, type, byte, 1, &lock);
}

static void enter(int file)
{
    struct flock lock;
    lock_bytes(file, F_OFD_SETLKW, F_WRLCK, GATE, 1, &lock);
}

static void leave(int file) { lock_byte(file, F_UNLCK, GATE); }

/* Whether another open file description has a lock there; *byte gets the first one. */
static bool locked(int file, off_t start, off_t length, off_t *byte)
{
    struct flock lock;
    if (!lock_bytes(file, F_OFD_GETLK, F_WRLCK, start, length, &lock) || lock.l_type == F_UNLCK)
        return false;
    if (byte)
        *byte = lock.l_start;
    return true;
}

/* A process that lives and holds it by another description than `file`; -1: none. A child of fork keeps its dead parent's descriptions. */
static int other_holder(const struct device *device, int file)
{
    off_t from = HOLDERS, found;
    while (from < LENT && locked(file, from, LENT - from, &found)) {
        if (state_alive(&device->state, (unsigned)(found - HOLDERS), NULL))
            return (int)(found - HOLDERS);
        from = found + 1;
    }
    return -1;
}

static uint64_t generation_of(const struct device *device, unsigned slot)
{
    return slot < SLOTS_MAX ? atomic_load(&device->state.state->slots[slot].generation) : 0;
}

void shared_prefix(const struct device *device, char *path, size_t size)
{
    snprintf(path, size, "%s/%s.ipc-", device->directory, device->gpu.uuid);
}

bool shared_path(const struct device *device, unsigned slot, uint64_t generation, uint64_t number,
                 char path[SHARED_PATH_BYTES])
{
    char prefix[STATE_DIRECTORY_MAX + 64];
    shared_prefix(device, prefix, sizeof prefix);
    return snprintf(path, SHARED_PATH_BYTES, "%s%u-%llu-%llu", prefix, slot, (unsigned long long)generation,
                    (unsigned long long)number) < SHARED_PATH_BYTES;
}

static bool own_path(const struct device *device, uint64_t number, char path[SHARED_PATH_BYTES])
{
    return shared_path(device, (unsigned)device->slot, generation_of(device, (unsigned)device->slot), number, path);
}

static uint64_t size_of(int file)
{
    struct stat status;
    return fstat(file, &status) ? 0 : (uint64_t)status.st_size;
}

/* With the gate: another slot's owner, or none, is charged from here on. */
static void hand_on(const struct device *device, int file, const char *path, uint64_t number, unsigned slot)
{
    char fresh[SHARED_PATH_BYTES];
    if (!shared_path(device, slot, generation_of(device, slot), number, fresh) || rename(path, fresh) || slot == NO_SLOT)
        return;
    atomic_fetch_add(&device->state.state->held_bytes[slot], size_of(file));
    atomic_fetch_add(&device->state.state->changes, 1);
}

bool shared_make(const struct device *device, size_t size, struct shared_file *made)
{
    unsigned slot = (unsigned)device->slot;
    char path[SHARED_PATH_BYTES];
    uint64_t number = (uint64_t)slot << 54 | (generation_of(device, slot) & 0xffffff) << 30 |
                      (atomic_fetch_add(&last_number, 1) + 1);
    int file = own_path(device, number, path) ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (file < 0)
        return false;
    *made = (struct shared_file){number, file};
    if (fchmod(file, 0666) || ftruncate(file, (off_t)size)) {
        int problem = errno;
        shared_unmake(device, made);
        errno = problem;
        return false;
    }
    lock_byte(file, F_RDLCK, HOLDERS + slot);
    return true;
}

void shared_unmake(const struct device *device, struct shared_file *made)
{
    char path[SHARED_PATH_BYTES];
    if (own_path(device, made->number, path))
        unlink(path);
    close(made->file);
    made->number = 0;
}

/* The same file by a description of its own. */
static int open_again(int file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, O_RDWR | O_CLOEXEC);
}

int shared_lend(const struct shared_file *shared)
{
    int file = open_again(shared->file);
    if (file >= 0)
        lock_byte(file, F_RDLCK, LENT);
    return file;
}

/* What the name says of an open file. */
static bool read_name(const struct device *device, int file, char path[SHARED_PATH_BYTES], unsigned *slot,
                      unsigned long long *generation, unsigned long long *number)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, SHARED_PATH_BYTES - 1);
    path[size > 0 ? size : 0] = '\0';
    const char *name = strstr(path, device->gpu.uuid);
    return name && sscanf(name + strlen(device->gpu.uuid), ".ipc-%u-%llu-%llu", slot, generation, number) == 3;
}

CUresult shared_join(const struct device *device, int file, struct shared_file *joined)
{
    char path[SHARED_PATH_BYTES];
    unsigned slot, own = (unsigned)device->slot;
    unsigned long long generation, number;
    enter(file);
    bool known = read_name(device, file, path, &slot, &generation, &number);
    if (known) {
        lock_byte(file, F_RDLCK, HOLDERS + own);
        if (slot != own && !locked(file, HOLDERS + slot, 1, NULL)) {
            uint64_t bytes = size_of(file);
            hand_on(device, file, path, number, own);
            if (slot != NO_SLOT && state_alive(&device->state, slot, NULL) && generation_of(device, slot) == generation)
                state_release(device->state.state, slot, bytes);
        }
        *joined = (struct shared_file){number, file};
    }
    leave(file);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With the gate: what is to be freed; `kept`: a descriptor alone keeps it. */
static uint64_t give_up(const struct device *device, const struct shared_file *shared, bool *kept)
{
    char path[SHARED_PATH_BYTES];
    *kept = false;
    if (!own_path(device, shared->number, path) || access(path, F_OK))
        return 0; /* another one is charged */
    int holder = other_holder(device, shared->file);
    if (holder >= 0)
        hand_on(device, shared->file, path, shared->number, (unsigned)holder);
    else if (locked(shared->file, LENT, 1, NULL))
        *kept = true;
    else
        unlink(path);
    return *kept ? 0 : size_of(shared->file);
}

uint64_t shared_leave(const struct device *device, struct shared_file *shared)
{
    struct given_up *entry = malloc(sizeof *entry);
    bool kept;
    enter(shared->file);
    lock_byte(shared->file, F_UNLCK, HOLDERS + device->slot);
    uint64_t bytes = give_up(device, shared, &kept);
    leave(shared->file);
    if (kept && entry) {
        pthread_mutex_lock(&mutex);
        *entry = (struct given_up){given_up, device, *shared};
        given_up = entry;
        pthread_mutex_unlock(&mutex);
    } else {
        close(shared->file);
        free(entry);
    }
    shared->number = 0;
    return bytes;
}

uint64_t shared_sweep(const struct device *device)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&mutex);
    for (struct given_up **link = &given_up; *link;) {
        struct given_up *entry = *link;
        bool kept = true;
        if (entry->device == device) {
            enter(entry->shared.file);
            bytes += give_up(device, &entry->shared, &kept);
            leave(entry->shared.file);
        }
        if (kept) {
            link = &entry->next;
            continue;
        }
        *link = entry->next;
        close(entry->shared.file);
        free(entry);
    }
    pthread_mutex_unlock(&mutex);
    return bytes;
}

static void clear_file(const struct device *device, const char *path)
{
    char now[SHARED_PATH_BYTES];
    unsigned slot;
    unsigned long long generation, number;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    enter(file);
    /* It may have another name by now. */
    if (read_name(device, file, now, &slot, &generation, &number) && !strcmp(now, path)) {
        int holder = other_holder(device, file);
        if (holder >= 0)
            hand_on(device, file, path, number, (unsigned)holder);
        else if (locked(file, LENT, 1, NULL))
            hand_on(device, file, path, number, NO_SLOT);
        else
            unlink(path);
    }
    close(file);
}

static void clear(const struct device *device, unsigned slot)
{
    char prefix[STATE_DIRECTORY_MAX + 64], path[SHARED_PATH_BYTES], *name;
    shared_prefix(device, prefix, sizeof prefix);
    size_t used = strlen(prefix);
    snprintf(prefix + used, sizeof prefix - used, "%u-", slot);
    if (!(name = strrchr(prefix, '/')))
        return;
    *name++ = '\0';
    DIR *directory = opendir(prefix);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strncmp(entry->d_name, name, strlen(name)) &&
            snprintf(path, sizeof path, "%s/%s", prefix, entry->d_name) < (int)sizeof path)
            clear_file(device, path);
    }
    closedir(directory);
}

/* Those that only descriptors kept are looked at as well, as no other process does. */
void shared_clear_slot(const struct device *device, unsigned slot)
{
    clear(device, slot);
    clear(device, NO_SLOT);
}

void shared_forget(const struct device *device, struct shared_file *shared)
{
    if (shared->number)
        shared_leave(device, shared);
}
