/* Which functions this library stands in front of, and how the driver's own are reached.
 *
 * Tables of functions are lists of two macros, in hooks_*.def; a table belongs to one subject:
 *
 *     HOOK(base, symbol, version, per_thread)   the library exports `symbol`. cuGetProcAddress gives it out for the name
 *                                               `base`, from CUDA `version` (1000 * major + 10 * minor) up to the next
 *                                               HOOK of the same base; per_thread: 1 for the _ptsz and _ptds variants
 *     ALSO(base, symbol, version, per_thread)   the same hook under another name
 *     CALLED(symbol)                            a function of the driver that is only called
 *
 * A hook is an ordinary definition with the driver's signature, marked EXPORT:
 *
 *     EXPORT CUresult cuInit(unsigned flags) { ... return REAL(cuInit)(flags); }
 *
 * REAL(symbol) is the driver's function, looked up once in the library that this one depends on, never in the program's own scope
 * (where it would find us). Where the driver is too old to have it, REAL is a function that returns
 * CUDA_ERROR_NOT_SUPPORTED (in the NVML library, the error of that meaning); without a driver, one that returns
 * CUDA_ERROR_NO_DEVICE (NVML_ERROR_LIBRARY_NOT_FOUND). */
#ifndef ISOLATION_DRIVER_REAL_H
#define ISOLATION_DRIVER_REAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef LIBRARY_NVML
#define TABLES "driver/hooks_nvml.def"
#else
#define TABLES "driver/hooks_cuda.def"
#endif

enum function {
#define HOOK(base, symbol, version, per_thread) FUNCTION_##symbol,
#define ALSO(base, symbol, version, per_thread)
#define CALLED(symbol) FUNCTION_##symbol,
#include TABLES
#undef HOOK
#undef ALSO
#undef CALLED
    FUNCTIONS
};

/* The driver's functions as far as they were looked up; NULL before. */
extern _Atomic(void *) real_functions[FUNCTIONS];

/* Looks one up; never NULL. Safe from any thread. */
void *real_resolve(enum function function);

/* Whether the driver has it. */
bool real_exists(enum function function);

/* Any symbol of the driver's library by its name; NULL when it has none. */
void *real_symbol(const char *name);

static inline void *real_function(enum function function)
{
    void *found = atomic_load_explicit(&real_functions[function], memory_order_relaxed);
    return found ? found : real_resolve(function);
}

#define REAL(symbol) ((__typeof__(&symbol))real_function(FUNCTION_##symbol))

#endif
