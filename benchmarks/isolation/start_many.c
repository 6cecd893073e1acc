/* Starts processes that each make a context, all at once.
 *
 * Usage: start_many COUNT
 *
 * Each is a program of its own: this one again, as `start_many one`. Prints how many milliseconds it took from the first start
 * until the last one had its context; all of them live until then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT_MAX = 256 };

extern char **environ;

/* As a program of the CUDA runtime begins. Its stdout is where it says that it is ready, its stdin ends when it may go. */
static int one(void)
{
    int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *);
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    char none;
    if (!driver)
        return 1;
    init = (int (*)(unsigned))dlsym(driver, "cuInit");
    retain = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    if (!init || !retain || !set_current || init(0) || retain(&context, 0) || set_current(context))
        return 1;
    if (write(STDOUT_FILENO, "r", 1) != 1 || read(STDIN_FILENO, &none, 1) > 0)
        return 1;
    return 0;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int count, char **words)
{
    pid_t pids[COUNT_MAX];
    int ready[2], go[2], status, bad = 0;
    char letter;
    posix_spawn_file_actions_t files;
    if (count == 2 && !strcmp(words[1], "one"))
        return one();
    int processes = count == 2 ? atoi(words[1]) : 0;
    if (processes < 1 || processes > COUNT_MAX || pipe2(ready, O_CLOEXEC) || pipe2(go, O_CLOEXEC))
        return 2;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, go[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, ready[1], STDOUT_FILENO);
    double began_ms = now_ms();
    for (int i = 0; i < processes; i++) {
        char *arguments[] = {words[0], "one", NULL};
        if (posix_spawn(&pids[i], "/proc/self/exe", &files, NULL, arguments, environ))
            return 2;
    }
    close(ready[1]);
    int begun = 0;
    while (begun < processes && read(ready[0], &letter, 1) == 1)
        begun++;
    double took_ms = now_ms() - began_ms;
    close(go[1]);
    for (int i = 0; i < processes; i++)
        bad |= waitpid(pids[i], &status, 0) != pids[i] || status;
    if (begun < processes || bad)
        return 1;
    printf("%.3f\n", took_ms);
    return 0;
}
