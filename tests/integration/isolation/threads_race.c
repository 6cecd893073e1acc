/* Threads of one process allocate and free in every way, make and end contexts, and fork; afterwards nothing may be charged but
 * the context.
 *
 *     threads_race THREADS ROUNDS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "client.h"

static void *context;
static unsigned rounds;
static _Atomic unsigned failures;
static int (*set_current)(void *), (*destroy_context)(void *), (*retain)(void **, int), (*release)(int);

static void check(int result)
{
    if (result && result != OUT_OF_MEMORY)
        failures++;
}

static void *work(void *argument)
{
    struct held held[HELD_MAX];
    unsigned count = 0, seed = (unsigned)(uintptr_t)argument;
    void *other;
    check(set_current(context));
    for (unsigned round = 0; round < rounds; round++) {
        if (round % 40 == 0 && !retain(&other, 0))
            check(release(0));
        if (count && (count == HELD_MAX || rand_r(&seed) % 2)) {
            check(give(&held[--count]));
            continue;
        }
        int result = take(&held[count], rand_r(&seed) % KINDS, (size_t)(1 + rand_r(&seed) % (6 * MIB)));
        check(result);
        count += !result;
    }
    while (count)
        check(give(&held[--count]));
    return NULL;
}

/* A child of fork must find every mutex free. */
static void fork_once(void)
{
    size_t free_bytes, total_bytes;
    int status;
    pid_t child = fork();
    if (!child)
        _exit(cuda.info(&free_bytes, &total_bytes) == 0);
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        failures++;
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    size_t before, after, total_bytes;
    if (count != 3 || atoi(arguments[1]) > 64)
        return 2;
    load();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    set_current = (int (*)(void *))symbol(library, "cuCtxSetCurrent");
    destroy_context = (int (*)(void *))symbol(library, "cuCtxDestroy_v2");
    retain = (int (*)(void **, int))symbol(library, "cuDevicePrimaryCtxRetain");
    release = (int (*)(int))symbol(library, "cuDevicePrimaryCtxRelease_v2");
    rounds = (unsigned)atoi(arguments[2]);
    if (cuda.init(0) || cuda.make_context(&context, 0, 0) || cuda.info(&before, &total_bytes))
        return 3;
    for (int i = 0; i < atoi(arguments[1]); i++)
        pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 5; i++)
        fork_once();
    for (int i = 0; i < atoi(arguments[1]); i++)
        pthread_join(threads[i], NULL);
    if (cuda.synchronize() || cuda.info(&after, &total_bytes))
        return 4;
    printf("%u failures, %zd bytes left behind\n", failures, (ssize_t)(before - after));
    return failures || before != after || destroy_context(context);
}
