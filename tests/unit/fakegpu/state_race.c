/* Processes race for memory of one GPU's state; then they are killed at random moments.
 *
 * Usage: state_race DIRECTORY PROCESSES GRANTS KILLS. Each process allocates and frees pieces until it is killed, of a GPU of which a few
 * fit at a time. A counter of what was granted, raised afterwards and lowered beforehand, must not exceed the limit until so many
 * were granted; with kills, the sum over all slots must not exceed it, and no process that replaces a killed one may appear to hold
 * anything before it asked for it. In the end exactly the limit must be free again. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node/state.h"

enum { PROCESSES_MAX = 64, LIMIT = 1000, LARGEST = 400 };

/* Between the processes. */
struct shared {
    _Atomic long granted;
    _Atomic unsigned long count, overshoots;
    _Atomic pid_t newcomer; /* has asked for nothing yet, until this is 0 */
};

static struct shared *shared;
static const char *directory;

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static struct state_files open_state(void)
{
    struct state_files files;
    char message[STATE_MESSAGE_MAX];
    if (state_open(directory, "GPU-race", true, &files, message) != STATE_OK)
        fail(message);
    return files;
}

static void race(bool watched)
{
    struct state_files files = open_state();
    unsigned seed = (unsigned)getpid();
    long held = 0;
    if (watched)
        atomic_store(&shared->newcomer, getpid());
    int slot = state_take_slot(&files);
    if (slot < 0)
        fail("no slot");
    if (watched)
        atomic_store(&shared->newcomer, 0);
    for (;;) {
        long piece = rand_r(&seed) % LARGEST + 1;
        if (held && rand_r(&seed) % 2) {
            atomic_fetch_sub(&shared->granted, held);
            state_release(files.state, (unsigned)slot, (uint64_t)held);
            held = 0;
        } else if (state_reserve(&files, (unsigned)slot, (uint64_t)piece, LIMIT)) {
            held += piece;
            if (atomic_fetch_add(&shared->granted, piece) + piece > LIMIT)
                atomic_fetch_add(&shared->overshoots, 1);
            atomic_fetch_add(&shared->count, 1);
        }
    }
}

static pid_t start(bool watched)
{
    pid_t child = fork();
    if (!child)
        race(watched);
    return child;
}

/* Looks until the newcomer has its slot. */
static void watch(const struct state_files *files, pid_t newcomer)
{
    static struct state_holder holders[SLOTS_MAX];
    while (atomic_load(&shared->newcomer)) {
        unsigned count = state_holders(files, holders);
        for (unsigned i = 0; i < count; i++) {
            if (holders[i].pid == newcomer && atomic_load(&shared->newcomer))
                fail("one who has asked for nothing is seen holding something");
        }
    }
}

int main(int count, char **arguments)
{
    pid_t running[PROCESSES_MAX];
    unsigned seed = 1;
    if (count != 5)
        return 2;
    directory = arguments[1];
    int processes = atoi(arguments[2]), kills = atoi(arguments[4]);
    unsigned long grants = strtoul(arguments[3], NULL, 10);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || processes > PROCESSES_MAX)
        return 2;
    struct state_files files = open_state();
    for (int i = 0; i < processes; i++)
        running[i] = start(false);
    while (atomic_load(&shared->count) < grants)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (atomic_load(&shared->overshoots))
        fail("more was granted than there is");
    for (int i = 0; i < kills; i++) {
        int victim = rand_r(&seed) % processes;
        nanosleep(&(struct timespec){0, rand_r(&seed) % 1000000}, NULL);
        kill(running[victim], SIGKILL);
        waitpid(running[victim], NULL, 0);
        atomic_store(&shared->newcomer, 1);
        running[victim] = start(true);
        watch(&files, running[victim]);
        uint64_t settled[SLOTS_MAX];
        if (state_settled_bytes(files.state, settled) > LIMIT)
            fail("the sum of one moment is above the limit");
    }
    for (int i = 0; i < processes; i++) {
        kill(running[i], SIGKILL);
        waitpid(running[i], NULL, 0);
    }
    state_reap(&files, NULL, NULL);
    if (state_held_bytes(files.state))
        fail("the dead hold something");
    int slot = state_take_slot(&files);
    if (slot < 0 || !state_reserve(&files, (unsigned)slot, LIMIT, LIMIT) || state_reserve(&files, (unsigned)slot, 1, LIMIT))
        fail("not exactly the limit is there again");
    printf("%lu granted\n", atomic_load(&shared->count));
    return 0;
}
