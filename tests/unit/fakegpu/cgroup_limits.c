/* Limits of cgroups in a GPU's state: first step by step, then raced for while those who reserve and those who set limits are killed.
 *
 * Usage: cgroup_limits DIRECTORY KILLS. Folders below DIRECTORY stand for cgroups, files for what the kernel reports of processes.
 * Says nothing and ends with 0 when all is right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node/memory_limits.h"

enum { GPU = 1000, LARGEST = 200, RACERS = 8, SETTERS = 2, PATH = 4096, NAME = 512 };

#define CHECK(true_)                                                                                                   \
    do {                                                                                                               \
        if (!(true_)) {                                                                                                \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #true_);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static char root[PATH], proc[PATH], states[PATH];

static struct state_files open_state(void)
{
    struct state_files files;
    char message[STATE_MESSAGE_MAX];
    CHECK(state_open(states, "GPU-limits", true, &files, message) == STATE_OK);
    return files;
}

static const char *path_of(const char *cgroup)
{
    static char path[PATH + NAME];
    snprintf(path, sizeof path, "%s%s", root, cgroup);
    return path;
}

static uint64_t make(const char *cgroup)
{
    mkdir(path_of(cgroup), 0755);
    return cgroup_id(path_of(cgroup));
}

static enum limit_error set(const struct state_files *files, const char *cgroup, uint64_t hard_bytes)
{
    return limits_set(files, cgroup_id(path_of(cgroup)), path_of(cgroup), 0, hard_bytes);
}

static uint64_t hard(const struct state_files *files, const char *cgroup)
{
    uint64_t soft_bytes, hard_bytes;
    limits_get(files->state, cgroup_id(path_of(cgroup)), &soft_bytes, &hard_bytes);
    CHECK(!soft_bytes);
    return hard_bytes;
}

/* What the kernel would tell of this process. */
static void enter(const char *cgroup)
{
    char path[PATH + NAME];
    struct stat found;
    if (!stat(proc, &found) && S_ISREG(found.st_mode)) {
        strcpy(path, proc);
    } else {
        snprintf(path, sizeof path, "%s/%d", proc, (int)getpid());
        mkdir(path, 0755);
        strcat(path, "/cgroup");
    }
    FILE *file = fopen(path, "w");
    CHECK(file && fprintf(file, "4:memory:/elsewhere\n0::%s\n", cgroup) > 0 && !fclose(file));
}

static int take_slot(const struct state_files *files)
{
    uint64_t cgroups[CGROUPS_DEEP];
    int slot = state_take_slot(files);
    CHECK(slot >= 0);
    cgroups_of_process(root, proc, cgroups);
    state_enter_cgroups(files->state, (unsigned)slot, cgroups);
    return slot;
}

/* --- step by step --------------------------------------------------------------------------------------------- */

struct owner {
    pid_t pid;
    int line;
};

static struct owner begin(const char *cgroup)
{
    int ends[2];
    struct owner owner;
    uint64_t bytes = 0;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    owner.pid = fork();
    CHECK(owner.pid >= 0);
    if (!owner.pid) {
        close(ends[0]);
        enter(cgroup);
        struct state_files files = open_state();
        unsigned slot = (unsigned)take_slot(&files);
        do {
            uint64_t total_bytes = GPU, free_bytes = GPU;
            bool granted = state_reserve(&files, slot, bytes, GPU);
            state_within_limits(files.state, slot, &total_bytes, &free_bytes);
            uint64_t answer[3] = {granted, total_bytes, free_bytes};
            CHECK(write(ends[1], answer, sizeof answer) == sizeof answer);
        } while (read(ends[1], &bytes, sizeof bytes) == sizeof bytes);
        exit(0);
    }
    close(ends[1]);
    owner.line = ends[0];
    uint64_t answer[3];
    CHECK(read(owner.line, answer, sizeof answer) == sizeof answer);
    return owner;
}

static uint64_t seen[3]; /* granted, total, free */

static bool reserves(const struct owner *owner, uint64_t bytes)
{
    CHECK(write(owner->line, &bytes, sizeof bytes) == sizeof bytes);
    CHECK(read(owner->line, seen, sizeof seen) == sizeof seen);
    return seen[0];
}

static void end(struct owner *owner)
{
    kill(owner->pid, SIGKILL);
    waitpid(owner->pid, NULL, 0);
    close(owner->line);
}

static void step_by_step(void)
{
    struct state_files files = open_state();
    make("/pods");
    make("/pods/a");
    make("/pods/a/inner");
    make("/pods/b");
    struct owner first = begin("/pods/a"), inner = begin("/pods/a/inner"), other = begin("/pods/b"), outside = begin("/");

    CHECK(hard(&files, "/pods/a") == LIMIT_NONE && set(&files, "/pods/a", 300) == LIMIT_OK);
    CHECK(hard(&files, "/pods/a") == 300 && hard(&files, "/pods/b") == LIMIT_NONE);
    CHECK(reserves(&first, 200) && seen[1] == 300 && seen[2] == 100);
    CHECK(!reserves(&inner, 200) && seen[1] == 300 && seen[2] == 100);
    CHECK(reserves(&inner, 100) && !reserves(&first, 1) && !reserves(&inner, 301));
    CHECK(reserves(&other, 300) && seen[1] == GPU && reserves(&outside, 200));

    /* One above counts all below it; a limit below what is held refuses what comes. */
    CHECK(set(&files, "/pods", 650) == LIMIT_OK && !reserves(&other, 51) && reserves(&other, 50));
    CHECK(set(&files, "/pods/a", 250) == LIMIT_OK && !reserves(&first, 1) && hard(&files, "/pods/a") == 250);
    CHECK(limits_count(files.state) == 2);
    CHECK(set(&files, "/pods", LIMIT_NONE) == LIMIT_OK && limits_count(files.state) == 1 && reserves(&other, 1));

    /* Dead processes hold nothing any more once they were cleaned up. */
    end(&first);
    CHECK(state_reap(&files, NULL, NULL) == 1 && reserves(&inner, 150) && !reserves(&inner, 1));

    /* A cgroup that is gone takes its limit with it, and its entry is another's. */
    end(&inner);
    CHECK(!rmdir(path_of("/pods/a/inner")) && !rmdir(path_of("/pods/a")));
    CHECK(set(&files, "/pods/b", 400) == LIMIT_OK && limits_count(files.state) == 1);
    make("/pods/a");
    CHECK(hard(&files, "/pods/a") == LIMIT_NONE && hard(&files, "/pods/b") == 400 && !reserves(&other, 50));

    /* A container that sees its own cgroup as the root of all is in it all the same. */
    static char whole[PATH];
    strcpy(whole, root);
    strcpy(root, path_of("/pods/b"));
    struct owner within = begin("/");
    strcpy(root, whole);
    CHECK(!reserves(&within, 50) && seen[1] == 400 && reserves(&within, 49));
    /* One file may state it for every reader. */
    strcpy(whole, proc);
    strcpy(proc, path_of("/said"));
    FILE *said = fopen(proc, "w");
    CHECK(said && !fclose(said));
    struct owner inside = begin("/pods/b");
    strcpy(proc, whole);
    CHECK(!reserves(&inside, 1) && seen[1] == 400);
    end(&inside);

    /* A process whose path leads outside the visible cgroups, or has none, is in no cgroup. */
    struct owner strange = begin("/../pods/b");
    CHECK(reserves(&strange, 50) && seen[1] == GPU);
    end(&strange);
    end(&within);
    end(&other);
    end(&outside);
    state_reap(&files, NULL, NULL);
    CHECK(set(&files, "/pods/b", LIMIT_NONE) == LIMIT_OK && !limits_count(files.state));

    /* More than fit are refused, and the others stay. */
    char name[NAME];
    for (int i = 0; i < LIMITS_MAX; i++) {
        snprintf(name, sizeof name, "/many%d", i);
        CHECK(make(name) && set(&files, name, (uint64_t)i) == LIMIT_OK);
    }
    CHECK(set(&files, "/pods/b", 1) == LIMIT_FULL && set(&files, "/many7", 70) == LIMIT_OK);
    for (int i = 0; i < LIMITS_MAX; i++) {
        snprintf(name, sizeof name, "/many%d", i);
        CHECK(hard(&files, name) == (uint64_t)(i == 7 ? 70 : i) && !rmdir(path_of(name)));
    }
    CHECK(set(&files, "/pods/b", LIMIT_NONE) == LIMIT_OK && !limits_count(files.state));
}

/* --- raced for ------------------------------------------------------------------------------------------------ */

enum { LIMIT_A = 400, LIMIT_LOW = 100, LIMIT_HIGH = 900 };

static struct shared {
    _Atomic long granted; /* in a, as long as no process was killed */
    _Atomic unsigned long count, overshoots;
} *shared;

static void race(const char *cgroup)
{
    enter(cgroup);
    struct state_files files = open_state();
    unsigned slot = (unsigned)take_slot(&files), seed = (unsigned)getpid();
    bool counted = !strcmp(cgroup, "/a");
    long held = 0;
    for (;;) {
        long piece = rand_r(&seed) % LARGEST + 1;
        if (held && rand_r(&seed) % 2) {
            atomic_fetch_sub(&shared->granted, counted ? held : 0);
            state_release(files.state, slot, (uint64_t)held);
            held = 0;
        } else if (state_reserve(&files, slot, (uint64_t)piece, GPU)) {
            held += piece;
            if (counted && atomic_fetch_add(&shared->granted, piece) + piece > LIMIT_A)
                atomic_fetch_add(&shared->overshoots, 1);
            atomic_fetch_add(&shared->count, 1);
        }
    }
}

/* Sets one of two limits on a cgroup with changing members, until killed. A long wait for the lock fails with "busy". */
static void set_for_ever(void)
{
    struct state_files files = open_state();
    for (unsigned i = 0;; i++)
        CHECK(set(&files, "/b", i % 2 ? LIMIT_LOW : LIMIT_HIGH) != LIMIT_FULL);
}

static pid_t start(int which)
{
    pid_t child = fork();
    if (child)
        return child;
    if (which >= RACERS)
        set_for_ever();
    race(which % 2 ? "/b" : "/a");
    exit(1);
}

static uint64_t held_below(const struct state_files *files, const char *cgroup)
{
    static struct state_holder holders[SLOTS_MAX];
    uint64_t id = cgroup_id(path_of(cgroup)), sum = 0;
    unsigned count = state_holders(files, holders);
    for (unsigned i = 0; i < count; i++)
        sum += state_is_below(files->state, holders[i].slot, id) ? holders[i].held_bytes : 0;
    return sum;
}

static void raced_for(int kills)
{
    pid_t running[RACERS + SETTERS];
    unsigned seed = 1;
    struct state_files files = open_state();
    make("/a");
    make("/b");
    CHECK(set(&files, "/a", LIMIT_A) == LIMIT_OK);
    for (int i = 0; i < RACERS + SETTERS; i++)
        running[i] = start(i);
    while (atomic_load(&shared->count) < 5000)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(!atomic_load(&shared->overshoots));
    for (int i = 0; i < kills; i++) {
        int victim = rand_r(&seed) % (RACERS + SETTERS);
        nanosleep(&(struct timespec){0, rand_r(&seed) % 1000000}, NULL);
        kill(running[victim], SIGKILL);
        CHECK(waitpid(running[victim], NULL, 0) == running[victim]);
        running[victim] = start(victim);
        CHECK(held_below(&files, "/a") <= LIMIT_A);
        uint64_t now = hard(&files, "/b");
        CHECK(now == LIMIT_LOW || now == LIMIT_HIGH || now == LIMIT_NONE);
        state_reap(&files, NULL, NULL);
    }
    for (int i = 0; i < RACERS + SETTERS; i++) {
        kill(running[i], SIGKILL);
        waitpid(running[i], NULL, 0);
    }
    state_reap(&files, NULL, NULL);
    CHECK(!state_held_bytes(files.state) && limits_count(files.state) == 2);
    CHECK(set(&files, "/b", LIMIT_NONE) == LIMIT_OK && hard(&files, "/a") == LIMIT_A);
    struct owner last = begin("/a");
    CHECK(reserves(&last, LIMIT_A) && !reserves(&last, 1));
    end(&last);
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    snprintf(root, sizeof root, "%s/cgroup", arguments[1]);
    snprintf(proc, sizeof proc, "%s/proc", arguments[1]);
    snprintf(states, sizeof states, "%s/state", arguments[1]);
    CHECK(!mkdir(root, 0755) && !mkdir(proc, 0755));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    step_by_step();
    raced_for(atoi(arguments[2]));
    return 0;
}
