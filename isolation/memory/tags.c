#define _GNU_SOURCE
#include "memory/tags.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "memory/footprint.h"

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif
/* The lock begins at FIRST + key and is as long as there are pages, and one more. Read locks of several descriptions of one file (a driver's device
 * is one) stand side by side. */
#define FIRST (INT64_C(1) << 61)
#define KEYS (UINT64_C(1) << 52)
#define PAGES_MOST (INT64_C(1) << 32)
#define BY_DESCRIPTOR UINT64_C(1) /* in a key */

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

uint64_t tag_new_key(void)
{
    static _Atomic uint64_t count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t moment = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    return (mix(mix(moment) ^ (uint64_t)getpid() << 32 ^ atomic_fetch_add(&count, 1)) & (KEYS - 1)) | BY_DESCRIPTOR;
}

uint64_t tag_key_of(const void *handle, size_t size)
{
    const unsigned char *bytes = handle;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    hash = mix(hash) & (KEYS - 1) & ~BY_DESCRIPTOR;
    return hash ? hash : KEYS - 2;
}

bool tag_put(int file, struct tag tag)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FIRST + (int64_t)tag.key,
                         .l_len = 1 + (int64_t)(tag.bytes / GRANULE_BYTES)};
    return !fcntl(file, F_OFD_SETLK, &lock);
}

/* Of a line like `lock: 1: OFDLCK ADVISORY READ -1 00:06:3 <first> <last>`. */
static bool read_lock(const char *line, struct tag *tag)
{
    const char *after_inode = strrchr(line, ':');
    if (!strstr(line, "OFDLCK") || !after_inode || !(after_inode = strchr(after_inode, ' ')))
        return false;
    char *end;
    long long first = strtoll(after_inode, &end, 10), last = strtoll(end, NULL, 10); /* "EOF" is 0 */
    if (first <= FIRST || first - FIRST >= (int64_t)KEYS || last < first || last - first > PAGES_MOST)
        return false;
    *tag = (struct tag){(uint64_t)(first - FIRST), (uint64_t)(last - first) * GRANULE_BYTES};
    return true;
}

bool tag_read(int file, struct tag *tag)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
    FILE *info = fopen(path, "re");
    bool found = false;
    while (info && !found && fgets(line, sizeof line, info))
        found = !strncmp(line, "lock:", 5) && read_lock(line, tag);
    if (info)
        fclose(info);
    return found;
}

bool tag_is_carried(uint64_t key)
{
    struct tag tag;
    bool found = false;
    DIR *directory = key & BY_DESCRIPTOR ? opendir("/proc/self/fd") : NULL;
    if (!directory)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(directory));)
        found = entry->d_name[0] != '.' && tag_read(atoi(entry->d_name), &tag) && tag.key == key;
    closedir(directory);
    return found;
}
