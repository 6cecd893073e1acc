#define _GNU_SOURCE
#include "cuda/module/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/module/fat.h"

#define WRAPPER_MAGIC UINT32_C(0x466243b1)

/* What a compiler's host code hands to the driver. */
struct wrapper {
    uint32_t magic, version;
    const void *data;
};
static char *copy_of(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

struct kernel_image *image_add_kernel(struct image *image, const char *name, size_t length)
{
    struct kernel_image **at = &image->kernels, *kernel = calloc(1, sizeof *kernel);
    if (!kernel || !(kernel->name = copy_of(name, length))) {
        free(kernel);
        return NULL;
    }
    kernel->duration_parameter = -1;
    kernel->duration_ns = KERNEL_DEFAULT_NS;
    kernel->threads_max = 1024;
    while (*at)
        at = &(*at)->next;
    return *at = kernel;
}

struct global_image *image_add_global(struct image *image, const char *name, size_t length, size_t bytes)
{
    struct global_image **at = &image->globals, *global = calloc(1, sizeof *global);
    if (!global || !(global->name = copy_of(name, length))) {
        free(global);
        return NULL;
    }
    global->bytes = bytes;
    while (*at)
        at = &(*at)->next;
    return *at = global;
}

void image_free(struct image *image)
{
    for (struct kernel_image *kernel = image->kernels, *next; kernel; kernel = next) {
        next = kernel->next;
        free(kernel->name);
        free(kernel);
    }
    for (struct global_image *global = image->globals, *next; global; global = next) {
        next = global->next;
        free(global->name);
        free(global);
    }
    *image = (struct image){NULL, NULL, false};
}

static bool has_kernel(const struct image *image, const char *name)
{
    for (const struct kernel_image *kernel = image->kernels; kernel; kernel = kernel->next) {
        if (!strcmp(kernel->name, name))
            return true;
    }
    return false;
}

/* A cubin has a section .text.NAME for each kernel. Its size is known from the outside only in a fat binary. */
static CUresult read_elf(const unsigned char *data, size_t size, struct image *image)
{
    Elf64_Ehdr header;
    if (size < sizeof header)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&header, data, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_shstrndx >= header.e_shnum || header.e_shoff > size ||
        header.e_shnum * sizeof(Elf64_Shdr) > size - header.e_shoff)
        return CUDA_ERROR_INVALID_IMAGE;
    Elf64_Shdr names, section;
    memcpy(&names, data + header.e_shoff + header.e_shstrndx * sizeof names, sizeof names);
    if (names.sh_offset > size || names.sh_size > size - names.sh_offset)
        return CUDA_ERROR_INVALID_IMAGE;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        static const char head[] = ".text.";
        memcpy(&section, data + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_name >= names.sh_size)
            continue;
        const char *name = (const char *)data + names.sh_offset + section.sh_name;
        size_t room = names.sh_size - section.sh_name, length = strnlen(name, room);
        if (length == room || strncmp(name, head, sizeof head - 1))
            continue;
        if (!has_kernel(image, name + sizeof head - 1) &&
            !image_add_kernel(image, name + sizeof head - 1, length - (sizeof head - 1)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult read_fat(const unsigned char *data, struct image *image)
{
    struct fat_header header;
    memcpy(&header, data, sizeof header);
    if (header.header_bytes < sizeof header || header.bytes > FAT_MAX_BYTES)
        return CUDA_ERROR_INVALID_IMAGE;
    const unsigned char *at = data + header.header_bytes, *end = at + header.bytes;
    struct fat_entry entry;
    while (end - at >= (ptrdiff_t)sizeof entry) {
        memcpy(&entry, at, sizeof entry);
        size_t left = (size_t)(end - at);
        if (entry.header_bytes < sizeof entry || entry.header_bytes > left || entry.bytes > left - entry.header_bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        const unsigned char *content = at + entry.header_bytes;
        CUresult result = CUDA_SUCCESS;
        if (entry.flags & FAT_COMPRESSED)
            image->any_name = true;
        else if ((entry.kind == FAT_PTX && !image->kernels) || entry.kind == FAT_PTX_PART)
            result = ptx_read((const char *)content, entry.bytes, image);
        else if (entry.kind == FAT_ELF)
            result = read_elf(content, entry.bytes, image);
        if (result != CUDA_SUCCESS)
            return result;
        at = content + entry.bytes;
    }
    return CUDA_SUCCESS;
}

CUresult image_read(const void *data, struct image *image)
{
    uint32_t magic;
    const unsigned char *bytes = data;
    CUresult result;
    *image = (struct image){NULL, NULL, false};
    /* Byte by byte: a text may be shorter than a magic number. */
    if (bytes[0] == 0x7f && bytes[1] == 'E' && bytes[2] == 'L' && bytes[3] == 'F') {
        Elf64_Ehdr header;
        memcpy(&header, data, sizeof header);
        /* Sections' headers lie behind all else. */
        result = read_elf(data, header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr), image);
    } else if (bytes[0] == 0x50 || bytes[0] == 0xb1) {
        memcpy(&magic, data, sizeof magic);
        if (magic == WRAPPER_MAGIC) {
            struct wrapper wrapper;
            memcpy(&wrapper, data, sizeof wrapper);
            bytes = wrapper.data;
            memcpy(&magic, bytes, sizeof magic);
        }
        result = magic == FAT_MAGIC ? read_fat(bytes, image) : CUDA_ERROR_INVALID_IMAGE;
    } else {
        result = ptx_read(data, strlen(data), image);
    }
    if (result != CUDA_SUCCESS)
        image_free(image);
    return result;
}
