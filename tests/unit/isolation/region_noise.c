/* Accounts and slots over a usage file full of noise, as a tenant may make it; for the sanitizers to watch. Nothing may hang, and nothing
 * may be taken above the limit by the count that the region itself shows.
 *
 *     region_noise USAGE ROUNDS SEED */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/account.h"
#include "files/members.h"

enum { LIMIT_UNITS = 1 << 20 };

static void scribble(unsigned char *bytes, size_t size, unsigned *seed)
{
    for (int changes = rand_r(seed) % 40; changes >= 0; changes--) {
        uint64_t word = rand_r(seed) % 4 ? (uint64_t)rand_r(seed) << 33 ^ (uint64_t)rand_r(seed) : rand_r(seed) % 2 ? 0 : UINT64_MAX;
        /* Mostly the header, the GPUs and the first slots, where something is at stake. */
        size_t range = rand_r(seed) % 8 ? 4096 : size;
        size_t start = rand_r(seed) % 3 ? sizeof(struct region_header) + LIMITED_GPUS_MAX * REGION_PAGE_BYTES : 0;
        size_t at = (start + (size_t)rand_r(seed) % range) % (size - sizeof word);
        memcpy(bytes + at, &word, sizeof word);
    }
}

int main(int count, char **arguments)
{
    struct member self = {.slot = -1};
    unsigned taken = 0;
    if (count != 4)
        return 2;
    int file = open(arguments[1], O_RDWR | O_CLOEXEC);
    struct region *region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        return 2;
    unsigned rounds = (unsigned)atoi(arguments[2]), seed = (unsigned)atoi(arguments[3]);
    for (unsigned round = 0; round < rounds; round++) {
        unsigned gpu = (unsigned)rand_r(&seed) % LIMITED_GPUS_MAX;
        if (rand_r(&seed) % 2)
            scribble((unsigned char *)region, REGION_BYTES, &seed);
        if (!member_holds(region, &self)) {
            member_leave(file, &self);
            if (!member_join(region, file, &self))
                return 3;
        }
        uint64_t units = (uint64_t)rand_r(&seed) % (rand_r(&seed) % 8 ? LIMIT_UNITS : UINT64_MAX);
        if (rand_r(&seed) % 8 == 0)
            memset(region->gpus, 0, sizeof region->gpus);
        uint64_t before = account_total_units(region, gpu);
        if (account_take(region, gpu, (unsigned)self.slot, units, LIMIT_UNITS)) {
            if (before + units > LIMIT_UNITS)
                return 4;
            taken++;
        }
        account_give(region, gpu, (unsigned)self.slot, (uint64_t)rand_r(&seed) % LIMIT_UNITS);
        if (rand_r(&seed) % 16 == 0)
            members_sweep(region, file, &self);
        if (rand_r(&seed) % 16 == 0)
            account_clear(region, (unsigned)self.slot);
    }
    printf("%u of %u taken\n", taken, rounds);
    return 0;
}
