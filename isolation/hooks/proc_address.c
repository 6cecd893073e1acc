/* cuGetProcAddress: what the driver would return, with our functions in place of those that are limited.
 *
 * The driver is asked first; so a name, version or flag that it refuses is refused. Which of our functions stands for what it
 * gave is found by the address, where the driver returns its exported functions; by name, version and flag where
 * it does not. A variant of a limited function that this library does not know (of a newer CUDA) is not returned. */
#include <pthread.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/real.h"
#include "process/container.h"
#include "process/log.h"

/* The newest CUDA whose variants hooks_*.def list. */
enum { KNOWN_CUDA = 13050 };

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status);

/* Defined with the driver's signatures; here only their addresses count, by names that have no signature yet. */
#define HOOK(base, symbol, version, per_thread) extern void address_of_##symbol(void) __asm__(#symbol);
#define ALSO(base, symbol, version, per_thread)
#define CALLED(symbol)
#include TABLES
#undef HOOK
#undef ALSO
#undef CALLED

/* The functions that this library exports. */
static const struct hook {
    const char *base, *symbol;
    int version;
    bool per_thread;
    enum function function;
    void (*ours)(void);
} hooks[] = {
#define HOOK(base, symbol, version, per_thread) {#base, #symbol, version, per_thread, FUNCTION_##symbol, address_of_##symbol},
#define ALSO HOOK
#define CALLED(symbol)
#include TABLES
#undef HOOK
#undef ALSO
#undef CALLED
};
enum { HOOKS = sizeof hooks / sizeof *hooks };

/* Programs of NVIDIA's runtime ask for hundreds of functions as they begin, most of them not limited: two tables tell these apart
 * at once. A place holds the index of a hook plus 1; 0: free. */
enum { PLACES = 1024 };
_Static_assert(2 * FUNCTIONS < PLACES, "each hook has two names at most, and a search ends at a free place");
static uint16_t by_addresses[PLACES], by_names[PLACES];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static unsigned mixed(uint64_t key)
{
    return (unsigned)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 54);
}

/* The place of what is there, or where it would be put. */
static uint16_t *place_of_address(const void *address)
{
    unsigned at = mixed((uint64_t)(uintptr_t)address >> 4);
    while (by_addresses[at] && real_function(hooks[by_addresses[at] - 1].function) != address)
        at = (at + 1) % PLACES;
    return &by_addresses[at];
}

static bool named(const struct hook *hook, const char *name)
{
    return !strcmp(hook->base, name) || !strcmp(hook->symbol, name);
}

static uint16_t *place_of_name(const char *name)
{
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    for (const char *at = name; *at; at++)
        key = (key ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    unsigned at = mixed(key);
    while (by_names[at] && !named(&hooks[by_names[at] - 1], name))
        at = (at + 1) % PLACES;
    return &by_names[at];
}

static void put(uint16_t *place, size_t hook)
{
    if (!*place)
        *place = (uint16_t)(hook + 1);
}

static void fill(void)
{
    for (size_t i = 0; i < HOOKS; i++) {
        put(place_of_name(hooks[i].base), i);
        put(place_of_name(hooks[i].symbol), i);
        if (real_exists(hooks[i].function))
            put(place_of_address(real_function(hooks[i].function)), i);
    }
}

static const struct hook *by_address(const void *address)
{
    uint16_t found = *place_of_address(address);
    return found ? &hooks[found - 1] : NULL;
}

/* The newest variant not above `version`; with the per-thread default stream only where there is such a variant. */
static const struct hook *by_name(const char *name, int version, bool per_thread)
{
    const struct hook *best = NULL;
    for (size_t i = 0; i < HOOKS; i++) {
        const struct hook *hook = &hooks[i];
        if (!strcmp(hook->symbol, name) && strcmp(hook->base, name))
            return hook;
        if (strcmp(hook->base, name) || hook->version > version || (hook->per_thread && !per_thread))
            continue;
        if (!best || hook->per_thread > best->per_thread ||
            (hook->per_thread == best->per_thread && hook->version > best->version))
            best = hook;
    }
    return best;
}

static bool is_limited(const char *name)
{
    return *place_of_name(name);
}

/* The driver's answer for an older version than asked, to see whether a newer variant came in between. */
static void *known_variant(const char *name, cuuint64_t flags)
{
    void *found = NULL;
    int status;
    CUresult result = real_exists(FUNCTION_cuGetProcAddress_v2)
                          ? REAL(cuGetProcAddress_v2)(name, &found, KNOWN_CUDA, flags, &status)
                          : REAL(cuGetProcAddress)(name, &found, KNOWN_CUDA, flags);
    return result == CUDA_SUCCESS ? found : NULL;
}

/* False: not to be returned. */
static bool put_ours(const char *name, void **function, int version, cuuint64_t flags)
{
    pthread_once(&filled, fill);
    const struct hook *hook = by_address(*function);
    if (!hook && !is_limited(name))
        return true;
    if (!hook && version > KNOWN_CUDA && known_variant(name, flags) != *function) {
        log_message("%.64s of CUDA %d: unknown to this library, so not returned; update it", name, version);
        return false;
    }
    if (!hook)
        hook = by_name(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (!hook)
        return false;
    *function = (void *)hook->ours;
    return true;
}

/* What is not to be returned is answered as the driver answers what it does not have: by the older function with an error, and by the newer one
 * with NULL and a status. */
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    void *before = function ? *function : NULL;
    CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
    if (result != CUDA_SUCCESS || !name || !function || !*function || put_ours(name, function, version, flags))
        return result;
    *function = before;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
    if (result != CUDA_SUCCESS || !name || !function || !*function || put_ours(name, function, version, flags))
        return result;
    *function = NULL;
    if (status)
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
}

/* Says early, and to programs that look at nothing else, that the container's limits cannot be had. */
CUresult cuInit(unsigned flags);
EXPORT CUresult cuInit(unsigned flags)
{
    return container_here() ? REAL(cuInit)(flags) : CUDA_ERROR_SYSTEM_NOT_READY;
}
