/* What a program image says of its kernels: PTX text, cubins (ELF), and fat binaries that hold them uncompressed.
 *
 * Nothing is compiled or run. A kernel takes time only: what a comment before its `.entry` says,
 *
 *     // fakegpu: duration 20000 ns          as long as that
 *     // fakegpu: duration param 0 ns        as long as its 64-bit parameter 0 says
 *
 * and 10 us without one. Kernels of cubins have names and that default. Of images that cannot be read (compressed ones),
 * any name is a kernel. */
#ifndef FAKEGPU_CUDA_MODULE_IMAGE_H
#define FAKEGPU_CUDA_MODULE_IMAGE_H

#include "interface/cuda.h"

enum { KERNEL_PARAMETERS_MAX = 64 };
#define KERNEL_DEFAULT_NS UINT64_C(10000)

struct kernel_image {
    struct kernel_image *next;
    char *name;
    int duration_parameter; /* -1: duration_ns holds */
    uint64_t duration_ns;
    bool parameters_known;
    unsigned parameter_count;
    struct { uint32_t offset, size; } parameters[KERNEL_PARAMETERS_MAX];
    unsigned shared_bytes, threads_max;
};

struct global_image {
    struct global_image *next;
    char *name;
    size_t bytes;
    bool constant;
};

struct image {
    struct kernel_image *kernels; /* in their order */
    struct global_image *globals;
    bool any_name;
};

/* CUDA_ERROR_INVALID_IMAGE or _INVALID_PTX for what is none, with nothing to free. */
CUresult image_read(const void *data, struct image *image);
void image_free(struct image *image);

struct kernel_image *image_add_kernel(struct image *image, const char *name, size_t length);
struct global_image *image_add_global(struct image *image, const char *name, size_t length, size_t bytes);

/* Adds the entries and globals of PTX text (cuda/module/ptx.c). */
CUresult ptx_read(const char *text, size_t size, struct image *image);

#endif
