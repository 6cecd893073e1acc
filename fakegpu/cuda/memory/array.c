/* Arrays and mipmaps: device memory with a shape. */
#include <stdlib.h>

#include "cuda/memory/records.h"
#include "cuda/stream/context_work.h"
#include "interface/cuda_memory.h"

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUcontext context;
    struct piece piece;
    CUmipmappedArray mipmap; /* whose level it is; NULL: an array of its own */
    CUarray next;
};

struct CUmipmappedArray_st {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUcontext context;
    unsigned level_count;
    CUarray *levels;
    CUmipmappedArray next;
};

/* Guarded by memory_lock. */
static CUarray arrays;
static CUmipmappedArray mipmaps;

static size_t at_least_one(size_t size)
{
    return size ? size : 1;
}

/* Formats BC1_UNORM to BC7_UNORM_SRGB: in blocks of four by four texels. */
static bool is_compressed(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return shape->Format >= 0x91 && shape->Format <= 0x9e;
}

/* Bytes of an element, which is a texel, or a block of texels; 0 for formats of several planes, which are not supported. */
static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    switch (shape->Format) {
    case 0x01: /* UNSIGNED_INT8 */
    case 0x08: /* SIGNED_INT8 */
        return shape->NumChannels;
    case 0x02: /* UNSIGNED_INT16 */
    case 0x09: /* SIGNED_INT16 */
    case 0x10: /* HALF */
        return 2 * shape->NumChannels;
    case 0x03: /* UNSIGNED_INT32 */
    case 0x0a: /* SIGNED_INT32 */
    case 0x20: /* FLOAT */
        return 4 * shape->NumChannels;
    case 0xc0: case 0xc1: case 0xc2: /* UNORM_INT8X1, X2, X4 */
        return (size_t)1 << (shape->Format - 0xc0);
    case 0xc3: case 0xc4: case 0xc5: /* UNORM_INT16X1, X2, X4 */
        return (size_t)2 << (shape->Format - 0xc3);
    case 0xc6: case 0xc7: case 0xc8: /* SNORM_INT8X1, X2, X4 */
        return (size_t)1 << (shape->Format - 0xc6);
    case 0xc9: case 0xca: case 0xcb: /* SNORM_INT16X1, X2, X4 */
        return (size_t)2 << (shape->Format - 0xc9);
    case 0x91: case 0x92: /* BC1_UNORM, BC1_UNORM_SRGB */
    case 0x97: case 0x98: /* BC4_UNORM, BC4_SNORM */
        return 8;
    default:
        return is_compressed(shape) ? 16 : 0;
    }
}

/* Elements next to each other, or one below another, for so many texels. */
static size_t elements(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t texels)
{
    return is_compressed(shape) ? (texels + 3) / 4 : texels;
}

static size_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return elements(shape, shape->Width) * at_least_one(elements(shape, shape->Height)) * at_least_one(shape->Depth) *
           element_bytes(shape);
}

static CUresult check_shape(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t *bytes)
{
    const size_t most = 1 << 20;
    REQUIRE_CU(shape && shape->Width && shape->Width <= most && shape->Height <= most && shape->Depth <= most >> 6);
    REQUIRE_CU(shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4);
    if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) || !element_bytes(shape))
        return CUDA_ERROR_NOT_SUPPORTED;
    *bytes = shape_bytes(shape);
    return CUDA_SUCCESS;
}

/* --- arrays ------------------------------------------------------------------------------------------------------ */

/* Under lock. */
static CUresult make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t bytes, CUarray *made)
{
    CUarray array = calloc(1, sizeof *array);
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_take(context, bytes, &array->piece);
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    array->shape = *shape;
    array->context = context;
    array->next = arrays;
    *made = arrays = array;
    return CUDA_SUCCESS;
}

/* Under lock. */
static bool known(CUarray array)
{
    CUarray each = arrays;
    while (each && each != array)
        each = each->next;
    return each;
}

static void end(CUarray array)
{
    CUarray *link = &arrays;
    while (*link != array)
        link = &(*link)->next;
    *link = array->next;
    memory_give_back(array->context, &array->piece);
    free(array);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    size_t bytes;
    ENTER(context);
    REQUIRE_CU(array);
    CUresult result = check_shape(shape, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    result = make(context, shape, bytes, array);
    memory_unlock();
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    READY();
    REQUIRE_CU(flat);
    const CUDA_ARRAY3D_DESCRIPTOR shape = {flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return cuArray3DCreate_v2(array, &shape);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    ENTER(context);
    CUresult result = engine_synchronize(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    bool good = known(array) && !array->mipmap;
    if (good)
        end(array);
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(shape);
    memory_lock();
    bool good = known(array);
    if (good)
        *shape = array->shape;
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUresult result = cuArray3DGetDescriptor_v2(&shape, array);
    if (result == CUDA_SUCCESS && !flat)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flat = (CUDA_ARRAY_DESCRIPTOR){shape.Width, shape.Height, shape.Format, shape.NumChannels};
    return result;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device)
{
    size_t bytes = 0;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    (void)device;
    REQUIRE_CU(needs);
    CUresult result = cuArray3DGetDescriptor_v2(&shape, array);
    if (result == CUDA_SUCCESS)
        result = check_shape(&shape, &bytes);
    if (result == CUDA_SUCCESS)
        *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = PIECE_ALIGNMENT};
    return result;
}

bool array_view(CUarray array, struct array_view *view)
{
    memory_lock();
    bool good = known(array);
    if (good) {
        const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
        *view = (struct array_view){.bytes = array->piece.bytes, .row_bytes = elements(shape, shape->Width) * element_bytes(shape),
                                    .rows = at_least_one(elements(shape, shape->Height)), .slices = at_least_one(shape->Depth),
                                    .element_bytes = element_bytes(shape), .device = array->context->device};
    }
    memory_unlock();
    return good;
}

/* --- mipmaps ----------------------------------------------------------------------------------------------------- */

static CUDA_ARRAY3D_DESCRIPTOR level_shape(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR result = *shape;
    result.Width = at_least_one(shape->Width >> level);
    result.Height = shape->Height ? at_least_one(shape->Height >> level) : 0;
    if (shape->Depth && !(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        result.Depth = at_least_one(shape->Depth >> level);
    return result;
}

/* Under lock. */
static void end_mipmap(CUmipmappedArray mipmap)
{
    CUmipmappedArray *link = &mipmaps;
    while (*link && *link != mipmap)
        link = &(*link)->next;
    if (*link)
        *link = mipmap->next;
    for (unsigned i = 0; i < mipmap->level_count; i++)
        end(mipmap->levels[i]);
    free(mipmap->levels);
    free(mipmap);
}

/* Under lock. */
static CUresult make_mipmap(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, CUmipmappedArray *made)
{
    CUresult result = CUDA_SUCCESS;
    CUmipmappedArray mipmap = calloc(1, sizeof *mipmap);
    if (!mipmap || !(mipmap->levels = calloc(levels, sizeof *mipmap->levels))) {
        free(mipmap);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mipmap->shape = *shape;
    mipmap->context = context;
    while (mipmap->level_count < levels && result == CUDA_SUCCESS) {
        CUDA_ARRAY3D_DESCRIPTOR level = level_shape(shape, mipmap->level_count);
        CUarray *array = &mipmap->levels[mipmap->level_count];
        result = make(context, &level, shape_bytes(&level), array);
        if (result == CUDA_SUCCESS) {
            (*array)->mipmap = mipmap;
            mipmap->level_count++;
        }
    }
    if (result != CUDA_SUCCESS) {
        end_mipmap(mipmap);
        return result;
    }
    mipmap->next = mipmaps;
    *made = mipmaps = mipmap;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    size_t bytes;
    unsigned most = 1;
    ENTER(context);
    REQUIRE_CU(mipmap && levels);
    CUresult result = check_shape(shape, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    while (shape->Width >> most || shape->Height >> most || shape->Depth >> most)
        most++;
    memory_lock();
    result = make_mipmap(context, shape, levels < most ? levels : most, mipmap);
    memory_unlock();
    return result;
}

/* Under lock. */
static bool mipmap_known(CUmipmappedArray mipmap)
{
    CUmipmappedArray each = mipmaps;
    while (each && each != mipmap)
        each = each->next;
    return each;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned level)
{
    CUresult result = CUDA_SUCCESS;
    ENTER(context);
    (void)context;
    REQUIRE_CU(array);
    memory_lock();
    if (!mipmap_known(mipmap))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (level >= mipmap->level_count)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        *array = mipmap->levels[level];
    memory_unlock();
    return result;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
    ENTER(context);
    CUresult result = engine_synchronize(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    bool good = mipmap_known(mipmap);
    if (good)
        end_mipmap(mipmap);
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray mipmap,
                                                      CUdevice device)
{
    ENTER(context);
    (void)context, (void)device;
    REQUIRE_CU(needs);
    memory_lock();
    bool good = mipmap_known(mipmap);
    if (good) {
        *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.alignment = PIECE_ALIGNMENT};
        for (unsigned i = 0; i < mipmap->level_count; i++)
            needs->size += mipmap->levels[i]->piece.size;
    }
    memory_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void arrays_end_context(CUcontext context)
{
    for (CUmipmappedArray each = mipmaps, next; each; each = next) {
        next = each->next;
        if (each->context == context)
            end_mipmap(each);
    }
    for (CUarray each = arrays, next; each; each = next) {
        next = each->next;
        if (each->context == context)
            end(each);
    }
}
