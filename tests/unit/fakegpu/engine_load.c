/* Keeps a GPU busy and says what came of it. Runs on the stand-in driver and on a real one.
 *
 * Usage: engine_load PTX WORK SECONDS [STREAMS]
 *
 *   kernels:NANOSECONDS   kernels of that length, as many queued as the driver takes
 *   single:NANOSECONDS    the same, each waited for
 *   count:NANOSECONDS:N   N kernels queued, waited for together; SECONDS does not matter
 *   copies:BYTES          copies to the GPU and back, from pinned memory
 *   launches              kernels of next to no length: what does a launch cost the caller?
 *   idle                  a context and nothing else
 *
 * It prints one line of NAME=VALUE: how much was done in how long (CLOCK_MONOTONIC), and what the calls cost. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuCtxSynchronize(void);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemAllocHost_v2(void **address, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);

enum { STREAMS_MAX = 64 };
static CUstream streams[STREAMS_MAX];
static unsigned stream_count = 1;
static CUfunction spin, nothing;

static double now_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void check(CUresult result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}
#define CHECK(call) check((call), #call)

static void launch(uint64_t nanoseconds, CUstream stream)
{
    void *parameters[] = {&nanoseconds};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* Returns how many. */
static uint64_t kernels(uint64_t nanoseconds, int single, double until_s)
{
    uint64_t done = 0;
    while (now_s(CLOCK_MONOTONIC) < until_s) {
        CUstream stream = streams[done++ % stream_count];
        launch(nanoseconds, stream);
        if (single)
            CHECK(cuStreamSynchronize(stream));
    }
    return done;
}

static uint64_t copies(size_t bytes, double until_s)
{
    CUdeviceptr device[STREAMS_MAX];
    void *host;
    uint64_t done = 0;
    CHECK(cuMemAllocHost_v2(&host, bytes));
    for (unsigned i = 0; i < stream_count; i++)
        CHECK(cuMemAlloc_v2(&device[i], bytes));
    while (now_s(CLOCK_MONOTONIC) < until_s) {
        unsigned i = (unsigned)(done++ % stream_count);
        CHECK(cuMemcpyHtoDAsync_v2(device[i], host, bytes, streams[i]));
        CHECK(cuMemcpyDtoHAsync_v2(host, device[i], bytes, streams[i]));
        CHECK(cuStreamSynchronize(streams[i]));
    }
    return done;
}

/* As many as are queued without waiting, then a wait, over and over; only the launches are timed. */
static uint64_t launches(double until_s, double *launch_s)
{
    enum { BATCH = 512 };
    uint64_t done = 0;
    *launch_s = 0;
    while (now_s(CLOCK_MONOTONIC) < until_s) {
        double start_s = now_s(CLOCK_MONOTONIC);
        for (int i = 0; i < BATCH; i++)
            CHECK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL));
        *launch_s += now_s(CLOCK_MONOTONIC) - start_s;
        done += BATCH;
        CHECK(cuStreamSynchronize(streams[0]));
    }
    return done;
}

int main(int count, char **arguments)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    if (count < 4)
        return 2;
    const char *work = arguments[2];
    uint64_t size = strchr(work, ':') ? strtoull(strchr(work, ':') + 1, NULL, 10) : 0, done = 0;
    if (count > 4)
        stream_count = (unsigned)atoi(arguments[4]);
    if (stream_count < 1 || stream_count > STREAMS_MAX)
        return 2;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&spin, module, "spin"));
    CHECK(cuModuleGetFunction(&nothing, module, "nothing"));
    for (unsigned i = 0; i < stream_count; i++)
        CHECK(cuStreamCreate(&streams[i], 1));
    double start_s = now_s(CLOCK_MONOTONIC), launch_s = 0, until_s = start_s + atof(arguments[3]);
    if (!strncmp(work, "kernels:", 8)) {
        done = kernels(size, 0, until_s);
    } else if (!strncmp(work, "single:", 7)) {
        done = kernels(size, 1, until_s);
    } else if (!strncmp(work, "count:", 6)) {
        for (uint64_t wanted = strtoull(strrchr(work, ':') + 1, NULL, 10); done < wanted; done++)
            launch(size, streams[done % stream_count]);
    } else if (!strncmp(work, "copies:", 7)) {
        done = copies(size, until_s);
    } else if (!strcmp(work, "launches")) {
        done = launches(until_s, &launch_s);
    } else if (!strcmp(work, "idle")) {
        while (now_s(CLOCK_MONOTONIC) < until_s)
            usleep(100000);
    } else {
        return 2;
    }
    CHECK(cuCtxSynchronize());
    double took_s = now_s(CLOCK_MONOTONIC) - start_s;
    printf("done=%llu seconds=%.6f cpu=%.6f", (unsigned long long)done, took_s, now_s(CLOCK_PROCESS_CPUTIME_ID));
    if (launch_s > 0)
        printf(" launch_ns=%.1f", launch_s * 1e9 / (double)done);
    printf("\n");
    return 0;
}
