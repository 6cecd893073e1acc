/* Threads of one process give work to streams of their own, capture graphs, end contexts and fork, all under a compute limit.
 *
 *     launches_race THREADS ROUNDS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
                          "// fakegpu: duration param 0 ns\n.visible .entry spin(.param .u64 length) { ret; }\n";
static void *context, *function;
static unsigned rounds;
static _Atomic unsigned failures;
static int (*initialise)(unsigned), (*make_context)(void **, unsigned, int);
static int (*set_current)(void *), (*destroy_context)(void *), (*load_module)(void **, const char *);
static int (*retain)(void **, int), (*release)(int);
static int (*get_function)(void **, void *, const char *), (*make_stream)(void **, unsigned), (*wait_for)(void *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*begin)(void *, int), (*end)(void *, void **), (*instantiate)(void **, void *, unsigned long long);
static int (*launch_graph)(void *, void *), (*drop_graph)(void *), (*drop_whole)(void *);

static void check(int result)
{
    if (result)
        failures++;
}

static void spin(void *stream, void *kernel, uint64_t length_ns)
{
    void *parameters[] = {&length_ns};
    check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    void *stream, *graph, *whole = NULL, *other, *module, *kernel;
    check(set_current(context));
    check(make_stream(&stream, 1));
    for (unsigned round = 0; round < rounds; round++) {
        spin(round % 3 ? stream : NULL, function, (uint64_t)(rand_r(&seed) % 50000));
        if (round % 50 == 10) {
            check(begin(stream, 1));
            spin(stream, function, 1000);
            check(end(stream, &graph));
            if (whole)
                check(drop_whole(whole));
            check(instantiate(&whole, graph, 0));
            check(drop_graph(graph));
        }
        if (whole)
            check(launch_graph(whole, stream));
        if (round % 30 == 15) {
            check(retain(&other, 0));
            check(set_current(other));
            check(load_module(&module, ptx));
            check(get_function(&kernel, module, "spin"));
            spin(NULL, kernel, 200000);
            check(set_current(context));
            check(release(0)); /* of all threads, the last one ends it */
        }
        if (round % 60 == 30) {
            check(make_context(&other, 0, 0));
            check(load_module(&module, ptx));
            check(get_function(&kernel, module, "spin"));
            spin(NULL, kernel, 200000);
            check(destroy_context(other));
            check(set_current(context));
        }
        if (round % 40 == 20)
            check(wait_for(stream));
    }
    check(wait_for(stream));
    if (whole)
        check(drop_whole(whole));
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[64];
    unsigned thread_count = count == 3 ? (unsigned)atoi(words[1]) : 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (!thread_count || thread_count > 64)
        return 2;
    if (!library)
        return 3;
    rounds = (unsigned)atoi(words[2]);
#define LOAD(pointer, name)                                                                                \
    if (!(pointer = (__typeof__(pointer))dlsym(library, name)))                                            \
        return 3
    LOAD(initialise, "cuInit");
    LOAD(make_context, "cuCtxCreate_v2");
    LOAD(set_current, "cuCtxSetCurrent");
    LOAD(destroy_context, "cuCtxDestroy_v2");
    LOAD(retain, "cuDevicePrimaryCtxRetain");
    LOAD(release, "cuDevicePrimaryCtxRelease_v2");
    LOAD(load_module, "cuModuleLoadData");
    LOAD(get_function, "cuModuleGetFunction");
    LOAD(make_stream, "cuStreamCreate");
    LOAD(wait_for, "cuStreamSynchronize");
    LOAD(launch, "cuLaunchKernel");
    LOAD(begin, "cuStreamBeginCapture_v2");
    LOAD(end, "cuStreamEndCapture");
    LOAD(instantiate, "cuGraphInstantiateWithFlags");
    LOAD(launch_graph, "cuGraphLaunch");
    LOAD(drop_graph, "cuGraphDestroy");
    LOAD(drop_whole, "cuGraphExecDestroy");
    check(initialise(0));
    check(make_context(&context, 0, 0));
    check(load_module(&module, ptx));
    check(get_function(&function, module, "spin"));
    for (uintptr_t i = 0; i < thread_count; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (unsigned i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        int status = 1;
        waitpid(child, &status, 0);
        check(status);
    }
    for (unsigned i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    printf("%u failures\n", failures);
    return failures != 0;
}
