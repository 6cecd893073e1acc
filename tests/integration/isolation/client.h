/* A program that allocates in every way, by the names that it looks up in libcuda.so.1. */
#ifndef ISOLATION_TEST_CLIENT_H
#define ISOLATION_TEST_CLIENT_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

enum { MIB = 1 << 20, HELD_MAX = 12, KINDS = 10, OUT_OF_MEMORY = 2 };

struct properties { int type, handles, location_type, location; void *more; unsigned char flags[8]; };
struct array { size_t width, height; int format; unsigned channels; };
struct array_3d { size_t width, height, depth; int format; unsigned channels, flags; };
struct pool { int type, handles, location_type, location; void *more; size_t most; unsigned short usage; unsigned char rest[54]; };
struct alloc_node { struct pool pool; const void *access; size_t accesses, bytes; unsigned long long address; };
/* `handle`: the array, pool, executable graph or context; `graph`: what that was made from. */
struct held { int kind; unsigned long long address; void *handle, *graph; };

static struct {
    int (*init)(unsigned);
    int (*make_context)(void **, unsigned, int);
    int (*info)(size_t *, size_t *);
    int (*alloc)(unsigned long long *, size_t);
    int (*managed)(unsigned long long *, size_t, unsigned);
    int (*pitched)(unsigned long long *, size_t *, size_t, size_t, unsigned);
    int (*free)(unsigned long long);
    int (*async)(unsigned long long *, size_t, void *);
    int (*free_async)(unsigned long long, void *);
    int (*physical)(unsigned long long *, size_t, const struct properties *, unsigned long long);
    int (*release)(unsigned long long);
    int (*array)(void **, const struct array *);
    int (*destroy)(void *);
    int (*make_pool)(void **, const struct pool *);
    int (*from_pool)(unsigned long long *, size_t, void *, void *);
    int (*destroy_pool)(void *);
    int (*mipmap)(void **, const struct array_3d *, unsigned);
    int (*destroy_mipmap)(void *);
    int (*make_graph)(void **, unsigned);
    int (*add_alloc)(void **, void *, void *const *, size_t, struct alloc_node *);
    int (*add_free)(void **, void *, void *const *, size_t, unsigned long long);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch_graph)(void *, void *);
    int (*destroy_exec)(void *);
    int (*destroy_graph)(void *);
    int (*trim_graphs)(int);
    int (*pop_context)(void **);
    int (*destroy_context)(void *);
    int (*synchronize)(void);
} cuda;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s: not there\n", name);
        _exit(3);
    }
    return found;
}

/* The program ends with 3 when the library or a function is not there. */
static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(3);
    }
#define LOAD(field, name) cuda.field = (__typeof__(cuda.field))symbol(library, name)
    LOAD(init, "cuInit");
    LOAD(make_context, "cuCtxCreate_v2");
    LOAD(info, "cuMemGetInfo_v2");
    LOAD(alloc, "cuMemAlloc_v2");
    LOAD(managed, "cuMemAllocManaged");
    LOAD(pitched, "cuMemAllocPitch_v2");
    LOAD(free, "cuMemFree_v2");
    LOAD(async, "cuMemAllocAsync");
    LOAD(free_async, "cuMemFreeAsync");
    LOAD(physical, "cuMemCreate");
    LOAD(release, "cuMemRelease");
    LOAD(array, "cuArrayCreate_v2");
    LOAD(destroy, "cuArrayDestroy");
    LOAD(make_pool, "cuMemPoolCreate");
    LOAD(from_pool, "cuMemAllocFromPoolAsync");
    LOAD(destroy_pool, "cuMemPoolDestroy");
    LOAD(mipmap, "cuMipmappedArrayCreate");
    LOAD(destroy_mipmap, "cuMipmappedArrayDestroy");
    LOAD(make_graph, "cuGraphCreate");
    LOAD(add_alloc, "cuGraphAddMemAllocNode");
    LOAD(add_free, "cuGraphAddMemFreeNode");
    LOAD(instantiate, "cuGraphInstantiateWithFlags");
    LOAD(launch_graph, "cuGraphLaunch");
    LOAD(destroy_exec, "cuGraphExecDestroy");
    LOAD(destroy_graph, "cuGraphDestroy");
    LOAD(trim_graphs, "cuDeviceGraphMemTrim");
    LOAD(pop_context, "cuCtxPopCurrent_v2");
    LOAD(destroy_context, "cuCtxDestroy_v2");
    LOAD(synchronize, "cuCtxSynchronize");
}

static int take_from_pool(struct held *held, size_t bytes)
{
    struct pool pool = {.type = 1, .location_type = 1};
    int result = cuda.make_pool(&held->handle, &pool);
    if (result)
        return result;
    result = cuda.from_pool(&held->address, bytes, held->handle, NULL);
    if (result)
        cuda.destroy_pool(held->handle);
    return result;
}

/* A graph that takes memory and gives it back, and ran once. */
static int take_by_graph(struct held *held, size_t bytes)
{
    struct alloc_node node = {.pool = {.type = 1, .location_type = 1}, .bytes = bytes};
    void *taken, *freed;
    int result = cuda.make_graph(&held->graph, 0);
    if (result)
        return result;
    result = cuda.add_alloc(&taken, held->graph, NULL, 0, &node);
    if (!result)
        result = cuda.add_free(&freed, held->graph, &taken, 1, node.address);
    if (!result)
        result = cuda.instantiate(&held->handle, held->graph, 0);
    if (result) {
        cuda.destroy_graph(held->graph);
        return result;
    }
    return cuda.launch_graph(held->handle, NULL) || cuda.synchronize() ? -1 : 0;
}

static int give_graph(const struct held *held)
{
    int result = cuda.destroy_exec(held->handle);
    if (!result)
        result = cuda.destroy_graph(held->graph);
    return result ? result : cuda.trim_graphs(0);
}

/* The thread goes on in the context that it had. */
static int take_context(struct held *held)
{
    void *popped;
    int result = cuda.make_context(&held->handle, 0, 0);
    return result ? result : cuda.pop_context(&popped);
}

/* One allocation in one of KINDS ways; the driver's answer. */
static inline int take(struct held *held, int kind, size_t bytes)
{
    struct properties properties = {1, 0, 1, 0, NULL, {0}};
    struct array array = {4096, bytes / 4096 / 4 + 1, 0x20, 1};
    struct array_3d levels = {4096, bytes / 4096 / 4 + 1, 0, 0x20, 1, 0};
    size_t pitch;
    held->kind = kind;
    switch (kind) {
    case 0: return cuda.alloc(&held->address, bytes);
    case 1: return cuda.managed(&held->address, bytes, 1);
    case 2: return cuda.pitched(&held->address, &pitch, 1000, bytes / 1024 + 1, 4);
    case 3: return cuda.async(&held->address, bytes, NULL);
    case 4: return cuda.physical(&held->address, (bytes / (2 * MIB) + 1) * 2 * MIB, &properties, 0);
    case 5: return cuda.array(&held->handle, &array);
    case 6: return take_from_pool(held, bytes);
    case 7: return cuda.mipmap(&held->handle, &levels, 2);
    case 8: return take_by_graph(held, bytes);
    default: return take_context(held);
    }
}

static inline int give(const struct held *held)
{
    switch (held->kind) {
    case 0: case 1: case 2: return cuda.free(held->address);
    case 3: return cuda.free_async(held->address, NULL) || cuda.synchronize();
    case 4: return cuda.release(held->address);
    case 5: return cuda.destroy(held->handle);
    case 6: return cuda.free_async(held->address, NULL) || cuda.synchronize() || cuda.destroy_pool(held->handle);
    case 7: return cuda.destroy_mipmap(held->handle);
    case 8: return give_graph(held);
    default: return cuda.destroy_context(held->handle);
    }
}

#endif
