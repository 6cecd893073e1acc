/* Contexts, and each thread's stack of them. */
#include <stdlib.h>
#include <string.h>

#include "cuda/context/context.h"
#include "cuda/entry/log.h"

/* Contexts are never freed: use of a destroyed one's handle gives an error and not another context, until
 * so many others have been destroyed after it. */
enum { KEPT_DEAD = 256, DEPTH_MAX = 64 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUcontext oldest_dead, newest_dead;
static unsigned dead_count;
static uint64_t last_id;

static _Thread_local CUcontext stack[DEPTH_MAX];
static _Thread_local unsigned depth;

/* --- those that are there ----------------------------------------------------------------------------------- */

CUcontext context_from_pool(void)
{
    CUcontext context = NULL;
    pthread_mutex_lock(&mutex);
    if (dead_count > KEPT_DEAD) {
        context = oldest_dead;
        oldest_dead = context->next;
        dead_count--;
    }
    uint64_t id = ++last_id;
    pthread_mutex_unlock(&mutex);
    if (!context)
        context = malloc(sizeof *context);
    if (context) {
        memset(context, 0, sizeof *context);
        context->id = id;
    }
    return context;
}

void context_to_pool(CUcontext context)
{
    pthread_mutex_lock(&mutex);
    context->next = NULL;
    if (dead_count++)
        newest_dead->next = context;
    else
        oldest_dead = context;
    newest_dead = context;
    pthread_mutex_unlock(&mutex);
}

CUcontext context_of_part(CUcontext whole)
{
    CUcontext part = context_from_pool();
    if (!part)
        return NULL;
    part->device = whole->device;
    part->flags = whole->flags;
    part->api_version = whole->api_version;
    part->streams = whole->streams;
    part->whole = whole;
    atomic_store(&part->alive, 1);
    return part;
}

void context_of_part_end(CUcontext part)
{
    atomic_store(&part->alive, 0);
    context_to_pool(part);
}

/* --- which is current -------------------------------------------------------------------------------------- */

bool context_valid(CUcontext context)
{
    return context && atomic_load(&context->alive) && (!context->whole || atomic_load(&context->whole->alive));
}

CUresult context_current(CUcontext *context)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext top = depth ? stack[depth - 1] : NULL;
    if (!top)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load_explicit(&top->alive, memory_order_relaxed))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (top->whole && !atomic_load_explicit(&(top = top->whole)->alive, memory_order_relaxed))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = top;
    return atomic_load_explicit(&top->sticky, memory_order_relaxed);
}

CUcontext context_current_part(void)
{
    return depth && stack[depth - 1]->whole ? stack[depth - 1] : NULL;
}

CUresult context_push(CUcontext context)
{
    if (depth == DEPTH_MAX) {
        driver_log("a thread may push %d contexts; pop some", DEPTH_MAX);
        return CUDA_ERROR_INVALID_VALUE;
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

void context_pop(CUcontext context)
{
    if (depth && stack[depth - 1] == context)
        depth--;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    READY();
    return context_valid(context) ? context_push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    READY();
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL takes it off. */
EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    READY();
    if (context && !context_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth)
        depth--;
    return context ? context_push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    READY();
    REQUIRE_CU(context);
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }
EXPORT CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }
