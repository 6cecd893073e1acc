/* One thread makes, exports and frees memory again and again, others ask how much is left, which clears what the dead left: the memory must be
 * charged each time.
 *
 *     sharing_race USAGE THREADS ROUNDS */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client.h"
#include "files/region.h"

static void *context;
static _Atomic bool over;

static void *ask(void *set_current)
{
    size_t free_bytes, total_bytes;
    ((int (*)(void *))set_current)(context);
    while (!over && !cuda.info(&free_bytes, &total_bytes))
        continue;
    return NULL;
}

/* What all processes are charged, in units of 256 bytes (files/account.h). */
static uint64_t charged(const struct region *region)
{
    return atomic_load(&region->gpus[0].total) >> 28;
}

int main(int count, char **arguments)
{
    struct properties properties = {1, 1, 1, 0, NULL, {0}};
    pthread_t threads[16];
    unsigned lost = 0;
    if (count != 4 || atoi(arguments[2]) > 16)
        return 2;
    /* Never closed: that would drop the locks of this process. */
    struct region *region = mmap(NULL, REGION_BYTES, PROT_READ, MAP_SHARED, open(arguments[1], O_RDWR), 0);
    if (region == MAP_FAILED)
        return 2;
    load();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *set_current = symbol(library, "cuCtxSetCurrent");
    int (*export)(int *, unsigned long long, int, unsigned long long) =
        (__typeof__(export))symbol(library, "cuMemExportToShareableHandle");
    if (cuda.init(0) || cuda.make_context(&context, 0, 0))
        return 3;
    for (int i = 0; i < atoi(arguments[2]); i++)
        pthread_create(&threads[i], NULL, ask, set_current);
    uint64_t base = charged(region);
    for (int round = 0; round < atoi(arguments[3]); round++) {
        unsigned long long handle;
        int file;
        if (cuda.physical(&handle, 2 * MIB, &properties, 0) || export(&file, handle, 1, 0))
            return 3;
        lost += charged(region) != base + 2 * MIB / 256;
        if (close(file) || cuda.release(handle))
            return 3;
    }
    over = true;
    for (int i = 0; i < atoi(arguments[2]); i++)
        pthread_join(threads[i], NULL);
    printf("%u times it was not charged\n", lost);
    return lost != 0;
}
