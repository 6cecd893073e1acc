/* Processes of one container race to allocate in every way, some are killed; the driver's own accounting watches all the time.
 *
 *     allocations_race MANAGEMENT UUID LIMIT_MIB PROCESSES LENGTH KILLS
 *
 * MANAGEMENT is the driver's own management library, by its path. Each process allocates and frees at random, for LENGTH rounds,
 * or, where LENGTH ends with an `s`, until so many seconds are over. KILLS times one of them is killed, at whatever it does, and another
 * one begins in its place: as the rounds go by, or spread evenly over the seconds. Prints how many were killed and how many
 * rounds went by, then how often the driver was asked and the most that it counted, in MiB. Ends with 1 when that was ever more than
 * the limit, when a process fails or hangs, or when afterwards not exactly the limit (to the page) can be allocated. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

enum { PROCESSES_MAX = 128 };
#define PATIENCE_NS UINT64_C(60000000000)

struct process { unsigned pid; unsigned long long bytes; unsigned instances[2]; };

/* In memory that all share. */
struct shared {
    _Atomic bool stop;
    _Atomic unsigned long long rounds;
};

static struct shared *shared;
static unsigned rounds_each; /* 0: until they are stopped */

static bool goes_on(unsigned round)
{
    return !shared->stop && (!rounds_each || round < rounds_each);
}

/* Ends with 0, or with 5 when a call failed for anything but memory. */
static void work(unsigned seed)
{
    struct held held[HELD_MAX];
    unsigned count = 0;
    void *context;
    load();
    if (cuda.init(0))
        _exit(5);
    int made = cuda.make_context(&context, 0, 0);
    while (made == OUT_OF_MEMORY && goes_on(0)) {
        usleep(2000);
        made = cuda.make_context(&context, 0, 0);
    }
    if (made)
        _exit(made == OUT_OF_MEMORY ? 0 : 5);
    for (unsigned round = 0; goes_on(round); round++, shared->rounds++) {
        if (count && (count == HELD_MAX || rand_r(&seed) % 3 == 0)) {
            unsigned which = (unsigned)rand_r(&seed) % count;
            if (give(&held[which]))
                _exit(5);
            held[which] = held[--count];
        } else {
            size_t bytes = (size_t)(rand_r(&seed) % 4 ? 1 + rand_r(&seed) % (40 * MIB) : 1 + rand_r(&seed) % (900 << 10));
            int result = take(&held[count], rand_r(&seed) % KINDS, bytes);
            if (result && result != OUT_OF_MEMORY)
                _exit(5);
            count += !result;
        }
    }
    _exit(0);
}

/* --- the driver's own accounting ------------------------------------------------------------------------------- */

static int (*list)(void *, unsigned *, struct process *);
static void *device;
static unsigned long long looks, most_bytes, limit_bytes;

static void watch_by(const char *path, const char *uuid)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    int (*init)(void) = (int (*)(void))symbol(library, "nvmlInit_v2");
    int (*find)(const char *, void **) = (int (*)(const char *, void **))symbol(library, "nvmlDeviceGetHandleByUUID");
    list = (int (*)(void *, unsigned *, struct process *))symbol(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init() || find(uuid, &device))
        exit(3);
}

static void tell(const struct process *processes, unsigned count, unsigned long long sum)
{
    fprintf(stderr, "%llu KiB at once, %llu too many:", sum >> 10, (sum - limit_bytes) >> 10);
    for (unsigned i = 0; i < count; i++)
        fprintf(stderr, " %u:%llu", processes[i].pid, processes[i].bytes >> 10);
    fprintf(stderr, "\n");
}

static unsigned long long look(void)
{
    static struct process processes[1024];
    unsigned count = 1024;
    unsigned long long sum = 0;
    if (list(device, &count, processes)) {
        fprintf(stderr, "the driver does not list its processes\n");
        exit(3);
    }
    for (unsigned i = 0; i < count; i++)
        sum += processes[i].bytes;
    if (sum > limit_bytes && sum > most_bytes)
        tell(processes, count, sum);
    looks++;
    most_bytes = sum > most_bytes ? sum : most_bytes;
    return sum;
}

/* --- the race ---------------------------------------------------------------------------------------------------- */

static pid_t pids[PROCESSES_MAX]; /* 0: has ended, and is not replaced */
static bool dying[PROCESSES_MAX]; /* was killed; on a busy machine that takes a while, in which looking goes on */
static unsigned processes, kills, killed, next_seed, running;
static bool bad;

static pid_t start(void)
{
    pid_t pid = fork();
    if (!pid) {
        (void)!setpriority(PRIO_PROCESS, 0, 0);
        work(next_seed);
    }
    next_seed++;
    return pid;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Those that have ended, and others in their places. */
static void collect(void)
{
    for (unsigned i = 0; i < processes; i++) {
        int status;
        if (!pids[i] || waitpid(pids[i], &status, WNOHANG) != pids[i])
            continue;
        bool as_wanted = WIFEXITED(status) ? !WEXITSTATUS(status) : dying[i] && WTERMSIG(status) == SIGKILL;
        if (!as_wanted)
            bad = fprintf(stderr, "a process ended with %x\n", status) > 0;
        bool replaced = (dying[i] || killed < kills) && !shared->stop;
        dying[i] = false;
        pids[i] = replaced ? start() : 0;
        running -= !replaced;
    }
}

/* False: no process is left to kill, for now. */
static bool kill_one(unsigned *seed)
{
    unsigned first = (unsigned)rand_r(seed) % processes;
    for (unsigned i = 0; i < processes; i++) {
        unsigned who = (first + i) % processes;
        if (!pids[who] || dying[who])
            continue;
        kill(pids[who], SIGKILL);
        dying[who] = true;
        killed++;
        return true;
    }
    return false;
}

/* `due` is of rounds that went by, or of nanoseconds. */
static void race(uint64_t length_ns)
{
    unsigned seed = 4;
    uint64_t begin_ns = now_ns(), due = 0, ends_ns = begin_ns + length_ns;
    for (unsigned i = 0; i < processes; i++)
        pids[i] = start();
    for (running = processes; running;) {
        look();
        collect();
        uint64_t now = now_ns();
        if (length_ns && now >= ends_ns && !shared->stop) {
            /* On a busy machine the last of the dead are late. */
            shared->stop = killed == kills || now >= ends_ns + PATIENCE_NS;
            if (shared->stop)
                ends_ns = now + PATIENCE_NS;
        } else if (shared->stop && now >= ends_ns) {
            fprintf(stderr, "%u processes hang\n", running);
            bad = true;
            return;
        }
        uint64_t passed = length_ns ? now - begin_ns : shared->rounds;
        if (!running || shared->stop || killed == kills || passed < due || !kill_one(&seed))
            continue;
        due = length_ns ? (killed + 1) * (length_ns / (kills + 1)) : passed + (unsigned)rand_r(&seed) % (4 * processes);
    }
}

/* Whether exactly what is said to be free can be had, page by page. In a process of its own: this one has no driver. */
static int whole_limit(unsigned limit_mib)
{
    pid_t pid = fork();
    int status;
    if (!pid) {
        size_t free_bytes, total_bytes;
        unsigned long long address;
        void *context;
        load();
        if (cuda.init(0) || cuda.make_context(&context, 0, 0) || cuda.info(&free_bytes, &total_bytes))
            _exit(5);
        if (total_bytes != (size_t)limit_mib * MIB)
            _exit(6);
        for (; free_bytes >= 2 * MIB; free_bytes -= 2 * MIB) {
            if (cuda.alloc(&address, 2 * MIB))
                _exit(7);
        }
        if (cuda.alloc(&address, MIB) != OUT_OF_MEMORY || cuda.info(&free_bytes, &total_bytes) || free_bytes >= 2 * MIB)
            _exit(8);
        pause();
    }
    /* Nothing of what the dead had is missing: what is not free now is what this process has. */
    while (look() < (unsigned long long)(limit_mib - 1) * MIB) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return fprintf(stderr, "the last one ended with %x\n", status), 1;
        usleep(2000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 7)
        return 2;
    unsigned limit_mib = (unsigned)atoi(arguments[3]), length = (unsigned)atoi(arguments[5]);
    bool timed = strchr(arguments[5], 's');
    processes = (unsigned)atoi(arguments[4]);
    kills = (unsigned)atoi(arguments[6]);
    if (!processes || processes > PROCESSES_MAX || !length)
        return 2;
    limit_bytes = (unsigned long long)limit_mib * MIB;
    rounds_each = timed ? 0 : length;
    watch_by(arguments[1], arguments[2]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    (void)!setpriority(PRIO_PROCESS, 0, -10); /* the more looks the better; without the right to, fewer */
    race(timed ? length * UINT64_C(1000000000) : 0);
    if (!bad)
        bad = whole_limit(limit_mib);
    for (unsigned i = 0; i < processes; i++) {
        if (pids[i])
            kill(pids[i], SIGKILL);
    }
    printf("%u killed, %llu rounds; %llu looks, at most %llu MiB\n", killed, shared->rounds, looks, most_bytes / MIB);
    return bad || most_bytes > limit_bytes;
}
