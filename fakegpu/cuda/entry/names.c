/* Every name of the interface: what this library lacks answers "not supported" (cuda/entry/proc_address.c finds them all). */
#include "cuda/entry/names.h"

/* Of every function, unless another file of this folder has it. */
#define FUNCTION(name, version, symbol)                                                                    \
    EXPORT __attribute__((weak)) CUresult symbol(void);                                                    \
    CUresult symbol(void)                                                                                  \
    {                                                                                                      \
        CUresult unready = driver_ready();                                                                 \
        return unready == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : unready;                               \
    }
#define PER_THREAD FUNCTION
#define UNLISTED(symbol) FUNCTION(symbol, 0, symbol)
#include "cuda/entry/functions.def"
#undef FUNCTION
#undef PER_THREAD
#undef UNLISTED

const struct named_function named_functions[] = {
#define FUNCTION(name, version, symbol) {#name, version, false, (void (*)(void))symbol},
#define PER_THREAD(name, version, symbol) {#name, version, true, (void (*)(void))symbol},
#define UNLISTED(symbol)
#include "cuda/entry/functions.def"
    {0},
};
