/* Linking: what was added comes out as one image with the kernels of all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/module/fat.h"
#include "cuda/module/image.h"

#define LINK_MAGIC UINT32_C(0x6c696e6b)

/* A fat binary that grows. */
struct fat {
    unsigned char *bytes;
    size_t size;
};

struct CUlinkState_st {
    uint32_t magic;
    struct fat fat;
};
typedef struct CUlinkState_st *CUlinkState;
typedef int CUjit_option;
enum { INPUT_CUBIN = 0, INPUT_PTX = 1, INPUT_FATBINARY = 2 };

/* False: no memory; nothing has changed then. */
static bool fat_begin(struct fat *fat)
{
    const struct fat_header header = {.magic = FAT_MAGIC, .version = 1, .header_bytes = sizeof header};
    fat->bytes = malloc(sizeof header);
    if (!fat->bytes)
        return false;
    memcpy(fat->bytes, &header, sizeof header);
    fat->size = sizeof header;
    return true;
}

static bool fat_add(struct fat *fat, unsigned kind, const void *content, size_t size)
{
    const struct fat_entry entry = {.kind = (uint16_t)kind, .version = 0x101, .header_bytes = sizeof entry, .bytes = size};
    struct fat_header header;
    unsigned char *grown = realloc(fat->bytes, fat->size + sizeof entry + size);
    if (!grown)
        return false;
    memcpy(grown + fat->size, &entry, sizeof entry);
    memcpy(grown + fat->size + sizeof entry, content, size);
    fat->bytes = grown;
    fat->size += sizeof entry + size;
    memcpy(&header, fat->bytes, sizeof header);
    header.bytes = fat->size - sizeof header;
    memcpy(fat->bytes, &header, sizeof header);
    return true;
}

static bool valid(CUlinkState state)
{
    return state && state->magic == LINK_MAGIC;
}

EXPORT CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *made)
{
    (void)count, (void)options, (void)values;
    if (!made)
        return CUDA_ERROR_INVALID_VALUE;
    CUlinkState state = calloc(1, sizeof *state);
    if (!state || !fat_begin(&state->fat)) {
        free(state);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    state->magic = LINK_MAGIC;
    *made = state;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned count,
                                 CUjit_option *options, void **values)
{
    struct image image;
    (void)name, (void)count, (void)options, (void)values;
    if (!valid(state))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != INPUT_CUBIN && type != INPUT_PTX)
        return type == INPUT_FATBINARY ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (type == INPUT_CUBIN)
        return fat_add(&state->fat, FAT_ELF, data, size) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    memset(&image, 0, sizeof image);
    CUresult result = ptx_read(data, size, &image);
    image_free(&image);
    if (result != CUDA_SUCCESS)
        return result;
    return fat_add(&state->fat, FAT_PTX_PART, data, size) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned count, CUjit_option *options,
                                 void **values)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    char *data = size > 0 ? malloc((size_t)size) : NULL;
    rewind(file);
    if (data && fread(data, 1, (size_t)size, file) == (size_t)size)
        result = cuLinkAddData_v2(state, type, data, (size_t)size, path, count, options, values);
    free(data);
    fclose(file);
    return result;
}

/* The image belongs to the state. */
EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    if (!valid(state))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    *image = state->fat.bytes;
    if (size)
        *size = state->fat.size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    if (!valid(state))
        return CUDA_ERROR_INVALID_HANDLE;
    state->magic = 0;
    free(state->fat.bytes);
    free(state);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *made)
{
    return cuLinkCreate_v2(count, options, values, made);
}

EXPORT CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned count,
                              CUjit_option *options, void **values)
{
    return cuLinkAddData_v2(state, type, data, size, name, count, options, values);
}

EXPORT CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned count, CUjit_option *options, void **values)
{
    return cuLinkAddFile_v2(state, type, path, count, options, values);
}
