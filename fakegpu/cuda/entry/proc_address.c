/* cuGetProcAddress: from a plain name and a version of CUDA to the variant that it means. */
#include <string.h>

#include "cuda/entry/names.h"

typedef uint64_t cuuint64_t;
enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

/* The newest variant that programs of the version know. */
static void (*find(const char *name, int version, bool per_thread, int *status))(void)
{
    void (*found)(void) = NULL;
    bool found_per_thread = false;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (const struct named_function *function = named_functions; function->name; function++) {
        if (strcmp(function->name, name) || (function->per_thread && !per_thread))
            continue;
        if (function->version > version) {
            if (!found)
                *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        } else if (!found_per_thread || function->per_thread) {
            found = function->symbol;
            found_per_thread = function->per_thread;
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
        }
    }
    return found;
}

enum { KNOWN_FLAGS = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

/* Answers before cuInit too. A name that is not found is no error, as with NVIDIA's 535 and 580: NULL, and `status` says why. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags, int *status)
{
    int symbol_status;
    REQUIRE_CU(name && address && flags <= KNOWN_FLAGS);
    void (*found)(void) = find(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &symbol_status);
    memcpy(address, &found, sizeof found);
    if (status)
        *status = symbol_status;
    return CUDA_SUCCESS;
}

/* The older one has no status: it is an error, and leaves what is there. */
EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
    void *found;
    REQUIRE_CU(address);
    CUresult result = cuGetProcAddress_v2(name, &found, version, flags, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    *address = found;
    return CUDA_SUCCESS;
}

/* The same for programs built to have a default stream for each thread, whatever their flags say. */
EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *name, void **address, int version, cuuint64_t flags, int *status)
{
    if (!flags)
        flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return cuGetProcAddress_v2(name, address, version, flags, status);
}

/* The driver's private tables, on which NVIDIA's runtime is built, are not part of the interface. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    REQUIRE_CU(table && id);
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
