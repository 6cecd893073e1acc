/* Streams: making, ending and waiting for them; and what contexts and memory ask of them (cuda/stream/hooks.h). */
#include <stdlib.h>
#include <string.h>

#include "cuda/module/growth.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/context_work.h"
#include "cuda/stream/events.h"
#include "cuda/stream/executor.h"
#include "cuda/stream/streams.h"

/* Streams are never freed, as contexts are not: a stale handle is recognized for a while. */
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static CUstream oldest_free, newest_free;
static unsigned free_count;
static _Atomic uint64_t last_id;

enum { KEPT_FREE = 64 };

static CUstream from_pool(void)
{
    CUstream stream = NULL;
    pthread_mutex_lock(&pool_mutex);
    if (free_count > KEPT_FREE) {
        stream = oldest_free;
        oldest_free = stream->next;
        free_count--;
    }
    pthread_mutex_unlock(&pool_mutex);
    return stream ? stream : malloc(sizeof *stream);
}

static void to_pool(CUstream stream)
{
    pthread_mutex_lock(&pool_mutex);
    stream->next = NULL;
    if (free_count++)
        newest_free->next = stream;
    else
        oldest_free = stream;
    newest_free = stream;
    pthread_mutex_unlock(&pool_mutex);
}

/* Under the executor's lock. */
static CUstream make(CUcontext context, struct executor *executor, unsigned flags, int priority)
{
    CUstream stream = from_pool();
    if (!stream)
        return NULL;
    memset(stream, 0, sizeof *stream);
    stream->context = context;
    stream->executor = executor;
    stream->flags = flags;
    stream->priority = priority;
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    stream->id = atomic_fetch_add(&last_id, 1) + 1;
    stream->next = context->streams->streams;
    context->streams->streams = stream;
    atomic_store(&stream->magic, STREAM_MAGIC);
    return stream;
}

void stream_gone(CUstream stream)
{
    for (CUstream *at = &stream->context->streams->streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    to_pool(stream);
}

/* The calling thread's own default stream of a context, made at first use. */
static CUstream own_stream(CUcontext context)
{
    struct executor *executor = context->streams->legacy->executor;
    uint64_t this_thread = thread_number();
    if (!this_thread)
        return NULL;
    executor_lock(executor);
    CUstream stream = context->streams->streams;
    while (stream && stream->owner != this_thread)
        stream = stream->next;
    if (!stream && (stream = make(context, executor, CU_STREAM_DEFAULT, 0)))
        stream->owner = this_thread;
    executor_unlock(executor);
    return stream;
}

CUresult stream_resolve(CUstream handle, CUstream *stream)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || handle == CU_STREAM_LEGACY) {
        *stream = context->streams->legacy;
        return atomic_load(&context->streams->capturing) ? capture_implicit(context) : CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        *stream = own_stream(context);
        return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (atomic_load(&handle->magic) != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!context_valid(handle->context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = handle;
    return handle->detached ? CUDA_ERROR_STREAM_DETACHED : CUDA_SUCCESS;
}

/* --- hooks ------------------------------------------------------------------------------------------------------- */

CUresult engine_context_created(CUcontext context)
{
    struct executor *executor = executor_of(context->device);
    if (!executor || !(context->streams = calloc(1, sizeof *context->streams)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    executor_lock(executor);
    context->streams->legacy = make(context, executor, CU_STREAM_DEFAULT, 0);
    executor_unlock(executor);
    if (context->streams->legacy)
        return CUDA_SUCCESS;
    free(context->streams);
    context->streams = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A host function that does not return holds this up, as it does with the real driver. */
void engine_context_ending(CUcontext context)
{
    struct executor *executor = context->streams->legacy->executor;
    executor_lock(executor);
    context->streams->ending = true;
    executor_unlock(executor);
    engine_synchronize(context);
    events_end_context(context);
    executor_lock(executor);
    for (CUstream stream = context->streams->streams, next; stream; stream = next) {
        next = stream->next;
        capture_abandon(stream);
        atomic_store(&stream->magic, 0);
        stream->ending = true;
        if (!stream->first && stream != context->streams->legacy)
            stream_gone(stream);
    }
    bool empty = context->streams->streams == context->streams->legacy && !context->streams->legacy->first;
    if (empty)
        stream_gone(context->streams->legacy);
    executor_unlock(executor);
    if (empty)
        free(context->streams);
}

CUresult engine_synchronize(CUcontext context)
{
    struct executor *executor = context->streams->legacy->executor;
    struct mark *mark = mark_make(1);
    if (!mark)
        return CUDA_ERROR_OUT_OF_MEMORY;
    executor_lock(executor);
    uint64_t end_ns = 0, now_ns = monotonic_ns();
    for (CUstream stream = context->streams->streams; stream; stream = stream->next) {
        if (stream->tail_ns > end_ns)
            end_ns = stream->tail_ns;
        if (!stream->first)
            continue;
        struct work work = {.kind = WORK_MARK, .onlooker = true, .mark = mark_keep(mark)};
        atomic_fetch_add(&mark->pending, 1);
        if (!stream_append(stream, &work, now_ns))
            mark_reach(mark, 0), mark_drop(mark);
    }
    executor_move(executor, MOVER_WAITS);
    executor_unlock(executor);
    mark_reach(mark, end_ns);
    mark_wait(mark);
    mark_drop(mark);
    return CUDA_SUCCESS;
}

CUresult engine_after(CUstream handle, void (*function)(void *), void *argument)
{
    STREAM(handle, stream);
    return stream_give(stream, &(struct work){.kind = WORK_AFTER, .call = function, .argument = argument});
}

CUresult engine_stream_synchronize(CUstream handle)
{
    STREAM(handle, stream);
    return stream_finish(stream);
}

CUresult engine_stream_context(CUstream handle, CUcontext *context)
{
    STREAM(handle, stream);
    *context = stream->context;
    return CUDA_SUCCESS;
}

/* --- waiting -------------------------------------------------------------------------------------------------------- */

CUresult stream_finish(CUstream stream)
{
    struct mark *mark = mark_make(1);
    if (!mark)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* On the legacy stream this covers earlier work of other streams. */
    bool onlooker = stream != stream->context->streams->legacy;
    CUresult result = stream_give(stream, &(struct work){.kind = WORK_MARK, .onlooker = onlooker, .mark = mark_keep(mark)});
    if (result == CUDA_SUCCESS) {
        executor_lock(stream->executor);
        if (stream->first)
            executor_move(stream->executor, MOVER_WAITS);
        executor_unlock(stream->executor);
        mark_wait(mark);
    } else {
        mark_drop(mark);
    }
    mark_drop(mark);
    return result;
}

/* The legacy stream covers earlier work of the others of its context. */
static bool over(CUstream stream)
{
    uint64_t now_ns = monotonic_ns();
    bool idle = stream_idle(stream, now_ns);
    if (stream != stream->context->streams->legacy)
        return idle;
    for (CUstream other = stream->context->streams->streams; idle && other; other = other->next)
        idle = !other->blocking || stream_idle(other, now_ns);
    return idle;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    STREAM(handle, stream);
    if (stream->capture)
        return capture_unsupported(stream);
    REFUSE_BESIDE_CAPTURES();
    executor_lock(stream->executor);
    bool done = over(stream);
    executor_unlock(stream->executor);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    STREAM(handle, stream);
    if (stream->capture)
        return capture_unsupported(stream);
    REFUSE_BESIDE_CAPTURES();
    return stream_finish(stream);
}

EXPORT CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(per_thread(stream)); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(per_thread(stream)); }

/* --- making and ending ----------------------------------------------------------------------------------------------- */

enum { PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5 };

CUresult stream_make(CUcontext context, unsigned flags, int priority, CUstream *made)
{
    CUcontext part = context->whole ? context : NULL;
    if (part)
        context = part->whole;
    if (priority > PRIORITY_LEAST)
        priority = PRIORITY_LEAST;
    if (priority < PRIORITY_GREATEST)
        priority = PRIORITY_GREATEST;
    struct executor *executor = context->streams->legacy->executor;
    CUresult result = growth_stream(context);
    if (result != CUDA_SUCCESS)
        return result;
    executor_lock(executor);
    CUstream stream = make(context, executor, flags, priority);
    if (stream)
        stream->part = part;
    executor_unlock(executor);
    if (!stream)
        growth_stream_gone(context);
    *made = stream;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void streams_detach(CUcontext part)
{
    struct executor *executor = part->streams->legacy->executor;
    executor_lock(executor);
    for (CUstream stream = part->streams->streams; stream; stream = stream->next) {
        if (stream->part != part)
            continue;
        capture_abandon(stream);
        stream->detached = true;
    }
    executor_unlock(executor);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *made, unsigned flags, int priority)
{
    ENTER(context);
    REQUIRE_CU(made && !(flags & ~(unsigned)CU_STREAM_NON_BLOCKING));
    CUcontext part = context_current_part();
    return stream_make(part ? part : context, flags, priority, made);
}

EXPORT CUresult cuStreamCreate(CUstream *made, unsigned flags)
{
    return cuStreamCreateWithPriority(made, flags, PRIORITY_LEAST);
}

/* Returns at once; work that the stream still has is done. */
EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_DETACHED)
        return result;
    struct executor *executor = stream->executor;
    capture_abandon(stream);
    growth_stream_gone(stream->context);
    executor_lock(executor);
    atomic_store(&stream->magic, 0);
    stream->ending = true;
    if (!stream->first)
        stream_gone(stream);
    executor_unlock(executor);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }
