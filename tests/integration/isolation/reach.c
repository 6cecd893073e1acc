/* Reaches for the driver in one of several ways, takes memory, and says how that went: "RESULT TOTAL_MIB", or why it could not.
 *
 *     reach HOW LIBRARY MIB [hold]
 *
 * HOW: `plain`; `deepbind`, with symbols of the library's own before all others; `apart`, in a namespace of the loader's of
 * its own. `hold`: keeps the memory until stdin ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *opened(const char *how, const char *library)
{
    if (!strcmp(how, "apart"))
        return dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    return dlopen(library, !strcmp(how, "deepbind") ? RTLD_NOW | RTLD_DEEPBIND : RTLD_NOW);
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return found;
}

int main(int count, char **arguments)
{
    unsigned long long address;
    size_t free_bytes, total_bytes = 0;
    void *context;
    if (count < 4)
        return 2;
    void *library = opened(arguments[1], arguments[2]);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    int (*init)(unsigned) = (int (*)(unsigned))symbol(library, "cuInit");
    int (*make_context)(void **, unsigned, int) = (int (*)(void **, unsigned, int))symbol(library, "cuCtxCreate_v2");
    int (*take)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))symbol(library, "cuMemAlloc_v2");
    int (*tell)(size_t *, size_t *) = (int (*)(size_t *, size_t *))symbol(library, "cuMemGetInfo_v2");
    int result = init(0);
    if (!result)
        result = make_context(&context, 0, 0);
    if (!result)
        result = tell(&free_bytes, &total_bytes);
    if (!result)
        result = take(&address, (size_t)atoi(arguments[3]) << 20);
    /* In a namespace of its own the driver starts threads by a C library of its own. The program's C library takes itself
     * to be single-threaded and does not lock its heap, from which the loader allocates these threads' storage. From here
     * on the program therefore allocates nothing, as stdio would. */
    char line[64], typed;
    int length = snprintf(line, sizeof line, "%d %zu\n", result, total_bytes >> 20);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        return 4;
    while (count > 4 && read(STDIN_FILENO, &typed, 1) == 1)
        continue;
    return 0;
}
