/* Threads of one process take and give back what just fits beside what the driver took unasked (streams), while another one asks how much there is:
 * nothing may be refused.
 *
 *     growth_race THREADS ROUNDS MIB_EACH */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "client.h"

enum { PLAIN = 0 };
static void *context;
static int (*set_current)(void *);
static unsigned rounds;
static size_t each_bytes;
static _Atomic unsigned refused, failures, working;

static void *work(void *unused)
{
    struct held held;
    failures += set_current(context) != 0;
    for (unsigned round = 0; round < rounds; round++) {
        int result = take(&held, PLAIN, each_bytes);
        refused += result == OUT_OF_MEMORY;
        failures += result ? result != OUT_OF_MEMORY : give(&held) != 0;
    }
    working--;
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    size_t free_bytes, total_bytes;
    void *stream;
    if (count != 4 || atoi(arguments[1]) > 64)
        return 2;
    load();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*make_stream)(void **, unsigned) = (int (*)(void **, unsigned))symbol(library, "cuStreamCreate");
    set_current = (int (*)(void *))symbol(library, "cuCtxSetCurrent");
    rounds = (unsigned)atoi(arguments[2]);
    each_bytes = (size_t)atoi(arguments[3]) * MIB;
    if (cuda.init(0) || cuda.make_context(&context, 0, 0))
        return 3;
    for (int i = 0; i < 32; i++)
        failures += make_stream(&stream, 0) != 0;
    working = (unsigned)atoi(arguments[1]);
    for (int i = 0; i < atoi(arguments[1]); i++)
        pthread_create(&threads[i], NULL, work, NULL);
    while (working)
        failures += cuda.info(&free_bytes, &total_bytes) != 0;
    for (int i = 0; i < atoi(arguments[1]); i++)
        pthread_join(threads[i], NULL);
    printf("%u refused, %u failures\n", refused, failures);
    return refused || failures;
}
