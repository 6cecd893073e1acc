/* What one call of the driver costs a program: so many at a time, whenever it is told to.
 *
 * Usage: call_cost CALL
 *
 *   launch    a kernel of next to no time is launched; waited for outside of what is timed
 *   copy      4 KiB to the GPU, queued; likewise
 *   wait      for a stream without work
 *   look-up   of a function that nobody limits, by cuGetProcAddress
 *   take      2 MiB of memory, given back outside of what is timed
 *   give      2 MiB of memory, taken outside of what is timed
 *   take-small, give-small   of 256 bytes
 *   take-async   2 MiB in order with a stream, from the device's pool, which keeps what it has
 *   tell      how much memory is free
 *
 * Prints "ready" once it has a context. For each line "COUNT" on stdin it calls so often (twice before that, untimed) and prints
 * nanoseconds of real time and of the thread's processor time for each call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COUNT_MAX = 1000, MIB = 1 << 20, NON_BLOCKING = 1, BLOCKS = 640, THREADS = 256, RELEASE_THRESHOLD = 4 };

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
                          "// fakegpu: duration 500 ns\n.visible .entry nothing()\n{\nret;\n}\n";

static void *driver, *stream, *function, *host;
static unsigned long long addresses[COUNT_MAX], buffer;
static const char *doing = "beginning";

static struct {
    int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const char *);
    int (*get_function)(void **, void *, const char *), (*make_stream)(void **, unsigned), (*wait)(void *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*host)(void **, size_t), (*copy)(unsigned long long, const void *, size_t, void *);
    int (*take)(unsigned long long *, size_t), (*give)(unsigned long long);
    int (*take_async)(unsigned long long *, size_t, void *), (*give_async)(unsigned long long, void *);
    int (*look_up)(const char *, void **, int, unsigned long long, int *), (*tell)(size_t *, size_t *);
    int (*pool)(void **, int), (*set_pool)(void *, int, void *);
} cuda;

static void check(int result)
{
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", doing, result);
        _exit(1);
    }
}

static void *symbol(const char *name)
{
    void *found = dlsym(driver, name);
    doing = name;
    check(found ? 0 : -1);
    return found;
}

static void begin(void)
{
    void *context, *module, *pool;
    unsigned long long all = ~0ull;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
#define LOAD(field, name) cuda.field = (__typeof__(cuda.field))symbol(name)
    LOAD(init, "cuInit");
    LOAD(retain, "cuDevicePrimaryCtxRetain");
    LOAD(set_current, "cuCtxSetCurrent");
    LOAD(load, "cuModuleLoadData");
    LOAD(get_function, "cuModuleGetFunction");
    LOAD(make_stream, "cuStreamCreate");
    LOAD(wait, "cuStreamSynchronize");
    LOAD(launch, "cuLaunchKernel");
    LOAD(host, "cuMemAllocHost_v2");
    LOAD(copy, "cuMemcpyHtoDAsync_v2");
    LOAD(take, "cuMemAlloc_v2");
    LOAD(give, "cuMemFree_v2");
    LOAD(take_async, "cuMemAllocAsync");
    LOAD(give_async, "cuMemFreeAsync");
    LOAD(look_up, "cuGetProcAddress_v2");
    LOAD(tell, "cuMemGetInfo_v2");
    LOAD(pool, "cuDeviceGetDefaultMemPool");
    LOAD(set_pool, "cuMemPoolSetAttribute");
    doing = "setting up";
    check(cuda.init(0));
    check(cuda.retain(&context, 0));
    check(cuda.set_current(context));
    check(cuda.load(&module, ptx));
    check(cuda.get_function(&function, module, "nothing"));
    check(cuda.make_stream(&stream, NON_BLOCKING));
    check(cuda.host(&host, 4096));
    check(cuda.take(&buffer, 4096));
    check(cuda.pool(&pool, 0));
    check(cuda.set_pool(pool, RELEASE_THRESHOLD, &all));
}

/* --- the calls: what is timed, and what comes before and after ------------------------------------------------- */

static void none(unsigned count) { (void)count; }
static void wait(unsigned count)
{
    (void)count;
    check(cuda.wait(stream));
}
static void launch(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.launch(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, NULL, NULL));
}
static void copy(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.copy(buffer, host, 4096, stream));
}
static void wait_often(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.wait(stream));
}
static void look_up(unsigned count)
{
    void *found;
    int status;
    for (unsigned i = 0; i < count; i++)
        check(cuda.look_up("cuCtxGetDevice", &found, 12000, 0, &status));
}
static void take(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.take(&addresses[i], 2 * MIB));
}
static void take_small(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.take(&addresses[i], 256));
}
static void give(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.give(addresses[i]));
}
static void take_async(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.take_async(&addresses[i], 2 * MIB, stream));
}
static void give_async(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(cuda.give_async(addresses[i], stream));
    check(cuda.wait(stream));
}
static void tell(unsigned count)
{
    size_t free_bytes, total_bytes;
    for (unsigned i = 0; i < count; i++)
        check(cuda.tell(&free_bytes, &total_bytes));
}

static const struct call {
    const char *name;
    void (*before)(unsigned), (*timed)(unsigned), (*after)(unsigned);
} calls[] = {
    {"launch", none, launch, wait},         {"copy", none, copy, wait},
    {"wait", none, wait_often, none},       {"look-up", none, look_up, none},
    {"take", none, take, give},             {"give", take, give, none},
    {"take-small", none, take_small, give}, {"give-small", take_small, give, none},
    {"take-async", none, take_async, give_async},
    {"tell", none, tell, none},
};

static double now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int count, char **words)
{
    const struct call *call = NULL;
    char line[32];
    for (size_t i = 0; count == 2 && i < sizeof calls / sizeof *calls; i++)
        call = strcmp(calls[i].name, words[1]) ? call : &calls[i];
    if (!call)
        return 2;
    begin();
    doing = call->name;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned often = (unsigned)atoi(line);
        if (!often || often > COUNT_MAX)
            return 2;
        call->before(2);
        call->timed(2);
        call->after(2);
        call->before(often);
        double began_ns = now_ns(CLOCK_MONOTONIC), began_cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
        call->timed(often);
        double cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - began_cpu_ns, real_ns = now_ns(CLOCK_MONOTONIC) - began_ns;
        call->after(often);
        printf("%.2f %.2f\n", real_ns / often, cpu_ns / often);
        fflush(stdout);
    }
    _exit(0);
}
