/* Children of fork, also by a bare system call, are distinguished from the process whose memory they share. Ends with 0, or with the
 * number of what was not so. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/own_process.h"

static pid_t bare_fork(void)
{
#ifdef SYS_fork
    return (pid_t)syscall(SYS_fork);
#else
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

/* What the child finds: 0 is right. */
static int child(int depth)
{
    if (own_process())
        return 10 + depth;
    own_process_begin();
    if (!own_process())
        return 20 + depth;
    if (depth == 2)
        return 0;
    int status;
    pid_t pid = depth ? bare_fork() : fork();
    if (!pid)
        _exit(child(depth + 1));
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return 30 + depth;
    if (WEXITSTATUS(status))
        return WEXITSTATUS(status);
    return own_process() ? 0 : 40 + depth;
}

int main(void)
{
    return child(0);
}
