/* Gives a GPU work of one kind and says, whenever it is asked, how much of it is through. By the driver's interface alone, so
 * that the same figures come from any driver.
 *
 * Usage: paced_load PTX WORK [STREAMS]
 *
 *   kernels:NS      kernels of that length, which fill the GPU
 *   single:NS       the same, each waited for
 *   cooperative:NS  cooperative kernels
 *   graphs:NS:N     graphs of N kernels
 *   copies:BYTES    copies to the GPU from pinned memory
 *   service:NS:N    N kernels, waited for together, then a pause of 8 to 12 ms
 *
 * It prints "ready" once all is made; a line begins the work. Each further line is answered by the moment (CLOCK_MONOTONIC, ns)
 * and how many kernels, graphs, copies or rounds of a service were through by then; of a service also by the median and the 99th percentile
 * of the time (ns) that its rounds took since the line before. The end of stdin ends it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS_MAX = 16, BLOCK = 1024, NON_BLOCKING = 1, RELAXED = 2, BLOCKING_SYNC = 1, NO_TIMING = 2, NOT_READY = 600 };
enum { MULTIPROCESSORS = 16, THREADS_OF_ONE = 39 };
enum { BATCH_NS = 1000000, AHEAD_NS = 100000000, AHEAD_LEAST = 2, AHEAD_MOST = 64 };

static void *driver, *streams[STREAMS_MAX], *kernel, *graph, *host;
static unsigned long long device[STREAMS_MAX];
static unsigned stream_count = 1, blocks;
static char kind[16];
static uint64_t size, in_graph;

/* Batches whose end is not known yet, oldest first. */
static void *events[AHEAD_MOST];
static uint64_t begun, through, batch, ahead;

enum { TIMES_MOST = 1 << 14 };
static uint64_t times_ns[TIMES_MOST];
static unsigned time_count;

static void fail(const char *what, int result)
{
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    _exit(1);
}

static int (*function(const char *name))()
{
    void *found = dlsym(driver, name);
    if (!found)
        fail(name, -1);
    return (int (*)())found;
}

/* The driver's function, looked up once, with any arguments; ends the program when it fails. */
#define MUST(name, ...)                                    \
    do {                                                   \
        static int (*called_)();                           \
        called_ = called_ ? called_ : function(name);      \
        int result_ = called_(__VA_ARGS__);                \
        if (result_)                                       \
            fail(name, result_);                           \
    } while (0)

static int is(const char *name)
{
    return !strcmp(kind, name);
}

static void launch(void *stream)
{
    void *parameters[] = {&size};
    if (is("cooperative"))
        MUST("cuLaunchCooperativeKernel", kernel, blocks, 1, 1, BLOCK, 1, 1, 0, stream, parameters);
    else
        MUST("cuLaunchKernel", kernel, blocks, 1, 1, BLOCK, 1, 1, 0, stream, parameters, (void **)NULL);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void serve(void *stream)
{
    static uint64_t chance;
    uint64_t began_ns = now_ns();
    for (uint64_t j = 0; j < in_graph; j++)
        launch(stream);
    MUST("cuStreamSynchronize", stream);
    if (time_count < TIMES_MOST)
        times_ns[time_count++] = now_ns() - began_ns;
    /* Several with pauses of one length would never meet again after a while. */
    chance = (chance ? chance : (uint64_t)getpid()) * 6364136223846793005u + 1442695040888963407u;
    nanosleep(&(struct timespec){0, 8000000 + (long)((chance >> 33) % 4000000)}, NULL);
}

static int by_time(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return (first > second) - (first < second);
}

static void tell_times(void)
{
    qsort(times_ns, time_count, sizeof times_ns[0], by_time);
    printf(" %llu %llu", (unsigned long long)times_ns[time_count / 2], (unsigned long long)times_ns[time_count * 99 / 100]);
    time_count = 0;
}

static void one(unsigned i)
{
    if (is("service")) {
        serve(streams[i]);
    } else if (graph) {
        MUST("cuGraphLaunch", graph, streams[i]);
    } else if (is("copies")) {
        MUST("cuMemcpyHtoDAsync_v2", device[i], host, (size_t)size, streams[i]);
    } else {
        launch(streams[i]);
        if (is("single"))
            MUST("cuStreamSynchronize", streams[i]);
    }
}

static void prepare(const char *ptx)
{
    void *context, *module, *captured;
    int gpu, multiprocessors, threads;
    MUST("cuInit", 0);
    MUST("cuDeviceGet", &gpu, 0);
    MUST("cuCtxCreate_v2", &context, 0, gpu);
    MUST("cuDeviceGetAttribute", &multiprocessors, MULTIPROCESSORS, gpu);
    MUST("cuDeviceGetAttribute", &threads, THREADS_OF_ONE, gpu);
    /* As many threads as the GPU has room for: two kernels never run side by side. */
    blocks = (unsigned)(multiprocessors * (threads < BLOCK ? 1 : threads / BLOCK));
    MUST("cuModuleLoad", &module, ptx);
    MUST("cuModuleGetFunction", &kernel, module, "own_time");
    for (unsigned i = 0; i < stream_count; i++)
        MUST("cuStreamCreate", &streams[i], NON_BLOCKING);
    if (is("copies")) {
        MUST("cuMemAllocHost_v2", &host, (size_t)size);
        for (unsigned i = 0; i < stream_count; i++)
            MUST("cuMemAlloc_v2", &device[i], (size_t)size);
    }
    if (is("graphs")) {
        MUST("cuStreamBeginCapture_v2", streams[0], RELAXED);
        for (uint64_t i = 0; i < in_graph; i++)
            launch(streams[0]);
        MUST("cuStreamEndCapture", streams[0], &captured);
        MUST("cuGraphInstantiateWithFlags", &graph, captured, 0ull);
    }
    /* What an event stands for takes a millisecond or more; copies, of which nothing is known, have one each. */
    uint64_t length_ns = is("copies") ? BATCH_NS : size * (is("graphs") ? in_graph : 1);
    batch = length_ns && length_ns < BATCH_NS && !is("single") && !is("service") ? (BATCH_NS + length_ns - 1) / length_ns : 1;
    ahead = AHEAD_NS / (batch * (length_ns ? length_ns : 1));
    ahead = ahead < AHEAD_LEAST ? AHEAD_LEAST : ahead > AHEAD_MOST ? AHEAD_MOST : ahead;
    if (is("copies"))
        ahead = 8 * stream_count;
    ahead = ahead > AHEAD_MOST ? AHEAD_MOST : ahead;
    for (unsigned i = 0; i < AHEAD_MOST; i++)
        MUST("cuEventCreate", &events[i], BLOCKING_SYNC | NO_TIMING);
}

/* A batch is one stream's: its event says that all of it is through. */
static void give_a_batch(void)
{
    unsigned i = (unsigned)(begun % stream_count);
    for (uint64_t j = 0; j < batch; j++)
        one(i);
    MUST("cuEventRecord", events[begun % AHEAD_MOST], streams[i]);
    begun++;
}

static void look(void)
{
    static int (*query)();
    query = query ? query : function("cuEventQuery");
    while (through < begun) {
        int result = query(events[through % AHEAD_MOST]);
        if (result == NOT_READY)
            return;
        if (result)
            fail("cuEventQuery", result);
        through++;
    }
}

/* Answers who asks; 0 at the end of stdin. */
static int answer(void)
{
    char line[64];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, 0) <= 0)
        return 1;
    if (read(STDIN_FILENO, line, sizeof line) <= 0)
        return 0;
    look();
    printf("%llu %llu", (unsigned long long)now_ns(), (unsigned long long)(through * batch));
    if (is("service"))
        tell_times();
    printf("\n");
    fflush(stdout);
    return 1;
}

int main(int count, char **words)
{
    char line[64];
    if (count < 3 || sscanf(words[2], "%15[a-z]:%lu:%lu", kind, &size, &in_graph) < 2)
        return 2;
    stream_count = count > 3 ? (unsigned)atoi(words[3]) : 1;
    if (!stream_count || stream_count > STREAMS_MAX || ((is("graphs") || is("service")) && !in_graph) ||
        !(is("service") || is("kernels") || is("single") || is("cooperative") || is("graphs") || is("copies")))
        return 2;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    prepare(words[1]);
    printf("ready\n");
    fflush(stdout);
    if (read(STDIN_FILENO, line, sizeof line) <= 0)
        return 0;
    while (answer()) {
        if (begun - through >= ahead)
            MUST("cuEventSynchronize", events[through % AHEAD_MOST]);
        look();
        give_a_batch();
    }
    _exit(0); /* what is queued need not be waited for */
}
