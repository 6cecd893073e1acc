/* Values in memory that streams wait for and write. */
#include <stdatomic.h>
#include <stdlib.h>

#include "cuda/memory/memory.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/streams.h"

enum { WAIT_32 = 1, WRITE_32 = 2, FLUSH = 3, WAIT_64 = 4, WRITE_64 = 5, BARRIER = 6 };
enum { OPERATIONS_MAX = 256 };

/* One operation, as cuStreamBatchMemOp takes it. */
typedef struct {
    int operation;
    CUdeviceptr address;
    uint64_t value;
    unsigned flags;
    CUdeviceptr alias;
    uint64_t rest;
} CUstreamBatchMemOpParams;
_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "operation on memory");

static bool compare(const CUstreamBatchMemOpParams *operation)
{
    bool narrow = operation->operation == WAIT_32;
    uint64_t wanted = narrow ? (uint32_t)operation->value : operation->value;
    uint64_t found = narrow ? atomic_load((_Atomic uint32_t *)(uintptr_t)operation->address)
                            : atomic_load((_Atomic uint64_t *)(uintptr_t)operation->address);
    switch (operation->flags & 3) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return found & wanted;
    case CU_STREAM_WAIT_VALUE_NOR:
        return narrow ? (uint32_t) ~(found | wanted) : ~(found | wanted);
    default: /* later in the circle of numbers */
        return narrow ? (int32_t)(found - wanted) >= 0 : (int64_t)(found - wanted) >= 0;
    }
}

/* Does it, or says that it cannot be done yet. */
static bool perform(void *argument)
{
    const CUstreamBatchMemOpParams *operation = argument;
    switch (operation->operation) {
    case WRITE_32:
        atomic_store((_Atomic uint32_t *)(uintptr_t)operation->address, (uint32_t)operation->value);
        return true;
    case WRITE_64:
        atomic_store((_Atomic uint64_t *)(uintptr_t)operation->address, operation->value);
        return true;
    default:
        return compare(operation);
    }
}

static CUresult check(const CUstreamBatchMemOpParams *operation)
{
    struct memory memory;
    bool wide = operation->operation == WAIT_64 || operation->operation == WRITE_64;
    if (operation->operation == FLUSH || operation->operation == BARRIER)
        return CUDA_SUCCESS;
    if (operation->operation < WAIT_32 || operation->operation > WRITE_64)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE_CU(operation->address && operation->address % (wide ? 8 : 4) == 0 && memory_find(operation->address, &memory));
    return CUDA_SUCCESS;
}

static CUresult give(CUstream handle, const CUstreamBatchMemOpParams *operations, unsigned count)
{
    struct work works[OPERATIONS_MAX];
    unsigned used = 0;
    CUresult result = CUDA_SUCCESS;
    STREAM(handle, stream);
    if (stream->capture)
        return capture_unsupported(stream);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = check(&operations[i]);
        if (result != CUDA_SUCCESS || operations[i].operation == FLUSH || operations[i].operation == BARRIER)
            continue;
        CUstreamBatchMemOpParams *kept = malloc(sizeof *kept);
        if (!kept) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        *kept = operations[i];
        works[used++] = (struct work){.kind = WORK_VALUE, .test = perform, .argument = kept, .argument_owned = true};
    }
    if (result == CUDA_SUCCESS)
        return used ? stream_give_all(stream, works, used) : CUDA_SUCCESS;
    while (used)
        free(works[--used].argument);
    return result;
}

static CUresult one(CUstream stream, int operation, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return give(stream, &(CUstreamBatchMemOpParams){operation, address, value, flags, 0, 0}, 1);
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags)
{
    REQUIRE_CU(!flags && count <= OPERATIONS_MAX && (operations || !count));
    return give(stream, operations, count);
}

EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations,
                                           unsigned flags)
{
    return cuStreamBatchMemOp_v2(per_thread(stream), count, operations, flags);
}

EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags)
{
    return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

EXPORT CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags)
{
    return cuStreamBatchMemOp_v2(per_thread(stream), count, operations, flags);
}

/* Each in its first version and the one that needs no permission of the system any more, on either default stream. */
#define VALUE(name, operation, type)                                                                       \
    EXPORT CUresult name##_v2(CUstream stream, CUdeviceptr address, type value, unsigned flags)            \
    {                                                                                                      \
        return one(stream, operation, address, value, flags);                                              \
    }                                                                                                      \
    EXPORT CUresult name##_v2_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags)       \
    {                                                                                                      \
        return one(per_thread(stream), operation, address, value, flags);                                  \
    }                                                                                                      \
    EXPORT CUresult name(CUstream stream, CUdeviceptr address, type value, unsigned flags)                 \
    {                                                                                                      \
        return one(stream, operation, address, value, flags);                                              \
    }                                                                                                      \
    EXPORT CUresult name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags)          \
    {                                                                                                      \
        return one(per_thread(stream), operation, address, value, flags);                                  \
    }

VALUE(cuStreamWaitValue32, WAIT_32, uint32_t)
VALUE(cuStreamWaitValue64, WAIT_64, uint64_t)
VALUE(cuStreamWriteValue32, WRITE_32, uint32_t)
VALUE(cuStreamWriteValue64, WRITE_64, uint64_t)
