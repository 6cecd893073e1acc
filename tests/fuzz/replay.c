/* Runs a target over the named files, each once: seeds, and findings of fuzzers. A folder means all files in it.
 *
 *     TARGET [FILE|FOLDER]... */
#define _GNU_SOURCE
#include <dirent.h>

#include "fuzz.h"

static unsigned count;

static void replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = -1;
    if (file && !fseek(file, 0, SEEK_END))
        size = ftell(file);
    if (size < 0) {
        perror(path);
        exit(2);
    }
    rewind(file);
    /* Of the exact size, so that reading past the end is detected. */
    uint8_t *bytes = malloc(size ? (size_t)size : 1);
    if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        perror(path);
        exit(2);
    }
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    count++;
}

int main(int arguments, char **paths)
{
    for (int i = 1; i < arguments; i++) {
        DIR *folder = opendir(paths[i]);
        if (!folder) {
            replay(paths[i]);
            continue;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            if (snprintf(path, sizeof path, "%s/%s", paths[i], entry->d_name) < (int)sizeof path)
                replay(path);
        }
        closedir(folder);
    }
    printf("%u inputs\n", count);
    return 0;
}
