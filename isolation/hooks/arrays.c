/* Arrays and mipmapped arrays, whose size on the GPU only the driver knows: charged is the most that it can be, in whole pages,
 * since an array's place in a page that it shares cannot be seen. Sparse arrays, and those with memory to come, have none of their own. */
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/holdings.h"

enum { ROW_BYTES = 64, ROWS = 8 /* arrays are stored in blocks of this many bytes and rows */ };

static uint64_t up(uint64_t value, uint64_t to)
{
    return value > UINT64_MAX - to ? UINT64_MAX : (value + to - 1) / to * to;
}

/* How many texels one element is, in both directions: of block-compressed formats (CU_AD_FORMAT_BC1_UNORM to _BC7_UNORM_SRGB) it is a block. */
static uint64_t element_texels(int format) { return format >= 0x91 && format <= 0x9e ? 4 : 1; }

/* Bytes of one element in all its channels; formats that are not known here have at most sixteen bytes. */
static uint64_t element_bytes(int format, unsigned channels)
{
    switch (format) {
    case 0x01: case 0x08:                       /* integers of 8 bits */
        return channels;
    case 0x02: case 0x09: case 0x10:            /* of 16 bits, half-precision numbers */
        return 2 * (uint64_t)channels;
    case 0x03: case 0x0a: case 0x20:            /* of 32 bits, floating-point numbers */
        return 4 * (uint64_t)channels;
    case 0xc0: case 0xc6:                       /* UNORM_INT8X1, SNORM_INT8X1 */
        return 1;
    case 0xc1: case 0xc3: case 0xc7: case 0xc9: /* _INT8X2, _INT16X1 */
        return 2;
    case 0xc2: case 0xc4: case 0xc8: case 0xca: /* _INT8X4, _INT16X2 */
        return 4;
    case 0xc5: case 0xcb:                       /* _INT16X4 */
    case 0x91: case 0x92: case 0x97: case 0x98: /* BC1, BC4 */
        return 8;
    default:
        return 16;
    }
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
    bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t width = array->Width >> level, height = array->Height >> level;
    uint64_t texels = element_texels(array->Format);
    uint64_t depth = layered ? array->Depth : array->Depth >> level;
    uint64_t elements = width ? up(width, texels) / texels : 1;
    uint64_t row_bytes = up(times(elements, element_bytes(array->Format, array->NumChannels)), ROW_BYTES);
    uint64_t rows = height > 1 ? up(up(height, texels) / texels, ROWS) : 1;
    return times(times(row_bytes, rows), depth ? depth : 1);
}

/* The levels of a mipmap may lie apart: large ones in pages of their own, each of the small ones in one that others share, too. What
 * else is in such a page may go before the level does. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    uint64_t sum = 0;
    if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    /* No level is smaller than one element. */
    for (unsigned level = 0; level < levels && level < 32 && (array->Width | array->Height | array->Depth) >> level; level++) {
        if (__builtin_add_overflow(sum, whole_granules(level_bytes(array, level)), &sum))
            return UINT64_MAX;
    }
    return sum;
}

struct taking { int gpu; uint64_t bytes; };

static CUresult begin(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels, struct taking *taking)
{
    taking->bytes = array_bytes(array, levels);
    CUresult result = gpu_of_current(&taking->gpu);
    return result == CUDA_SUCCESS ? charge_take(taking->gpu, taking->bytes) : result;
}

static CUresult end(const struct taking *taking, CUresult result, const void *handle)
{
    struct holding held = {.key = (uintptr_t)handle, .kind = HOLDING_ARRAY, .gpu = taking->gpu, .bytes = taking->bytes};
    if (result != CUDA_SUCCESS) {
        charge_give(taking->gpu, taking->bytes);
        return result;
    }
    held.context = context_with_memory();
    holding_put(&held); /* without it, it stays charged */
    return result;
}

/* Each of the four ways to make an array, by a description of its own. */
#define CREATE(name, type, depth, flags)                                                                   \
    EXPORT CUresult name(CUarray *handle, const type *description)                                         \
    {                                                                                                      \
        struct taking taking;                                                                              \
        if (!handle || !description)                                                                       \
            return REAL(name)(handle, description);                                                        \
        CUDA_ARRAY3D_DESCRIPTOR array = {description->Width, description->Height, depth, description->Format, \
                                         description->NumChannels, flags};                                 \
        CUresult result = begin(&array, 1, &taking);                                                       \
        if (result != CUDA_SUCCESS)                                                                        \
            return result;                                                                                 \
        result = REAL(name)(handle, description);                                                          \
        return end(&taking, result, *handle);                                                              \
    }
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, 0, 0)
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, 0, 0)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, description->Depth, description->Flags)
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, description->Depth, description->Flags)

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels)
{
    struct taking taking;
    if (!handle || !description)
        return REAL(cuMipmappedArrayCreate)(handle, description, levels);
    CUresult result = begin(description, levels, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMipmappedArrayCreate)(handle, description, levels);
    return end(&taking, result, *handle);
}

static CUresult forget(CUresult result, bool known, const struct holding *held)
{
    if (known && result == CUDA_SUCCESS)
        charge_give(held->gpu, held->bytes);
    else if (known)
        holding_put(held);
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray handle)
{
    struct holding held;
    bool known = holding_take(HOLDING_ARRAY, (uintptr_t)handle, &held);
    return forget(REAL(cuArrayDestroy)(handle), known, &held);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
    struct holding held;
    bool known = holding_take(HOLDING_ARRAY, (uintptr_t)handle, &held);
    return forget(REAL(cuMipmappedArrayDestroy)(handle), known, &held);
}

static void end_array(const struct holding *held, void *unused)
{
    struct holding taken;
    (void)unused;
    if (holding_take(HOLDING_ARRAY, held->key, &taken))
        charge_give(taken.gpu, taken.bytes);
}

void arrays_end_context(CUcontext context)
{
    holdings_each(HOLDING_ARRAY, context, end_array, NULL);
}
