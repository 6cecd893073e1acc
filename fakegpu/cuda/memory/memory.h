/* Every range of addresses that the driver knows: device memory of all kinds, and host memory that it allocated or that was
 * registered with it. A device address is the address of ordinary memory of the process (pages appear when touched), so copies are
 * copies of memory. */
#ifndef FAKEGPU_CUDA_MEMORY_MEMORY_H
#define FAKEGPU_CUDA_MEMORY_MEMORY_H

#include "cuda/context/context.h"

enum memory_kind {
    MEMORY_DEVICE,     /* cuMemAlloc and pitched */
    MEMORY_MANAGED,
    MEMORY_POOL,       /* stream-ordered */
    MEMORY_MAPPED,     /* VMM: cuMemMap */
    MEMORY_RESERVED,   /* VMM: cuMemAddressReserve, nothing behind it */
    MEMORY_IPC,        /* another process's, opened here */
    MEMORY_HOST,       /* cuMemHostAlloc, cuMemAllocHost */
    MEMORY_REGISTERED, /* cuMemHostRegister */
};

struct memory {
    uintptr_t start;
    size_t size; /* as asked for */
    enum memory_kind kind;
    struct device *device; /* NULL for host memory */
    CUcontext context;     /* NULL where none owns it: pools, VMM */
    unsigned flags;
    uint64_t id; /* unique in the process */
};

/* Copies what is known of the range that holds `address`; false: nothing, so it is the program's own host memory. */
bool memory_find(CUdeviceptr address, struct memory *found);

/* The same for a whole range: CUDA_ERROR_INVALID_VALUE when it begins in a known range and runs past its end. `known` is
 * false for host memory that the driver does not know. */
CUresult memory_check(CUdeviceptr address, size_t size, struct memory *found, bool *known);

/* An array's bytes, for copies; NULL for a stale handle. Extent in bytes and rows (1 where it has no such dimension). */
struct array_view {
    unsigned char *bytes;
    size_t row_bytes, rows, slices;
    size_t element_bytes;
    struct device *device;
};
bool array_view(CUarray array, struct array_view *view);

/* Memory for graphs' allocation nodes, from a pool of its own as in the real driver; at once. */
CUresult pool_take(struct device *device, size_t bytes, CUdeviceptr *address);
CUresult pool_back(CUdeviceptr address);
CUresult pool_give_back(CUdeviceptr address);

/* Around everything that writes or reads memory on a program's behalf: what is behind addresses may move otherwise, when a
 * handle for other processes is made. Short, and nothing is waited for meanwhile. */
void memory_use_begin(void);
void memory_use_end(void);

/* Sets rows of elements; what the fields of a graph's memset node say too. */
struct memset_rows {
    CUdeviceptr address;
    size_t pitch; /* bytes from row to row; of no meaning for one row */
    unsigned value, element_bytes; /* 1, 2 or 4 */
    size_t width, height; /* elements, rows */
};

/* Whether it stays within memory that the driver knows. */
CUresult memset_check(const struct memset_rows *rows);

/* Does it, now. Must have been checked; memory that was freed since is left alone. */
void memset_apply(const struct memset_rows *rows);

CUresult cuMemFree_v2(CUdeviceptr address);

/* Frees everything that a context owns; called when it ends. */
void memory_end_context(CUcontext context);

/* Pools release unused memory; called when a device's last context has ended. */
void pools_trim(struct device *device);

#endif
