/* Modules and libraries: reading images, finding functions and globals in them. */
#define _GNU_SOURCE
#include "cuda/module/modules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC UINT32_C(0x6d6f6475)

typedef int CUjit_option;
typedef int CUlibraryOption;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUmodule all;

bool function_valid(CUfunction function)
{
    return function && atomic_load_explicit(&function->magic, memory_order_relaxed) == FUNCTION_MAGIC;
}

static bool module_valid(CUmodule module)
{
    return module && atomic_load(&module->magic) == MODULE_MAGIC;
}

/* Under lock. */
static CUfunction add_function(CUmodule module, struct kernel_image *kernel)
{
    CUfunction *at = &module->functions, function = calloc(1, sizeof *function);
    if (!function)
        return NULL;
    function->module = module;
    function->image = kernel;
    function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 48 << 10;
    function->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    atomic_store(&function->magic, FUNCTION_MAGIC);
    while (*at)
        at = &(*at)->next;
    return *at = function;
}

static CUresult find_global(CUmodule module, CUcontext context, const char *name, CUdeviceptr *address, size_t *bytes);
static CUresult unload(CUmodule module, bool is_library);

/* Where the driver takes memory implicitly (cuda/module/growth.h) a module's variables are there once it is loaded: an H200 used 64 MiB more for 64 MiB of them. */
static CUresult take_globals(CUmodule module, CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    for (struct global_image *image = module->image.globals; image && result == CUDA_SUCCESS; image = image->next)
        result = find_global(module, context, image->name, NULL, NULL);
    if (result != CUDA_SUCCESS)
        unload(module, false);
    return result;
}

static CUresult load(CUmodule *made, const void *data, CUcontext context)
{
    struct image image;
    if (!made || !data)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = image_read(data, &image);
    if (result != CUDA_SUCCESS)
        return result;
    CUmodule module = calloc(1, sizeof *module);
    if (!module) {
        image_free(&image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context;
    module->is_library = !context;
    module->image = image;
    atomic_store(&module->magic, MODULE_MAGIC);
    pthread_mutex_lock(&mutex);
    for (struct kernel_image *kernel = image.kernels; kernel; kernel = kernel->next)
        add_function(module, kernel);
    module->next = all;
    all = module;
    pthread_mutex_unlock(&mutex);
    *made = module;
    return context && context->device->gpu.grows ? take_globals(module, context) : CUDA_SUCCESS;
}

/* A file's bytes with a zero behind them. */
static CUresult read_file(const char *path, char **data)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    size_t size = 0, got, room = 1 << 16;
    char *bytes = NULL, *grown;
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    do {
        room *= 2;
        if (!(grown = realloc(bytes, room + 1)))
            break;
        bytes = grown;
        got = fread(bytes + size, 1, room - size, file);
        size += got;
    } while (size == room);
    fclose(file);
    if (!grown) {
        free(bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes[size] = '\0';
    *data = bytes;
    return size ? CUDA_SUCCESS : (free(bytes), CUDA_ERROR_INVALID_IMAGE);
}

static CUresult unload(CUmodule module, bool is_library)
{
    struct module_global *globals;
    if (!module_valid(module) || module->is_library != is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&mutex);
    atomic_store(&module->magic, 0);
    for (CUfunction function = module->functions; function; function = function->next)
        atomic_store(&function->magic, 0);
    globals = module->globals;
    module->globals = NULL;
    pthread_mutex_unlock(&mutex);
    for (struct module_global *next; globals; globals = next) {
        next = globals->next;
        if (context_valid(globals->context))
            cuMemFree_v2(globals->address);
        free(globals);
    }
    return CUDA_SUCCESS;
}

/* An image that cannot be read has every function that is asked for. */
static CUresult find_function(CUmodule module, const char *name, CUfunction *found)
{
    pthread_mutex_lock(&mutex);
    CUfunction function = module->functions;
    while (function && strcmp(function->image->name, name))
        function = function->next;
    if (!function && module->image.any_name && *name) {
        struct kernel_image *kernel = image_add_kernel(&module->image, name, strlen(name));
        function = kernel ? add_function(module, kernel) : NULL;
    }
    pthread_mutex_unlock(&mutex);
    *found = function;
    return function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Globals get memory when they are first asked for, at the latest. */
static CUresult find_global(CUmodule module, CUcontext context, const char *name, CUdeviceptr *address, size_t *bytes)
{
    CUresult result = CUDA_SUCCESS;
    struct global_image *image = module->image.globals;
    while (image && strcmp(image->name, name))
        image = image->next;
    if (!image)
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&mutex);
    struct module_global *global = module->globals;
    while (global && (global->image != image || global->context != context))
        global = global->next;
    if (!global && !(global = calloc(1, sizeof *global))) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!global->image) {
        result = cuMemAlloc_v2(&global->address, image->bytes ? image->bytes : 1);
        if (result == CUDA_SUCCESS) {
            global->image = image;
            global->context = context;
            global->next = module->globals;
            module->globals = global;
        } else {
            free(global);
        }
    }
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS && address)
        *address = global->address;
    if (result == CUDA_SUCCESS && bytes)
        *bytes = image->bytes;
    return result;
}

static unsigned count_functions(CUmodule module)
{
    unsigned count = 0;
    pthread_mutex_lock(&mutex);
    for (CUfunction function = module->functions; function; function = function->next)
        count++;
    pthread_mutex_unlock(&mutex);
    return count;
}

static void list_functions(CUmodule module, CUfunction *functions, unsigned room)
{
    pthread_mutex_lock(&mutex);
    for (CUfunction function = module->functions; function && room; function = function->next, room--)
        *functions++ = function;
    pthread_mutex_unlock(&mutex);
}

/* --- modules ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *data)
{
    ENTER(context);
    return load(module, data, context);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned count, CUjit_option *options, void **values)
{
    ENTER(context);
    REQUIRE_CU(!count || (options && values));
    return load(module, data, context);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data)
{
    return cuModuleLoadData(module, data);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    ENTER(context);
    char *data = NULL;
    CUresult result = read_file(path, &data);
    if (result == CUDA_SUCCESS)
        result = load(module, data, context);
    free(data);
    return result;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER(context);
    (void)context;
    return unload(module, false);
}

#define MODULE(module, library)                                                                            \
    do {                                                                                                   \
        if (!module_valid(module) || (module)->is_library != (library))                                    \
            return CUDA_ERROR_INVALID_HANDLE;                                                              \
    } while (0)

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(context);
    (void)context;
    if (!module_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(function && name);
    return find_function(module, name, function);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    ENTER(context);
    if (!module_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(name && (address || bytes));
    return find_global(module, context, name, address, bytes);
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
    ENTER(context);
    (void)context;
    if (!module_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(count);
    *count = count_functions(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned room, CUmodule module)
{
    ENTER(context);
    (void)context;
    if (!module_valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(functions && room);
    list_functions(module, functions, room);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    REQUIRE_CU(mode);
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

/* --- libraries ------------------------------------------------------------------------------------------------------ */

static CUmodule of_library(CUlibrary library)
{
    return (CUmodule)(void *)library;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *data, CUjit_option *jit, void **jit_values, unsigned jits,
                                  CUlibraryOption *options, void **values, unsigned count)
{
    CUmodule module;
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    CUresult result = driver_ready();
    REQUIRE_CU(result != CUDA_SUCCESS || library);
    if (result == CUDA_SUCCESS && (result = load(&module, data, NULL)) == CUDA_SUCCESS)
        *library = (CUlibrary)(void *)module;
    return result;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                                      unsigned jits, CUlibraryOption *options, void **values, unsigned count)
{
    char *data = NULL;
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS)
        result = read_file(path, &data);
    if (result == CUDA_SUCCESS)
        result = cuLibraryLoadData(library, data, jit, jit_values, jits, options, values, count);
    free(data);
    return result;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    CUresult result = driver_ready();
    return result == CUDA_SUCCESS ? unload(of_library(library), true) : result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUfunction function;
    MODULE(of_library(library), true);
    REQUIRE_CU(kernel && name);
    CUresult result = find_function(of_library(library), name, &function);
    *kernel = (CUkernel)(void *)function;
    return result;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    MODULE(of_library(library), true);
    REQUIRE_CU(count);
    *count = count_functions(of_library(library));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned room, CUlibrary library)
{
    MODULE(of_library(library), true);
    REQUIRE_CU(kernels && room);
    list_functions(of_library(library), (CUfunction *)(void *)kernels, room);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    MODULE(of_library(library), true);
    REQUIRE_CU(module);
    *module = of_library(library);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    ENTER(context);
    MODULE(of_library(library), true);
    REQUIRE_CU(name && (address || bytes));
    return find_global(of_library(library), context, name, address, bytes);
}

EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    MODULE(of_library(library), true);
    REQUIRE_CU(name && (address || bytes));
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuLibraryGetUnifiedFunction(void **pointer, CUlibrary library, const char *name)
{
    MODULE(of_library(library), true);
    REQUIRE_CU(pointer && name);
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUfunction found = (CUfunction)(void *)kernel;
    ENTER(context);
    (void)context;
    if (!function_valid(found))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(function);
    *function = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    CUfunction function = (CUfunction)(void *)kernel;
    if (!function_valid(function) || !function->module->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE_CU(library);
    *library = (CUlibrary)(void *)function->module;
    return CUDA_SUCCESS;
}
