#define _GNU_SOURCE
#include "driver/real.h"

#include <dlfcn.h>
#include <pthread.h>

#include "process/log.h"
#include "process/place.h"

static const char *const names[FUNCTIONS] = {
#define HOOK(base, symbol, version, per_thread) #symbol,
#define ALSO(base, symbol, version, per_thread)
#define CALLED(symbol) #symbol,
#include TABLES
#undef HOOK
#undef ALSO
#undef CALLED
};

_Atomic(void *) real_functions[FUNCTIONS];

/* NVML: "not supported", "library not found". CUDA: "not supported", "no device". */
#ifdef LIBRARY_NVML
enum { NOT_SUPPORTED = 3, NO_DRIVER = 12 };
#else
enum { NOT_SUPPORTED = 801, NO_DRIVER = 100 };
#endif

/* Stands for a function that the driver lacks. Callers pass arguments that it does not look at, which the calling
 * conventions of x86-64 and AArch64 allow. */
static int absent(void)
{
    return NOT_SUPPORTED;
}

/* Stands for every function in a container without a driver. */
static int driverless(void)
{
    return NO_DRIVER;
}

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static void *driver;

/* Loaded already, if it is there: it is an optional dependency (see the Makefile), which the loader knows by this name. */
static void open_driver(void)
{
    driver = dlopen(DRIVER_LIBRARY, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!driver)
        log_message("%s: not loaded; the node agent mounts the driver's library there", DRIVER_LIBRARY);
}

void *real_symbol(const char *name)
{
    pthread_once(&opened, open_driver);
    return driver ? dlsym(driver, name) : NULL;
}

void *real_resolve(enum function function)
{
    void *found = real_symbol(names[function]);
    if (!found)
        found = driver ? (void *)absent : (void *)driverless;
    atomic_store_explicit(&real_functions[function], found, memory_order_relaxed);
    return found;
}

bool real_exists(enum function function)
{
    void *found = real_function(function);
    return found != (void *)absent && found != (void *)driverless;
}
