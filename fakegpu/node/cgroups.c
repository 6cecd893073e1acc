#define _GNU_SOURCE /* statx */
#include "node/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST = 8192 };

uint64_t cgroup_id(const char *path)
{
    struct statx found;
    if (statx(AT_FDCWD, path, 0, STATX_TYPE | STATX_INO | STATX_BTIME, &found) || !S_ISDIR(found.stx_mode))
        return 0;
    uint64_t born = 0;
    if (found.stx_mask & STATX_BTIME)
        born = (uint64_t)found.stx_btime.tv_sec * 1000000000 + found.stx_btime.tv_nsec;
    uint64_t id = found.stx_ino * UINT64_C(0x9E3779B97F4A7C15) ^ born;
    return id ? id : 1;
}

/* The path of version 2's hierarchy, as the kernel has it: "0::/…". NULL: there is none, or it leads out of what can be seen. */
static const char *path_in_proc(const char *proc, char text[LONGEST])
{
    char path[LONGEST];
    if (!strcmp(proc, "/proc"))
        snprintf(path, sizeof path, "/proc/self/cgroup");
    else
        snprintf(path, sizeof path, "%s/%d/cgroup", proc, (int)getpid());
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno == ENOTDIR)
        file = open(proc, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, LONGEST - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return NULL;
    text[size] = '\0';
    for (char *line = text, *next; line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = '\0';
        if (!strncmp(line, "0::/", 4))
            return strstr(line, "/..") ? NULL : line + 3;
    }
    return NULL;
}

void cgroups_of_process(const char *root, const char *proc, uint64_t ids[CGROUPS_DEEP])
{
    char text[LONGEST], path[2 * LONGEST];
    memset(ids, 0, CGROUPS_DEEP * sizeof *ids);
    const char *own = path_in_proc(proc, text);
    if (!own || snprintf(path, sizeof path, "%s%s", root, own) >= (int)sizeof path)
        return;
    size_t shortest = strlen(root);
    for (unsigned i = 0; i < CGROUPS_DEEP; i++) {
        while (strlen(path) > shortest && path[strlen(path) - 1] == '/')
            path[strlen(path) - 1] = '\0';
        if (!(ids[i] = cgroup_id(path)) || strlen(path) <= shortest)
            return;
        *strrchr(path, '/') = '\0';
    }
}
