/* The fake driver's accounts of each process: its engine time and its memory. Exact, from the
 * shared state of the GPU.
 *
 * Usage: gpu_meter STATE-FILE
 *
 * For each line on stdin it prints one: the moment (CLOCK_MONOTONIC, ns), then PID:NS:BYTES for every process that has a slot. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "node/state.h"

int main(int count, char **words)
{
    char line[16];
    struct timespec now;
    int file = count == 2 ? open(words[1], O_RDONLY) : -1;
    const struct state *state = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *state, PROT_READ, MAP_SHARED, file, 0);
    if (state == MAP_FAILED || state->version != STATE_VERSION) {
        fprintf(stderr, "gpu_meter: no state of this version\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("%" PRIu64, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
        for (unsigned i = 0; i < state->slots_used && i < SLOTS_MAX; i++)
            printf(" %d:%" PRIu64 ":%" PRIu64, state->slots[i].pid, state->slots[i].busy_ns, state->held_bytes[i]);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
