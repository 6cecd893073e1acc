/* Kernels of one kind that take very different times, one in twenty of them as long as the second number says; launched as fast as the driver
 * takes them, for a second and then for as long as the third number says. Prints which part of that time the GPU worked on them, in percent.
 *
 *     uneven_load NANOSECONDS NANOSECONDS SECONDS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
                          "// fakegpu: duration param 0 ns\n.visible .entry spin(.param .u64 length) { ret; }\n";
static void *driver, *spin;
static uint64_t lengths_ns[2];

/* The driver's function, called with any arguments; ends the program on an error. */
#define CALL(name, ...)                                                                                    \
    do {                                                                                                   \
        static int (*function_)();                                                                         \
        if (!function_)                                                                                    \
            function_ = (int (*)())dlsym(driver, name);                                                    \
        int result_ = function_ ? function_(__VA_ARGS__) : -1;                                             \
        if (result_) {                                                                                     \
            fprintf(stderr, "%s: %d\n", name, result_);                                                    \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* For so long; the GPU is through with all of it at the end. Returns its percentage of that time. */
static double work(double seconds)
{
    static uint64_t chance = 1;
    uint64_t began_ns = now_ns(), worked_ns = 0;
    while (now_ns() < began_ns + (uint64_t)(seconds * 1e9)) {
        chance = chance * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t length_ns = lengths_ns[(chance >> 33) % 20 == 0];
        void *parameters[] = {&length_ns};
        CALL("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, (void **)NULL);
        worked_ns += length_ns;
    }
    CALL("cuCtxSynchronize");
    return 100.0 * (double)worked_ns / (double)(now_ns() - began_ns);
}

int main(int count, char **words)
{
    void *context, *module;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (count != 4 || !driver)
        return 2;
    lengths_ns[0] = strtoull(words[1], NULL, 10);
    lengths_ns[1] = strtoull(words[2], NULL, 10);
    CALL("cuInit", 0);
    CALL("cuCtxCreate_v2", &context, 0, 0);
    CALL("cuModuleLoadData", &module, ptx);
    CALL("cuModuleGetFunction", &spin, module, "spin");
    work(1);
    printf("%.1f\n", work(strtod(words[3], NULL)));
    return 0;
}
