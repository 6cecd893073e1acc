/* Many processes take and give back one GPU's memory, some are killed at any moment, and nothing may be lost.
 *
 *     accounts_race USAGE PROCESSES KILLS
 *
 * They share memory, too: of a few keys: the first process is charged for one, and the last releases it.
 *
 * Each process adds to a counter of its own (in memory that all share) before it takes and after it has released, so that the
 * counters' sum is never less than what the accounts should have. Ends with 0 when the limit was never passed and, after all are
 * dead, exactly the limit can be taken by one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/account.h"
#include "files/members.h"

enum { GPU = 3, LIMIT_UNITS = 4096, PROCESSES_MAX = 128, KEYS = 6 };

static struct region *region;
static int file;

static void die(const char *what)
{
    perror(what);
    _exit(3);
}

static void open_usage(const char *path)
{
    file = open(path, O_RDWR | O_CLOEXEC);
    region = file < 0 ? MAP_FAILED : mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        die(path);
}

/* Takes hold of some shared memory, or lets go of what it has. */
static void share(unsigned *seed, int held[KEYS])
{
    unsigned key = (unsigned)rand_r(seed) % KEYS;
    if (held[key] >= 0) {
        member_share_leave(region, file, held[key]);
        held[key] = -1;
    } else if ((held[key] = member_share_hold(region, file, key + 1)) >= 0) {
        if (!account_held_units(region, GPU, (unsigned)held[key]))
            _exit(5);
    } else if ((held[key] = member_share(region, file, key + 1)) >= 0) {
        bool taken = account_take(region, GPU, (unsigned)held[key], (uint64_t)(rand_r(seed) % 200) + 1, LIMIT_UNITS);
        if (taken) {
            member_share_open(region, file, held[key]);
        } else {
            member_share_leave(region, file, held[key]);
            held[key] = -1;
        }
    }
}

/* Works until it is killed. `done` counts what it got through. */
static void work(unsigned seed, _Atomic uint64_t *done)
{
    struct member self = {.slot = -1};
    uint64_t has = 0;
    int held[KEYS];
    for (int i = 0; i < KEYS; i++)
        held[i] = -1;
    if (!member_join(region, file, &self))
        die("no slot");
    for (;;) {
        uint64_t units = (uint64_t)(rand_r(&seed) % 200) + 1;
        if (rand_r(&seed) % 2 && account_take(region, GPU, (unsigned)self.slot, units, LIMIT_UNITS)) {
            has += units;
        } else if (has) {
            units = units < has ? units : has;
            account_give(region, GPU, (unsigned)self.slot, units);
            has -= units;
        }
        if (account_total_units(region, GPU) > LIMIT_UNITS || account_held_units(region, GPU, (unsigned)self.slot) != has)
            _exit(4);
        if (rand_r(&seed) % 8 == 0)
            share(&seed, held);
        if (rand_r(&seed) % 64 == 0)
            members_sweep(region, file, &self);
        atomic_fetch_add(done, 1);
    }
}

static pid_t start(unsigned seed, _Atomic uint64_t *done)
{
    pid_t pid = fork();
    if (!pid) {
        /* Ending this process ends the whole race. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(seed, done);
    }
    if (pid < 0)
        die("fork");
    return pid;
}

int main(int count, char **arguments)
{
    pid_t pids[PROCESSES_MAX];
    struct member self = {.slot = -1};
    unsigned seed = 20;
    if (count != 4)
        return 2;
    int processes = atoi(arguments[2]), kills = atoi(arguments[3]), status;
    if (processes < 1 || processes > PROCESSES_MAX)
        return 2;
    open_usage(arguments[1]);
    _Atomic uint64_t *done = mmap(NULL, sizeof(uint64_t) * PROCESSES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < processes; i++)
        pids[i] = start((unsigned)i, &done[i]);
    for (int i = 0; i < kills; i++) {
        int who = rand_r(&seed) % processes;
        /* Each has done something since it began, and is killed in the middle of whatever it does then. */
        for (uint64_t before = atomic_load(&done[who]); atomic_load(&done[who]) == before;)
            usleep(50);
        kill(pids[who], SIGKILL);
        if (waitpid(pids[who], &status, 0) != pids[who] || !WIFSIGNALED(status))
            return fprintf(stderr, "a process ended by itself: %x\n", status), 1;
        pids[who] = start((unsigned)(1000 + i), &done[who]);
    }
    for (int i = 0; i < processes; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], &status, 0);
    }
    if (!member_join(region, file, &self))
        return 1;
    members_sweep(region, file, &self);
    uint64_t left = account_total_units(region, GPU);
    bool whole = account_take(region, GPU, (unsigned)self.slot, LIMIT_UNITS, LIMIT_UNITS);
    printf("%llu left, the whole limit %s\n", (unsigned long long)left, whole ? "can be taken" : "cannot be taken");
    return left || !whole;
}
