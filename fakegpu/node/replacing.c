#define _GNU_SOURCE
#include "node/replacing.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int replacing_begin(const char *path)
{
    char *copy = strdup(path);
    int folder = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(copy);
    if (folder >= 0 && flock(folder, LOCK_EX)) {
        close(folder);
        folder = -1;
    }
    return folder;
}

void replacing_end(int folder)
{
    close(folder);
}

/* Readers know a version by its time, which the kernel stamps coarsely. */
static bool fill(int file, const char *text, size_t size)
{
    struct timespec times[2];
    for (ssize_t written; size; text += written, size -= (size_t)written) {
        if ((written = write(file, text, size)) <= 0)
            return false;
    }
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    return !futimens(file, times);
}

bool replacing_write(const char *path, const char *text, size_t size)
{
    char beside[4200];
    struct stat status;
    snprintf(beside, sizeof beside, "%.4096s.%d", path, (int)getpid());
    int file = stat(path, &status) ? -1 : open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    bool replaced = fill(file, text, size) && !fchmod(file, status.st_mode & 07777) && !rename(beside, path);
    close(file);
    if (!replaced)
        unlink(beside);
    return replaced;
}
