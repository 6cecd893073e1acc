/* What calls of the driver cost their caller, in nanoseconds: the mean of many small series without the slowest quarter of them, for each.
 * (Under a compute limit one launch in a few hundred is measured, which costs as much as several: a median has that in it or has not.)
 *
 * Usage: call_costs PTX SERIES
 *
 * Prints NAME NS, a line each. Nothing here waits for the GPU while it is timed, but what says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 100, SERIES_MAX = 1000 };
static unsigned series;
static void *driver, *kernel;
static double seen_ns[SERIES_MAX];

static int (*must_have(const char *name))()
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "%s: not there\n", name);
        _exit(1);
    }
    return (int (*)())found;
}

static void check(const char *name, int result)
{
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", name, result);
        _exit(1);
    }
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void tell(const char *name)
{
    unsigned kept = series - series / 4;
    double sum_ns = 0;
    qsort(seen_ns, series, sizeof *seen_ns, by_size);
    for (unsigned i = 0; i < kept; i++)
        sum_ns += seen_ns[i];
    printf("%s %.1f\n", name, sum_ns / kept);
}

/* Times CALL, CALLS times in a row, over and over; what stands in AFTER is not timed. */
#define TIME(name, CALL, AFTER)                             \
    do {                                                    \
        for (unsigned i_ = 0; i_ < series; i_++) {          \
            double begin_ns_ = now_ns();                    \
            for (unsigned j = 0; j < CALLS; j++)            \
                check(name, CALL);                          \
            seen_ns[i_] = (now_ns() - begin_ns_) / CALLS;   \
            AFTER;                                          \
        }                                                   \
        tell(name);                                         \
    } while (0)

int main(int count, char **words)
{
    void *context, *module, *stream, *current;
    size_t free_bytes, total_bytes;
    unsigned long long address[CALLS], one;
    int gpu;
    series = count == 3 ? (unsigned)atoi(words[2]) : 0;
    if (!series || series > SERIES_MAX)
        return 2;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#define LOAD(name) int (*name)() = must_have(#name)
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuCtxCreate_v2);
    LOAD(cuModuleLoad);
    LOAD(cuModuleGetFunction);
    LOAD(cuStreamCreate);
    LOAD(cuCtxSynchronize);
    LOAD(cuCtxGetCurrent);
    LOAD(cuMemGetInfo_v2);
    LOAD(cuStreamSynchronize);
    LOAD(cuMemAlloc_v2);
    LOAD(cuMemFree_v2);
    LOAD(cuLaunchKernel);
    LOAD(cuMemcpyHtoD_v2);
    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&gpu, 0));
    check("cuCtxCreate_v2", cuCtxCreate_v2(&context, 0, gpu));
    check("cuModuleLoad", cuModuleLoad(&module, words[1]));
    check("cuModuleGetFunction", cuModuleGetFunction(&kernel, module, "nothing"));
    check("cuStreamCreate", cuStreamCreate(&stream, 1));
    check("cuMemAlloc_v2", cuMemAlloc_v2(&one, (size_t)4096));
    TIME("cuCtxGetCurrent", cuCtxGetCurrent(&current), (void)0);
    TIME("cuMemGetInfo_v2", cuMemGetInfo_v2(&free_bytes, &total_bytes), (void)0);
    TIME("cuStreamSynchronize", cuStreamSynchronize(stream), (void)0);
    TIME("cuLaunchKernel", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, (void **)NULL, (void **)NULL),
         check("cuCtxSynchronize", cuCtxSynchronize()));
    TIME("cuMemAlloc_v2+cuMemFree_v2,64KiB", cuMemAlloc_v2(&one, (size_t)65536) || cuMemFree_v2(one), (void)0);
    TIME("cuMemAlloc_v2,2MiB", cuMemAlloc_v2(&address[j], (size_t)2 << 20),
         for (unsigned k = 0; k < CALLS; k++) check("cuMemFree_v2", cuMemFree_v2(address[k])));
    check("cuMemAlloc_v2", cuMemAlloc_v2(&one, (size_t)4096));
    TIME("cuMemcpyHtoD_v2,4KiB", cuMemcpyHtoD_v2(one, seen_ns, (size_t)4096), (void)0);
    fflush(stdout);
    _exit(0);
}
