/* What libraries that are preloaded cost a program that has nothing to do with a GPU.
 *
 * Usage: start_plain COUNT
 *
 * Starts a program that does nothing (this one again, as `start_plain nothing`) so often with LD_PRELOAD as it is here, and by turns
 * without it. Prints how many milliseconds one takes with it more than without, and without, by the quarter that was disturbed least. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { COUNT_MAX = 1000 };

extern char **environ;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Milliseconds from its start until its end. */
static double took_ms(char **environment)
{
    char *arguments[] = {"start_plain", "nothing", NULL};
    pid_t pid;
    int status;
    double began_ms = now_ms();
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environment) || waitpid(pid, &status, 0) != pid || status)
        exit(1);
    return now_ms() - began_ms;
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **words)
{
    static double with_ms[COUNT_MAX], without_ms[COUNT_MAX];
    if (count == 2 && !strcmp(words[1], "nothing"))
        return 0;
    int times = count == 2 ? atoi(words[1]) : 0, kept = 0, variables = 0;
    while (environ[variables])
        variables++;
    char **without = calloc((size_t)variables + 1, sizeof *without);
    if (times < 1 || times > COUNT_MAX || !without || !getenv("LD_PRELOAD"))
        return 2;
    for (int i = 0; i < variables; i++) {
        if (strncmp(environ[i], "LD_PRELOAD=", 11))
            without[kept++] = environ[i];
    }
    for (int i = 0; i < times; i++) {
        without_ms[i] = took_ms(without);
        with_ms[i] = took_ms(environ);
    }
    qsort(with_ms, (size_t)times, sizeof *with_ms, by_size);
    qsort(without_ms, (size_t)times, sizeof *without_ms, by_size);
    printf("%.3f %.3f\n", with_ms[times / 4] - without_ms[times / 4], without_ms[times / 4]);
    return 0;
}
