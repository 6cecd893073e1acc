/* Modules, libraries, and the functions in them. */
#ifndef FAKEGPU_CUDA_MODULE_MODULES_H
#define FAKEGPU_CUDA_MODULE_MODULES_H

#include "cuda/module/image.h"
#include "cuda/stream/streams.h"

#define FUNCTION_MAGIC UINT32_C(0x66756e63)
enum { FUNCTION_ATTRIBUTES = 17 };

/* A function of a module, or a kernel of a library: one thing, since a kernel may be launched as a function. */
struct CUfunc_st {
    _Atomic uint32_t magic;
    CUmodule module;
    struct kernel_image *image;
    int attributes[FUNCTION_ATTRIBUTES]; /* by CUfunction_attribute; those that can be set */
    CUfunction next;
};

struct module_global {
    struct module_global *next;
    struct global_image *image;
    CUcontext context;
    CUdeviceptr address;
};

/* Modules are never freed, nor their functions: a stale handle is always recognized. Libraries are modules of no context. */
struct CUmod_st {
    _Atomic uint32_t magic;
    bool is_library;
    CUcontext context; /* NULL: of a library */
    struct image image;
    CUfunction functions;
    _Atomic uint64_t code_in; /* the context whose memory its code takes, by its number; 0: none's */
    struct module_global *globals;
    CUmodule next;
};

bool function_valid(CUfunction function);

/* What a function needs of a multiprocessor, for occupancy and launches. */
unsigned function_threads_max(CUfunction function);
unsigned blocks_per_multiprocessor(CUfunction function, unsigned threads, size_t dynamic_bytes);

/* One launch; parameters are as cuLaunchKernel takes them. */
struct launch {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    bool cooperative;
};

/* Whether it can be launched, and how long it takes. */
CUresult launch_check(CUcontext context, const struct launch *launch, uint64_t *duration_ns);

enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
};

/* Of cuda/device/queries.c and cuda/memory/memory.c. */
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);

#endif
