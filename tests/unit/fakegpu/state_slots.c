/* A slot from one owner to the next, step by step: who begins in a dead one's place is never seen with what that one held.
 *
 * Usage: state_slots DIRECTORY. Says nothing and ends with 0 when all is right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/state.h"

enum { LIMIT = 1000 };

#define CHECK(true_)                                                                                                   \
    do {                                                                                                               \
        if (!(true_)) {                                                                                                \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #true_);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const char *directory;

static struct state_files open_state(void)
{
    struct state_files files;
    char message[STATE_MESSAGE_MAX];
    CHECK(state_open(directory, "GPU-slots", true, &files, message) == STATE_OK);
    return files;
}

/* A process with a slot that executes commands. */
struct owner {
    pid_t pid;
    int line, slot;
};

static void obey(int line)
{
    struct state_files files = open_state();
    int slot = state_take_slot(&files);
    uint64_t bytes;
    CHECK(write(line, &slot, sizeof slot) == sizeof slot);
    while (read(line, &bytes, sizeof bytes) == sizeof bytes) {
        bool granted = state_reserve(&files, (unsigned)slot, bytes, LIMIT);
        CHECK(write(line, &granted, sizeof granted) == sizeof granted);
    }
    exit(0);
}

static struct owner begin(void)
{
    int ends[2];
    struct owner owner;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    owner.pid = fork();
    CHECK(owner.pid >= 0);
    if (!owner.pid) {
        close(ends[0]);
        obey(ends[1]);
    }
    close(ends[1]);
    owner.line = ends[0];
    CHECK(read(owner.line, &owner.slot, sizeof owner.slot) == sizeof owner.slot);
    return owner;
}

static bool reserves(const struct owner *owner, uint64_t bytes)
{
    bool granted;
    CHECK(write(owner->line, &bytes, sizeof bytes) == sizeof bytes);
    CHECK(read(owner->line, &granted, sizeof granted) == sizeof granted);
    return granted;
}

static void end(struct owner *owner)
{
    kill(owner->pid, SIGKILL);
    waitpid(owner->pid, NULL, 0);
    close(owner->line);
}

/* As a process does that is about to clear a slot, or to take it. */
static void claim(const struct state_files *files, int slot, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = SLOTS_MAX + slot, .l_len = 1};
    CHECK(!fcntl(files->lock_file, F_SETLK, &lock));
}

int main(int count, char **arguments)
{
    struct state_holder holders[SLOTS_MAX];
    if (count != 2)
        return 2;
    directory = arguments[1];
    struct state_files files = open_state();

    struct owner first = begin();
    CHECK(first.slot == 0 && reserves(&first, 600));
    CHECK(state_holders(&files, holders) == 1 && holders[0].pid == first.pid && holders[0].held_bytes == 600);
    end(&first);
    CHECK(state_holders(&files, holders) == 0);
    CHECK(state_held_bytes(files.state) == 600); /* until it is cleaned up */

    /* A cleaner stopped half-way: no other process cleans up, and none is seen with the dead one's memory. */
    claim(&files, 0, F_WRLCK);
    CHECK(state_holders(&files, holders) == 0 && !state_alive(&files, 0, NULL));
    struct owner second = begin();
    CHECK(second.slot == 1 && reserves(&second, 300) && !reserves(&second, 200));
    CHECK(state_holders(&files, holders) == 1 && holders[0].pid == second.pid && holders[0].held_bytes == 300);
    claim(&files, 0, F_UNLCK);

    struct owner third = begin();
    CHECK(third.slot == 0 && state_alive(&files, 0, NULL));
    CHECK(state_holders(&files, holders) == 1 && holders[0].pid == second.pid);
    CHECK(reserves(&third, 700));
    CHECK(state_holders(&files, holders) == 2 && holders[0].held_bytes + holders[1].held_bytes == LIMIT);

    /* What a slot holds is reported for its owner at that moment, not for the next one in its place. */
    end(&third);
    CHECK(state_reap(&files, NULL, NULL) == 1 && state_held_bytes(files.state) == 300);
    CHECK(state_reap(&files, NULL, NULL) == 0);
    end(&second);
    return 0;
}
