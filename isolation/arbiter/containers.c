#define _GNU_SOURCE
#include "arbiter/containers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "arbiter/gpu.h"
#include "arbiter/page.h"
#include "files/limits.h"

/* Looked at again after this even where nothing was said to have changed. */
enum { BATCH_MS = 20 };
#define LIMITS "limits"
#define USAGE "usage"

struct version {
    ino_t folder, limits;
    struct timespec changed;
};

struct container {
    char name[256];
    struct version version;
    bool found;                  /* by the scan under way */
    bool incomplete;             /* some GPU has no place for it yet */
    struct guest *guests[LIMITED_GPUS_MAX];
    struct container *next;
};

static const char *root_path;
static int root = -1, watch = -1;
static struct container *containers;

bool containers_open(const char *path, char message[512])
{
    root_path = path;
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        snprintf(message, 512, "%.300s: %s; name the folder of the containers' folders", path, strerror(errno));
        return false;
    }
    if (flock(root, LOCK_EX | LOCK_NB)) {
        fprintf(stderr, "arbiter: %s: another arbiter is at work; waiting until it ends\n", path);
        while (flock(root, LOCK_EX)) {
            if (errno != EINTR) {
                snprintf(message, 512, "%.300s: cannot be locked: %s", path, strerror(errno));
                return false;
            }
        }
    }
    watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch < 0 || inotify_add_watch(watch, path, IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM) < 0)
        fprintf(stderr, "arbiter: %s: no notification of changes (%s); looking twice a second\n", path, strerror(errno));
    return true;
}

static void dismiss(struct container *container)
{
    for (unsigned i = 0; i < LIMITED_GPUS_MAX; i++) {
        if (container->guests[i])
            gpu_dismiss(container->guests[i]);
        container->guests[i] = NULL;
    }
}

/* `again`: what keeps it from its place has been said. */
static bool admit_to(struct container *container, int folder, unsigned index, const struct gpu_limit *gpu, bool again)
{
    const char *problem = "no place is left";
    struct share share = {gpu->core_percent, gpu->core_policy == CORE_IDLE, gpu->core_class};
    struct turn_page *page = page_map(folder, USAGE, index, &problem);
    if (page && !(container->guests[index] = gpu_admit(gpu->uuid, container->name, page, share)))
        page_unmap(page);
    if (!container->guests[index] && !again)
        fprintf(stderr, "arbiter: %s/%s/" USAGE ": %s; the container keeps to its share of %s by itself\n", root_path,
                container->name, problem, gpu->uuid);
    return container->guests[index];
}

/* To those of its GPUs where it is not yet. False: not to all of them; another try may help. */
static bool admit(struct container *container, int folder, bool again)
{
    bool complete = true;
    char path[600], message[LIMITS_MESSAGE_MAX];
    struct limits limits;
    snprintf(path, sizeof path, "/proc/self/fd/%d/" LIMITS, folder);
    if (!limits_read_file(path, &limits, message)) {
        if (!again)
            fprintf(stderr, "arbiter: %s: %s\n", container->name, message);
        return false;
    }
    for (unsigned i = 0; i < limits.gpu_count; i++) {
        if (limits.gpus[i].core_percent && !container->guests[i])
            complete &= admit_to(container, folder, i, &limits.gpus[i], again);
    }
    return complete;
}

static bool same(const struct version *a, const struct version *b)
{
    return a->folder == b->folder && a->limits == b->limits && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

/* Whether some GPU's page could be read and now cannot. */
static bool lost_guest(const struct container *container)
{
    for (unsigned i = 0; i < LIMITED_GPUS_MAX; i++) {
        if (container->guests[i] && !gpu_guest_lives(container->guests[i]))
            return true;
    }
    return false;
}

static struct container *find(const char *name)
{
    struct container *container = containers;
    while (container && strcmp(container->name, name))
        container = container->next;
    if (container || !(container = calloc(1, sizeof *container)))
        return container;
    snprintf(container->name, sizeof container->name, "%s", name);
    container->next = containers;
    return containers = container;
}

static void look_into(const char *name)
{
    struct stat status, limits, usage;
    int folder = openat(root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0)
        return;
    /* Both must be there: the node agent makes the limits last, by renaming. */
    if (!fstat(folder, &status) && !fstatat(folder, LIMITS, &limits, AT_SYMLINK_NOFOLLOW) &&
        !fstatat(folder, USAGE, &usage, AT_SYMLINK_NOFOLLOW)) {
        struct version present = {status.st_ino, limits.st_ino, limits.st_mtim};
        struct container *container = find(name);
        if (container)
            container->found = true;
        bool again = container && same(&present, &container->version) && !lost_guest(container);
        if (container && !again) {
            container->version = present;
            dismiss(container);
        }
        if (container && (!again || container->incomplete))
            container->incomplete = !admit(container, folder, again);
    }
    if (watch >= 0) {
        char path[600];
        snprintf(path, sizeof path, "/proc/self/fd/%d", folder);
        inotify_add_watch(watch, path, IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_ONLYDIR);
    }
    close(folder);
}

void containers_scan(void)
{
    int again = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listed = again < 0 ? NULL : fdopendir(again);
    if (!listed) {
        if (again >= 0)
            close(again);
        return; /* out of descriptors; that is no reason to drop containers */
    }
    for (struct container *container = containers; container; container = container->next)
        container->found = false;
    for (struct dirent *entry; (entry = readdir(listed));) {
        if (entry->d_name[0] != '.')
            look_into(entry->d_name);
    }
    closedir(listed);
    for (struct container **link = &containers, *container; (container = *link);) {
        if (container->found) {
            link = &container->next;
            continue;
        }
        *link = container->next;
        dismiss(container);
        free(container);
    }
}

void containers_wait(int most_ms)
{
    char events[4096];
    struct pollfd changed = {.fd = watch, .events = POLLIN};
    if (poll(&changed, 1, watch < 0 ? 500 : most_ms) <= 0)
        return;
    /* Coalesces changes that belong together, and bounds the work for a container that changes things all the time. */
    nanosleep(&(struct timespec){0, BATCH_MS * 1000000L}, NULL);
    while (read(watch, events, sizeof events) > 0)
        continue;
}
