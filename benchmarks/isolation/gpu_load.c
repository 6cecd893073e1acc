/* Gives a GPU work of one kind until it is told to end. Runs on the fake driver and on a real one.
 *
 * Usage: gpu_load WORK [STREAMS]
 *
 *   kernels:NS      kernels of that length, as many queued as the driver takes
 *   grids:NS        the same, each on a grid that was not used for thousands of launches
 *   uneven:NS:NS    kernels of the first length, one in twenty of the second, as many queued as the driver takes
 *   single:NS       kernels of that length, each waited for
 *   service:NS:N    N kernels of that length, waited for, then a pause of 8 to 12 ms; tells how long that took
 *   cooperative:NS  cooperative kernels, as many queued as the driver takes
 *   graphs:NS:N     graphs of N kernels (captured), as many queued as the driver takes
 *   copies:BYTES    copies to the GPU from pinned memory, as many queued as the driver takes
 *   fills:BYTES     memory on the GPU is filled, likewise
 *
 * A kernel's grid is one wave of a V100 (80 processors of 2048 threads): libraries that count blocks shall have some to count.
 *
 * Prints "ready" once a context is there and begins when it reads a line. At the end of stdin, or after SIGTERM, it
 * prints `done=COUNT`, and for a service `p50=MS p99=MS` besides. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct stream *CUstream;
typedef struct function *CUfunction;
typedef unsigned long long CUdeviceptr;

enum { TIMES_MAX = 1 << 16, STREAMS_MAX = 64, NON_BLOCKING = 1, CAPTURE_RELAXED = 2, BLOCKS = 640, THREADS = 256 };

/* The same PTX spins on a real GPU and states its duration to the fake driver. */
static const char ptx[] =
    ".version 6.4\n.target sm_50\n.address_size 64\n"
    "// fakegpu: duration param 0 ns\n"
    ".visible .entry spin(.param .u64 length)\n{\n"
    ".reg .pred %p;\n.reg .u64 %a, %b, %c;\n"
    "ld.param.u64 %c, [length];\nmov.u64 %a, %globaltimer;\n"
    "again:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\nsetp.lt.u64 %p, %b, %c;\n@%p bra again;\nret;\n}\n";

static void *driver;
static CUstream streams[STREAMS_MAX];
static unsigned stream_count = 1;
static CUfunction spin;
static volatile sig_atomic_t ended;
static uint64_t times_ns[TIMES_MAX];
static unsigned time_count;

/* The driver's function, called with any arguments; ends the program on an error. */
#define CALL(name, ...)                                                                                    \
    do {                                                                                                   \
        static int (*function_)();                                                                         \
        if (!function_ && !(function_ = (int (*)())dlsym(driver, name)))                                   \
            fail(name, -1);                                                                                \
        int result_ = function_(__VA_ARGS__);                                                              \
        if (result_)                                                                                       \
            fail(name, result_);                                                                           \
    } while (0)

static void fail(const char *name, int result)
{
    fprintf(stderr, "%s: CUDA error %d\n", name, result);
    _exit(1);
}

static void end(int number)
{
    (void)number;
    ended = 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether to go on; asks for the end of stdin every few milliseconds. */
static int goes_on(void)
{
    static uint64_t asked_ns;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    uint64_t present_ns = now_ns();
    if (present_ns > asked_ns + 5000000) {
        asked_ns = present_ns;
        ended |= poll(&input, 1, 0) > 0;
    }
    return !ended;
}

static uint64_t chance(void)
{
    static uint64_t state;
    state = (state ? state : (uint64_t)getpid()) * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return state >> 33;
}

static void launch(uint64_t length_ns, CUstream stream)
{
    void *parameters[] = {&length_ns};
    CALL("cuLaunchKernel", spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, (void **)NULL);
}

/* Every grid of up to BLOCKS blocks, one after the other: some ten thousand. */
static void launch_on_next_grid(uint64_t length_ns, CUstream stream)
{
    static unsigned x = 1, y = 1, z;
    void *parameters[] = {&length_ns};
    if (x * y * ++z > BLOCKS) {
        z = 1;
        if (x * ++y > BLOCKS) {
            y = 1;
            x = x % BLOCKS + 1;
        }
    }
    CALL("cuLaunchKernel", spin, x, y, z, THREADS, 1, 1, 0, stream, parameters, (void **)NULL);
}

static void *captured(uint64_t length_ns, uint64_t count)
{
    void *graph, *whole;
    CALL("cuStreamBeginCapture_v2", streams[0], CAPTURE_RELAXED);
    for (uint64_t i = 0; i < count; i++)
        launch(length_ns, streams[0]);
    CALL("cuStreamEndCapture", streams[0], &graph);
    CALL("cuGraphInstantiateWithFlags", &whole, graph, 0ull);
    return whole;
}

static void serve(uint64_t length_ns, uint64_t count)
{
    uint64_t began_ns = now_ns();
    for (uint64_t i = 0; i < count; i++)
        launch(length_ns, streams[0]);
    CALL("cuStreamSynchronize", streams[0]);
    if (time_count < TIMES_MAX)
        times_ns[time_count++] = now_ns() - began_ns;
    /* Several with pauses of one length would never meet again after a while. */
    nanosleep(&(struct timespec){0, 8000000 + (long)(chance() % 4000000)}, NULL);
}

static int by_time(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return (first > second) - (first < second);
}

static void tell_times(void)
{
    qsort(times_ns, time_count, sizeof times_ns[0], by_time);
    printf(" p50=%.3f p99=%.3f", (double)times_ns[time_count / 2] / 1e6, (double)times_ns[time_count * 99 / 100] / 1e6);
}

static uint64_t work_on(const char *work, uint64_t size, uint64_t count)
{
    uint64_t done = 0;
    CUdeviceptr device[STREAMS_MAX];
    void *host = NULL, *graph = NULL;
    int copies = !strncmp(work, "copies:", 7), fills = !strncmp(work, "fills:", 6);
    if (copies)
        CALL("cuMemAllocHost_v2", &host, (size_t)size);
    for (unsigned i = 0; i < stream_count && (copies || fills); i++)
        CALL("cuMemAlloc_v2", &device[i], (size_t)size);
    if (!strncmp(work, "graphs:", 7))
        graph = captured(size, count);
    for (; goes_on(); done++) {
        unsigned i = (unsigned)(done % stream_count);
        if (!strncmp(work, "kernels:", 8)) {
            launch(size, streams[i]);
        } else if (!strncmp(work, "grids:", 6)) {
            launch_on_next_grid(size, streams[i]);
        } else if (!strncmp(work, "uneven:", 7)) {
            launch(chance() % 20 ? size : count, streams[i]);
        } else if (!strncmp(work, "single:", 7)) {
            launch(size, streams[i]);
            CALL("cuStreamSynchronize", streams[i]);
        } else if (!strncmp(work, "service:", 8)) {
            serve(size, count);
        } else if (!strncmp(work, "cooperative:", 12)) {
            void *parameters[] = {&size};
            CALL("cuLaunchCooperativeKernel", spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, streams[i], parameters);
        } else if (graph) {
            CALL("cuGraphLaunch", graph, streams[i]);
        } else if (copies) {
            CALL("cuMemcpyHtoDAsync_v2", device[i], host, (size_t)size, streams[i]);
        } else if (fills) {
            CALL("cuMemsetD8Async", device[i], 1, (size_t)size, streams[i]);
        } else {
            fprintf(stderr, "%s: no such work\n", work);
            _exit(2);
        }
    }
    return done;
}

int main(int count, char **words)
{
    char line[16];
    int device;
    void *context, *module;
    if (count < 2)
        return 2;
    const char *size = strchr(words[1], ':');
    const char *times = size ? strchr(size + 1, ':') : NULL;
    stream_count = count > 2 ? (unsigned)atoi(words[2]) : 1;
    if (!size || stream_count < 1 || stream_count > STREAMS_MAX)
        return 2;
    signal(SIGTERM, end);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    CALL("cuInit", 0);
    CALL("cuDeviceGet", &device, 0);
    CALL("cuCtxCreate_v2", &context, 0, device);
    CALL("cuModuleLoadData", &module, ptx);
    CALL("cuModuleGetFunction", &spin, module, "spin");
    for (unsigned i = 0; i < stream_count; i++)
        CALL("cuStreamCreate", &streams[i], NON_BLOCKING);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 0;
    uint64_t done = work_on(words[1], strtoull(size + 1, NULL, 10), times ? strtoull(times + 1, NULL, 10) : 1);
    printf("done=%llu", (unsigned long long)done);
    if (time_count)
        tell_times();
    printf("\n");
    fflush(stdout);
    _exit(0); /* what is queued need not be waited for */
}
