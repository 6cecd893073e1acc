/* Calls with which the driver takes memory implicitly: a module's variables, what a stream needs. They are passed on as they are;
 * what they took is looked for at the next chance (memory/beyond.h). What comes later, as code does with its first launch, is found in time anyway. */
#include "driver/driver.h"
#include "driver/real.h"
#include "memory/beyond.h"

typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;

#define TAKES_IMPLICITLY(name, parameters, arguments)  \
    CUresult name parameters;                       \
    EXPORT CUresult name parameters                 \
    {                                               \
        CUresult result = REAL(name) arguments;     \
        beyond_expect();                            \
        return result;                              \
    }

TAKES_IMPLICITLY(cuModuleLoad, (CUmodule *module, const char *path), (module, path))
TAKES_IMPLICITLY(cuModuleLoadData, (CUmodule *module, const void *image), (module, image))
TAKES_IMPLICITLY(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned count, int *options, void **values),
              (module, image, count, options, values))
TAKES_IMPLICITLY(cuModuleLoadFatBinary, (CUmodule *module, const void *image), (module, image))
TAKES_IMPLICITLY(cuLibraryLoadData,
              (CUlibrary *library, const void *image, int *jit, void **jit_values, unsigned jits, int *options, void **values,
               unsigned count),
              (library, image, jit, jit_values, jits, options, values, count))
TAKES_IMPLICITLY(cuLibraryLoadFromFile,
              (CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned jits, int *options, void **values,
               unsigned count),
              (library, path, jit, jit_values, jits, options, values, count))
TAKES_IMPLICITLY(cuStreamCreate, (CUstream *stream, unsigned flags), (stream, flags))
TAKES_IMPLICITLY(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority), (stream, flags, priority))
