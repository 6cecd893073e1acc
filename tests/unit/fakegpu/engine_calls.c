/* Calls everything about work on the GPU from several threads, with checks of what must hold at any load; for sanitizers.
 *
 * Usage: engine_calls PTX ROUNDS THREADS. Prints "ok", or what was wrong on stderr. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface/cuda_work.h"

CUresult cuInit(unsigned flags);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphDestroy(CUgraph graph);

enum { WORDS = 4096, BIG_WORDS = 1 << 20 };
static CUcontext context;
static CUfunction spin;
static int rounds;
static atomic_int failures;

static void expect(int holds, const char *what, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, what);
        atomic_fetch_add(&failures, 1);
    }
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define CHECK(call) expect((call) == CUDA_SUCCESS, #call, __LINE__)

static void launch(uint64_t nanoseconds, CUstream stream)
{
    void *parameters[] = {&nanoseconds};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void count_up(void *argument)
{
    atomic_fetch_add((atomic_int *)argument, 1);
}

/* Events bracket what ran between them. */
static void events(CUstream stream)
{
    CUevent start, end;
    float milliseconds = 0;
    CHECK(cuEventCreate(&start, 0));
    CHECK(cuEventCreate(&end, 0));
    CHECK(cuEventRecord(start, stream));
    for (int i = 0; i < 10; i++)
        launch(50000, stream);
    CHECK(cuEventRecord(end, stream));
    CUresult early = cuEventQuery(end);
    EXPECT(early == CUDA_SUCCESS || early == CUDA_ERROR_NOT_READY);
    CHECK(cuEventSynchronize(end));
    CHECK(cuEventQuery(end));
    if (stream) /* what other threads give the legacy stream may not be over */
        CHECK(cuStreamQuery(stream));
    CHECK(cuEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds >= 0.4999);
    CHECK(cuEventDestroy_v2(start));
    CHECK(cuEventDestroy_v2(end));
}

/* What goes round comes back: host to device, device to device, back to the host; and another stream waits for it. */
static void copies(CUstream stream, CUstream other, size_t words)
{
    unsigned *there = malloc(words * 4), *back = malloc(words * 4);
    CUdeviceptr first, second;
    CUevent event;
    for (size_t i = 0; i < words; i++)
        there[i] = (unsigned)i * 2654435761u;
    CHECK(cuMemAlloc_v2(&first, words * 4));
    CHECK(cuMemAllocAsync(&second, words * 4, stream));
    CHECK(cuEventCreate(&event, 2));
    CHECK(cuMemcpyHtoDAsync_v2(first, there, words * 4, stream));
    CHECK(cuMemcpyDtoDAsync_v2(second, first, words * 4, stream));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    CHECK(cuMemsetD32Async(first, 7, words, other));
    CHECK(cuMemcpyDtoHAsync_v2(back, second, words * 4, other));
    CHECK(cuStreamSynchronize(other));
    EXPECT(!memcmp(there, back, words * 4));
    CHECK(cuMemcpyDtoH_v2(back, first, words * 4));
    EXPECT(back[0] == 7 && back[words - 1] == 7);
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuMemFreeAsync(second, stream));
    CHECK(cuMemFree_v2(first));
    free(there);
    free(back);
}

/* Host functions and values in memory keep a stream's order. */
static void host(CUstream stream, CUstream other)
{
    atomic_int calls = 0;
    CUdeviceptr flag;
    unsigned zero = 0;
    CHECK(cuMemAlloc_v2(&flag, 4));
    CHECK(cuMemcpyHtoDAsync_v2(flag, &zero, 4, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamWaitValue32_v2(other, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuLaunchHostFunc(other, count_up, &calls));
    for (int i = 0; i < 3; i++) {
        launch(1000, stream);
        CHECK(cuLaunchHostFunc(stream, count_up, &calls));
    }
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 3);
    EXPECT(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamWriteValue32_v2(stream, flag, 1, 0));
    CHECK(cuStreamSynchronize(other));
    EXPECT(calls == 4);
    CHECK(cuMemFree_v2(flag));
}

/* A capture over two streams, launched several times. */
static void graphs(CUstream stream, CUstream other)
{
    atomic_int calls = 0;
    CUgraph graph;
    CUgraphExec exec;
    CUevent fork, join;
    CUdeviceptr memory;
    unsigned value = 0;
    CHECK(cuMemAlloc_v2(&memory, 4));
    CHECK(cuEventCreate(&fork, 2));
    CHECK(cuEventCreate(&join, 2));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    launch(10000, stream);
    CHECK(cuEventRecord(fork, stream));
    CHECK(cuStreamWaitEvent(other, fork, 0));
    launch(10000, other);
    CHECK(cuLaunchHostFunc(other, count_up, &calls));
    CHECK(cuMemsetD32Async(memory, 99, 1, stream));
    CHECK(cuEventRecord(join, other));
    CHECK(cuStreamWaitEvent(stream, join, 0));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 5; i++)
        CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 5);
    CHECK(cuMemcpyDtoH_v2(&value, memory, 4));
    EXPECT(value == 99);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuEventDestroy_v2(fork));
    CHECK(cuEventDestroy_v2(join));
    CHECK(cuMemFree_v2(memory));
}

static void *work(void *argument)
{
    (void)argument;
    CHECK(cuCtxSetCurrent(context));
    for (int round = 0; round < rounds; round++) {
        CUstream streams[2];
        CHECK(cuStreamCreate(&streams[0], 1));
        CHECK(cuStreamCreate(&streams[1], 1));
        events(streams[0]);
        copies(streams[0], streams[1], round ? WORDS : BIG_WORDS);
        host(streams[0], streams[1]);
        graphs(streams[0], streams[1]);
        events(CU_STREAM_PER_THREAD);
        events(NULL);
        for (int i = 0; i < 1500; i++)
            launch(1000, streams[i % 2]);
        CHECK(cuStreamDestroy_v2(streams[0]));
        CHECK(cuStreamDestroy_v2(streams[1]));
    }
    CHECK(cuCtxSynchronize());
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t threads[16];
    CUmodule module;
    if (count != 4)
        return 2;
    rounds = atoi(arguments[2]);
    int thread_count = atoi(arguments[3]);
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&spin, module, "spin"));
    for (int i = 0; i < thread_count && i < 16; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < thread_count && i < 16; i++)
        pthread_join(threads[i], NULL);
    CHECK(cuModuleUnload(module));
    CHECK(cuCtxDestroy_v2(context));
    if (!failures)
        printf("ok\n");
    return failures != 0;
}
