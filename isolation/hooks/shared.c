/* Memory that is exported, and memory that others exported. The driver keeps it until no process has it any more, so it is charged to the
 * container once, as long as one of its processes does: from its first export on in a slot of its own (memory/shared.h), which importers find by the tag of the
 * descriptor or by the bytes of the handle. Importers that find none are charged themselves: the maker is another container, or dead. */
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/holdings.h"
#include "memory/shared.h"
#include "memory/tags.h"
#include "process/fork_mutex.h"

enum { OF_UNKNOWN_SIZE = 1 /* holding.size of what was imported without a tag */ };

static void nothing(void) {}
MUTEX_FRESH_IN_CHILD(mutex, nothing)

/* --- what goes out -------------------------------------------------------------------------------------------------- */

/* With the mutex. In which slot the holding is charged from here on, and one more; 0: in none. */
static unsigned share(enum holding_kind kind, uint64_t of, uint64_t key)
{
    struct holding held;
    if (!holding_look(kind, of, &held) || !held.bytes)
        return 0;
    if (held.shared)
        return held.shared;
    int slot = shared_begin(held.gpu, held.bytes, key);
    if (slot < 0)
        return 0;
    if (!holding_charged(kind, of, held.gpu, held.bytes, (unsigned)slot + 1)) {
        shared_leave(slot); /* freed meanwhile */
        return 0;
    }
    charge_give(held.gpu, held.bytes);
    return (unsigned)slot + 1;
}

/* What is known and not charged in a slot stays without a tag: who imports it is charged. Of what is not known (multicast objects, host memory) nothing is. */
static void tag_exported(CUmemGenericAllocationHandle handle, int file)
{
    struct holding held;
    struct tag tag = {.key = tag_new_key()};
    pthread_mutex_lock(&mutex);
    unsigned shared = share(HOLDING_PHYSICAL, handle, tag.key);
    pthread_mutex_unlock(&mutex);
    bool known = holding_look(HOLDING_PHYSICAL, handle, &held);
    if (shared)
        tag = (struct tag){shared_key((int)shared - 1), known ? held.bytes : 0};
    if (shared || !known)
        tag_put(file, tag);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags);
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        tag_exported(handle, *(int *)shareable);
    } else if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_FABRIC) {
        pthread_mutex_lock(&mutex);
        share(HOLDING_PHYSICAL, handle, tag_key_of(shareable, CU_MEM_FABRIC_HANDLE_BYTES));
        pthread_mutex_unlock(&mutex);
    }
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUdeviceptr base = address;
    struct holding held;
    CUresult result = REAL(cuIpcGetMemHandle)(handle, address);
    if (result != CUDA_SUCCESS)
        return result;
    REAL(cuMemGetAddressRange_v2)(&base, NULL, address);
    uint64_t key = tag_key_of(handle, sizeof *handle);
    pthread_mutex_lock(&mutex);
    if (holding_look(HOLDING_LINEAR, base, &held)) {
        if (held.bytes)
            share(HOLDING_LINEAR, base, key);
        else
            share(HOLDING_SLAB, held.other, key);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* --- what comes in -------------------------------------------------------------------------------------------------- */

static bool gpu_of_handle(CUmemGenericAllocationHandle handle, int *gpu)
{
    CUmemAllocationProp properties;
    return REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) == CUDA_SUCCESS &&
           gpu_of_location(&properties.location, gpu) == CUDA_SUCCESS && *gpu != LOCATION_HOST;
}

static bool gpu_of_address(CUdeviceptr address, int *gpu)
{
    int device;
    return REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS &&
           gpu_of_device(device, gpu) == CUDA_SUCCESS;
}

/* Fills in where it is charged: where the container's other processes have it charged, or to this one, for all of them. */
static CUresult charge_imported(struct holding *held, uint64_t key, bool known_gpu)
{
    int slot = shared_hold(key);
    if (slot < 0 && known_gpu) {
        CUresult result = charge_taken(held->gpu, held->bytes);
        if (result != CUDA_SUCCESS)
            return result;
        if ((slot = shared_begin(held->gpu, held->bytes, key)) >= 0)
            charge_give(held->gpu, held->bytes);
    } else if (slot < 0) {
        held->bytes = 0;
    }
    held->shared = (unsigned)(slot + 1);
    return CUDA_SUCCESS;
}

/* Of a handle that is new to this process. */
static CUresult imported(CUmemGenericAllocationHandle handle, int type, const struct tag *tag)
{
    struct holding held = {.key = handle, .kind = HOLDING_PHYSICAL, .gpu = GPU_NOT_ALLOCATED, .users = 1};
    bool by_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!tag->key && by_file)
        held.size = OF_UNKNOWN_SIZE;
    else if (!tag->key || (by_file && !tag->bytes))
        return CUDA_SUCCESS;
    else {
        held.bytes = tag->bytes;
        /* What comes by a fabric may be another machine's: only what is charged here already is held. */
        CUresult result = charge_imported(&held, tag->key, by_file && gpu_of_handle(handle, &held.gpu));
        if (result != CUDA_SUCCESS) {
            REAL(cuMemRelease)(handle);
            return result;
        }
    }
    holding_put(&held); /* without it, it stays charged */
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type);
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    struct tag tag = {0};
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        tag_read((int)(intptr_t)shareable, &tag);
    else if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable)
        tag.key = tag_key_of(shareable, CU_MEM_FABRIC_HANDLE_BYTES);
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    /* The driver may know it by the same handle already. */
    if (result != CUDA_SUCCESS || holding_users(HOLDING_PHYSICAL, *handle, 1, NULL) > 0)
        return result;
    return imported(*handle, type, &tag);
}

/* Whether a mapping shows that there is more of it than is charged. What is charged in a slot stays as it is there. */
static bool is_larger(CUmemGenericAllocationHandle handle, uint64_t mapped_bytes, struct holding *held)
{
    return holding_look(HOLDING_PHYSICAL, handle, held) && held->size == OF_UNKNOWN_SIZE && !held->shared && mapped_bytes > held->bytes;
}

CUresult physical_pay(CUmemGenericAllocationHandle handle, size_t bytes)
{
    struct holding held;
    CUresult result = CUDA_SUCCESS;
    uint64_t mapped_bytes = whole_granules(bytes);
    if (!is_larger(handle, mapped_bytes, &held))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (is_larger(handle, mapped_bytes, &held) && gpu_of_handle(handle, &held.gpu)) {
        uint64_t more_bytes = mapped_bytes - held.bytes;
        result = charge_taken(held.gpu, more_bytes);
        if (result == CUDA_SUCCESS && !holding_charged(HOLDING_PHYSICAL, handle, held.gpu, mapped_bytes, 0))
            charge_give(held.gpu, more_bytes);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* --- addresses of others' memory -------------------------------------------------------------------------------------- */

CUresult cuIpcCloseMemHandle(CUdeviceptr address);

/* Opening one once more gives the same address. */
static CUresult opened(CUdeviceptr address, const CUipcMemHandle *handle)
{
    struct holding held = {.key = address, .kind = HOLDING_OPENED, .gpu = GPU_NOT_ALLOCATED, .users = 1};
    size_t bytes = 0;
    if (holding_users(HOLDING_OPENED, address, 1, NULL) > 0)
        return CUDA_SUCCESS;
    held.context = context_with_memory();
    bool known = REAL(cuMemGetAddressRange_v2)(NULL, &bytes, address) == CUDA_SUCCESS && gpu_of_address(address, &held.gpu);
    held.bytes = whole_granules(bytes);
    CUresult result = charge_imported(&held, tag_key_of(handle, sizeof *handle), known);
    if (result == CUDA_SUCCESS)
        holding_put(&held);
    else
        REAL(cuIpcCloseMemHandle)(address);
    return result;
}

#define OPEN(name)                                                                                         \
    CUresult name(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags);                            \
    EXPORT CUresult name(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)                      \
    {                                                                                                      \
        CUresult result = REAL(name)(address, handle, flags);                                              \
        return result == CUDA_SUCCESS ? opened(*address, &handle) : result;                                \
    }
OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

/* Taken out before the driver closes it, as another thread may get the same address then. */
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct holding left;
    int users = holding_users(HOLDING_OPENED, address, -1, &left);
    CUresult result = REAL(cuIpcCloseMemHandle)(address);
    if (users == 0 && result == CUDA_SUCCESS)
        holding_pay_back(&left);
    if (users >= 0 && result != CUDA_SUCCESS && holding_users(HOLDING_OPENED, address, 1, NULL) < 0) {
        left.users = 1;
        holding_put(&left);
    }
    return result;
}

static void end_opened(const struct holding *held, void *unused)
{
    struct holding taken;
    (void)unused;
    if (holding_take(HOLDING_OPENED, held->key, &taken))
        holding_pay_back(&taken);
}

void opened_end_context(CUcontext context)
{
    holdings_each(HOLDING_OPENED, context, end_opened, NULL);
}

/* A piece of another process's pool. What pools have reserved changes, so it has no slot that both could find: a process that imports the
 * piece is charged for it in addition to the maker, until it is freed. */
CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, void *exported);
EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, void *exported)
{
    struct holding held = {.kind = HOLDING_LINEAR};
    size_t bytes = 0;
    CUresult result = REAL(cuMemPoolImportPointer)(address, pool, exported);
    if (result != CUDA_SUCCESS || REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *address) != CUDA_SUCCESS ||
        !gpu_of_address(*address, &held.gpu))
        return result;
    held.key = *address;
    held.size = bytes;
    held.bytes = whole_granules(bytes);
    result = charge_taken(held.gpu, held.bytes);
    if (result == CUDA_SUCCESS)
        holding_put(&held);
    else
        REAL(cuMemFree_v2)(*address);
    return result;
}
