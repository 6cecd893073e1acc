#define _GNU_SOURCE /* F_OFD_GETLK, fallocate */
#include "node/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT32_C(0x66616b65) /* "fake" */
enum { PATH_BYTES = 4096 };

_Static_assert(sizeof(struct state) % 4096 == 0, "a state is whole pages");
_Static_assert(BUSY_BUCKET_NS < 1 << 26, "a bucket's nanoseconds fit their bits");

/* --- opening -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static enum state_error unusable(char message[STATE_MESSAGE_MAX],
                                                                       const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, STATE_MESSAGE_MAX, format, arguments);
    va_end(arguments);
    return STATE_UNUSABLE;
}

/* Any user of the machine may be a user of the GPU, whatever this process's umask says. A file that is there is opened
 * without O_CREAT: kernels refuse that for another user's file in a folder for everybody (fs.protected_regular). */
static int open_file(const char *path, bool create, bool *writable)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT && create) {
        file = open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
        if (file >= 0)
            (void)!fchmod(file, 0666); /* its own file: that does not fail */
        else if (errno == EEXIST)
            file = open(path, O_RDWR | O_CLOEXEC);
    }
    *writable = file >= 0;
    if (file < 0 && !create && (errno == EACCES || errno == EROFS || errno == EPERM))
        file = open(path, O_RDONLY | O_CLOEXEC);
    return file;
}

static enum state_error map(const char *path, int file, bool create, bool writable, struct state **mapped,
                            char message[STATE_MESSAGE_MAX])
{
    struct stat status;
    if (fstat(file, &status))
        return unusable(message, "%.300s: %s", path, strerror(errno));
    if (status.st_size < (off_t)sizeof(struct state)) {
        if (!create)
            return STATE_ABSENT; /* its maker is at it */
        if (status.st_size || ftruncate(file, sizeof(struct state))) {
            /* Another maker may have been faster; a size that is neither is another version's. */
            if (fstat(file, &status) || status.st_size != (off_t)sizeof(struct state))
                return unusable(message, "%.300s: is not a GPU's state of this version; end its users and remove it", path);
        }
    }
    /* On a full disk a hole would be the death of who writes to it. */
    if (create && fallocate(file, 0, 0, sizeof(struct state)) && errno != EOPNOTSUPP)
        return unusable(message, "%.300s: %s; make room, or set FAKEGPU_STATE to another directory", path, strerror(errno));
    void *memory = mmap(NULL, sizeof(struct state), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return unusable(message, "%.300s: cannot be mapped: %s", path, strerror(errno));
    struct state *state = memory;
    uint32_t none = 0;
    if (writable && create) {
        atomic_compare_exchange_strong(&state->version, &none, STATE_VERSION);
        none = 0;
        atomic_compare_exchange_strong(&state->magic, &none, MAGIC);
    }
    uint32_t magic = atomic_load(&state->magic), version = atomic_load(&state->version);
    if (magic != MAGIC || version != STATE_VERSION) {
        munmap(memory, sizeof(struct state));
        if (!magic && !create)
            return STATE_ABSENT;
        return unusable(message, "%.300s: is of version %u, not %d; end its users and remove it", path, version,
                        STATE_VERSION);
    }
    *mapped = state;
    return STATE_OK;
}

enum state_error state_open(const char *directory, const char *uuid, bool create, struct state_files *files,
                            char message[STATE_MESSAGE_MAX])
{
    char path[PATH_BYTES], lock_path[PATH_BYTES];
    bool writable, lock_writable;
    *files = (struct state_files){NULL, -1, false};
    if (create && !mkdir(directory, 01777))
        (void)!chmod(directory, 01777);
    if (snprintf(path, sizeof path, "%s/%s", directory, uuid) >= (int)sizeof path - 8)
        return unusable(message, "the path of the GPUs' state is too long; set FAKEGPU_STATE to a shorter one");
    snprintf(lock_path, sizeof lock_path, "%s/%s.lock", directory, uuid);
    int lock_file = open_file(lock_path, create, &lock_writable);
    int file = lock_file < 0 ? -1 : open_file(path, create, &writable);
    if (file < 0) {
        int problem = errno;
        /* No lock was taken through it yet, and a process opens a GPU's files once. */
        if (lock_file >= 0)
            close(lock_file);
        if (!create && problem == ENOENT)
            return STATE_ABSENT;
        return unusable(message, "%.300s: %s; let every user write there, or set FAKEGPU_STATE to another directory",
                        path, strerror(problem));
    }
    struct state *state = NULL;
    enum state_error error = map(path, file, create, writable, &state, message);
    close(file); /* the mapping stays; only the lock file's descriptor must */
    if (error != STATE_OK) {
        close(lock_file);
        return error;
    }
    *files = (struct state_files){state, lock_file, writable && lock_writable};
    return STATE_OK;
}

/* --- slots ---------------------------------------------------------------------------------------------------- */

/* One byte of the lock file. */
static int lock_call(int file, int command, short type, unsigned slot, struct flock *lock)
{
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    int failed;
    do
        failed = fcntl(file, command, lock);
    while (failed && errno == EINTR);
    return failed;
}

bool state_alive(const struct state_files *files, unsigned slot, pid_t *pid)
{
    struct flock lock;
    if (lock_call(files->lock_file, F_OFD_GETLK, F_WRLCK, slot, &lock))
        lock.l_type = F_WRLCK; /* unknown: then no process's memory is released */
    if (pid)
        *pid = lock.l_type == F_UNLCK || lock.l_pid < 0 ? 0 : lock.l_pid;
    return lock.l_type != F_UNLCK;
}

/* A process that clears or takes a slot claims it first: no other does meanwhile. A lock of the process, so of its threads one at a time does this
 * (see cuda/device/device.c), and a child of fork has no part in it. */
static bool claim(const struct state_files *files, unsigned slot)
{
    struct flock lock;
    return !lock_call(files->lock_file, F_SETLK, F_WRLCK, SLOTS_MAX + slot, &lock);
}

static void unclaim(const struct state_files *files, unsigned slot)
{
    struct flock lock;
    lock_call(files->lock_file, F_SETLK, F_UNLCK, SLOTS_MAX + slot, &lock);
}

/* What a dead owner left, away; the caller has claimed the slot. The process id goes last, or becomes the next owner's: a slot
 * that has one is looked at again, should the caller die here. */
static void clear_slot(struct state *state, unsigned index, pid_t next)
{
    struct slot *slot = &state->slots[index];
    atomic_store(&state->held_bytes[index], 0);
    atomic_store(&slot->trying_bytes, 0);
    atomic_store(&slot->busy_ns, 0);
    for (unsigned i = 0; i < BUSY_BUCKETS; i++)
        atomic_store(&slot->busy.buckets[i], 0);
    for (unsigned i = 0; i < CGROUPS_DEEP; i++)
        atomic_store(&slot->cgroups[i], 0);
    atomic_store(&slot->pid, next);
}

/* A claimed slot becomes this process's, unless another was faster. In this order: it is empty, and of a new generation, before it is
 * anybody's. */
static bool settle_in(const struct state_files *files, unsigned slot)
{
    struct flock lock;
    if (state_alive(files, slot, NULL))
        return false;
    clear_slot(files->state, slot, getpid());
    atomic_fetch_add(&files->state->slots[slot].generation, 1);
    return !lock_call(files->lock_file, F_SETLK, F_WRLCK, slot, &lock);
}

int state_take_slot(const struct state_files *files)
{
    struct state *state = files->state;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        if (state_alive(files, i, NULL) || !claim(files, i))
            continue;
        bool taken = settle_in(files, i);
        unclaim(files, i);
        if (!taken)
            continue;
        uint32_t used = atomic_load(&state->slots_used);
        while (used < i + 1 && !atomic_compare_exchange_weak(&state->slots_used, &used, i + 1))
            ;
        return (int)i;
    }
    return -1;
}

void state_enter_cgroups(struct state *state, unsigned slot, const uint64_t cgroups[CGROUPS_DEEP])
{
    for (unsigned i = 0; i < CGROUPS_DEEP; i++)
        atomic_store(&state->slots[slot].cgroups[i], cgroups[i]);
}

bool state_is_below(const struct state *state, unsigned slot, uint64_t cgroup)
{
    for (unsigned i = 0; i < CGROUPS_DEEP; i++) {
        uint64_t one = atomic_load(&state->slots[slot].cgroups[i]);
        if (!one || one == cgroup)
            return one != 0;
    }
    return false;
}

unsigned state_reap(const struct state_files *files, void (*cleared)(unsigned slot, void *argument), void *argument)
{
    struct state *state = files->state;
    unsigned count = 0, used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used && i < SLOTS_MAX; i++) {
        if (!atomic_load(&state->held_bytes[i]) && !atomic_load(&state->slots[i].pid))
            continue;
        if (state_alive(files, i, NULL) || !claim(files, i))
            continue;
        if (!state_alive(files, i, NULL)) {
            if (cleared)
                cleared(i, argument);
            clear_slot(state, i, 0);
            count++;
        }
        unclaim(files, i);
    }
    return count;
}

/* --- time ----------------------------------------------------------------------------------------------------- */

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static const uint64_t BUCKET_BITS = 26, BUCKET_MASK = (1 << 26) - 1;

static void add_to_bucket(struct busy_ring *ring, uint64_t number, uint64_t busy_ns)
{
    _Atomic uint64_t *bucket = &ring->buckets[number % BUSY_BUCKETS];
    uint64_t seen = atomic_load_explicit(bucket, memory_order_relaxed), fresh;
    do {
        if (seen >> BUCKET_BITS > number)
            return; /* the ring has gone round since */
        uint64_t sum = (seen >> BUCKET_BITS == number ? seen & BUCKET_MASK : 0) + busy_ns;
        fresh = number << BUCKET_BITS | (sum < BUSY_BUCKET_NS ? sum : BUSY_BUCKET_NS);
    } while (!atomic_compare_exchange_weak_explicit(bucket, &seen, fresh, memory_order_relaxed, memory_order_relaxed));
}

void state_add_busy(struct state *state, unsigned slot, uint64_t from_ns, uint64_t to_ns)
{
    if (to_ns <= from_ns)
        return;
    atomic_fetch_add_explicit(&state->busy_ns, to_ns - from_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&state->slots[slot].busy_ns, to_ns - from_ns, memory_order_relaxed);
    if (to_ns - from_ns > BUSY_BUCKETS * BUSY_BUCKET_NS)
        from_ns = to_ns - BUSY_BUCKETS * BUSY_BUCKET_NS;
    while (from_ns < to_ns) {
        uint64_t number = from_ns / BUSY_BUCKET_NS, end = (number + 1) * BUSY_BUCKET_NS;
        uint64_t part = (end < to_ns ? end : to_ns) - from_ns;
        add_to_bucket(&state->busy, number, part);
        add_to_bucket(&state->slots[slot].busy, number, part);
        from_ns += part;
    }
}

uint64_t busy_between(const struct busy_ring *ring, uint64_t from_ns, uint64_t to_ns, uint64_t *window_ns)
{
    uint64_t first = from_ns / BUSY_BUCKET_NS, end = to_ns / BUSY_BUCKET_NS, busy_ns = 0;
    if (end - first >= BUSY_BUCKETS)
        first = end - BUSY_BUCKETS + 1;
    for (uint64_t number = first; number < end; number++) {
        uint64_t seen = atomic_load_explicit(&ring->buckets[number % BUSY_BUCKETS], memory_order_relaxed);
        if (seen >> BUCKET_BITS == number)
            busy_ns += seen & BUCKET_MASK;
    }
    *window_ns = (end - first) * BUSY_BUCKET_NS;
    return busy_ns;
}
