/* Physical memory without addresses (cuMemCreate) and its mappings. It is the driver's until its last handle is released and its last
 * mapping is gone, so both are counted. What another process exported (imported here) is charged to that process. */
#include <string.h>

#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/holdings.h"
#include "memory/shared.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    int gpu;
    uint64_t whole_bytes = whole_granules(bytes);
    if (!handle || !bytes || !properties)
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    CUresult result = gpu_of_location(&properties->location, &gpu);
    if (result == CUDA_SUCCESS && gpu == LOCATION_HOST)
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result == CUDA_SUCCESS)
        result = charge_take(gpu, whole_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) {
        charge_give(gpu, whole_bytes);
        return result;
    }
    struct holding held = {.key = *handle, .kind = HOLDING_PHYSICAL, .gpu = gpu, .bytes = whole_bytes, .users = 1};
    holding_put(&held); /* without it, it stays charged */
    return CUDA_SUCCESS;
}

/* Once the driver has released it, another thread may get the same handle: so it is taken out before, and put back where the driver
 * refuses. */
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct holding left;
    int users = holding_users(HOLDING_PHYSICAL, handle, -1, &left);
    CUresult result = REAL(cuMemRelease)(handle);
    if (users == 0 && result == CUDA_SUCCESS)
        holding_pay_back(&left);
    if (users >= 0 && result != CUDA_SUCCESS && holding_users(HOLDING_PHYSICAL, handle, 1, NULL) < 0) {
        left.users = 1;
        holding_put(&left);
    }
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        holding_users(HOLDING_PHYSICAL, *handle, 1, NULL);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    CUresult paid = physical_pay(handle, bytes);
    if (paid != CUDA_SUCCESS)
        return paid;
    /* Before, so that a release meanwhile does not count as the last. */
    int users = holding_users(HOLDING_PHYSICAL, handle, 1, NULL);
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct holding mapping = {.key = address, .kind = HOLDING_MAPPING, .other = handle, .size = bytes};
    struct holding left;
    if (users > 0 && result == CUDA_SUCCESS)
        holding_put(&mapping);
    else if (users > 0 && !holding_users(HOLDING_PHYSICAL, handle, -1, &left))
        holding_pay_back(&left);
    return result;
}

enum { MAPPINGS_AT_ONCE = 64 };

/* Whole mappings only can be unmapped, side by side as many as are in the range; they are taken out some at a time, from the first
 * on. Mappings of imported memory lie between them unknown. */
static size_t take_mappings(CUdeviceptr *from, CUdeviceptr to, struct holding taken[MAPPINGS_AT_ONCE])
{
    size_t count = 0;
    while (*from < to && count < MAPPINGS_AT_ONCE) {
        if (holding_take(HOLDING_MAPPING, *from, &taken[count]))
            *from += taken[count++].size;
        else
            *from += GRANULE_BYTES;
    }
    return count;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct holding taken[MAPPINGS_AT_ONCE], left;
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    for (CUdeviceptr at = address; result == CUDA_SUCCESS && at < address + bytes;) {
        size_t count = take_mappings(&at, address + bytes, taken);
        for (size_t i = 0; i < count; i++) {
            if (!holding_users(HOLDING_PHYSICAL, taken[i].other, -1, &left))
                holding_pay_back(&left);
        }
    }
    return result;
}

/* --- tiles of sparse arrays --------------------------------------------------------------------------------------- */

/* CUarrayMapInfo: 96 bytes, of which only these matter. */
struct map_info {
    unsigned char before[56];
    int operation, handle_type;
    CUmemGenericAllocationHandle handle;
    unsigned char after[24];
};
enum { OPERATION_MAP = 1 };
_Static_assert(sizeof(struct map_info) == 96, "one mapping of a tile");

/* Which tile an unmapping is about does not say whose memory it was; so memory that was mapped into a sparse array stays charged as long as
 * the process lives. */
static void keep(const struct map_info *infos, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (infos[i].operation == OPERATION_MAP)
            holding_users(HOLDING_PHYSICAL, infos[i].handle, 1, NULL);
    }
}

EXPORT CUresult cuMemMapArrayAsync(struct map_info *infos, unsigned count, CUstream stream)
{
    CUresult result = REAL(cuMemMapArrayAsync)(infos, count, stream);
    if (result == CUDA_SUCCESS)
        keep(infos, count);
    return result;
}

CUresult cuMemMapArrayAsync_ptsz(struct map_info *infos, unsigned count, CUstream stream);
EXPORT CUresult cuMemMapArrayAsync_ptsz(struct map_info *infos, unsigned count, CUstream stream)
{
    CUresult result = REAL(cuMemMapArrayAsync_ptsz)(infos, count, stream);
    if (result == CUDA_SUCCESS)
        keep(infos, count);
    return result;
}
