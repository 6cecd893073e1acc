/* Events: records of when a stream came to a point. */
#include "cuda/stream/events.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/stream/capturing.h"

enum { KEPT_FREE = 256 };
#define EVENT_MAGIC UINT32_C(0x65766e74)

/* Guards every event's mark and the pool; never held for long. Events are never freed, so stale handles are recognized. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUevent living, oldest_free, newest_free;
static unsigned free_count;

bool event_valid(CUevent event)
{
    return event && atomic_load(&event->magic) == EVENT_MAGIC;
}

#define EVENT(event)                                                                                       \
    do {                                                                                                   \
        CUresult unready_ = driver_ready();                                                                \
        if (unready_ != CUDA_SUCCESS)                                                                      \
            return unready_;                                                                               \
        if (!event_valid(event))                                                                           \
            return CUDA_ERROR_INVALID_HANDLE;                                                              \
    } while (0)

EXPORT CUresult cuEventCreate(CUevent *made, unsigned flags)
{
    ENTER(context);
    REQUIRE_CU(made && !(flags & ~7u));
    REQUIRE_CU(!(flags & CU_EVENT_INTERPROCESS) || (flags & CU_EVENT_DISABLE_TIMING));
    CUevent event = NULL;
    pthread_mutex_lock(&mutex);
    if (free_count > KEPT_FREE) {
        event = oldest_free;
        oldest_free = event->next;
        free_count--;
    }
    pthread_mutex_unlock(&mutex);
    if (!event && !(event = malloc(sizeof *event)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(event, 0, sizeof *event);
    event->context = context;
    event->flags = flags;
    pthread_mutex_lock(&mutex);
    if ((event->next = living))
        living->link = &event->next;
    event->link = &living;
    living = event;
    pthread_mutex_unlock(&mutex);
    atomic_store(&event->magic, EVENT_MAGIC);
    *made = event;
    return CUDA_SUCCESS;
}

/* What waits for it goes on waiting: the mark lives as long as it is wanted. */
static void destroy(CUevent event)
{
    capture_forget_event(event);
    atomic_store(&event->magic, 0);
    pthread_mutex_lock(&mutex);
    if ((*event->link = event->next))
        event->next->link = event->link;
    mark_drop(event->mark);
    event->mark = NULL;
    event->next = NULL;
    if (free_count++)
        newest_free->next = event;
    else
        oldest_free = event;
    newest_free = event;
    pthread_mutex_unlock(&mutex);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    EVENT(event);
    destroy(event);
    return CUDA_SUCCESS;
}

void events_end_context(CUcontext context)
{
    for (CUevent event;; destroy(event)) {
        pthread_mutex_lock(&mutex);
        for (event = living; event && event->context != context;)
            event = event->next;
        pthread_mutex_unlock(&mutex);
        if (!event)
            return;
    }
}

struct mark *event_mark(CUevent event)
{
    pthread_mutex_lock(&mutex);
    struct mark *mark = event->mark ? mark_keep(event->mark) : NULL;
    pthread_mutex_unlock(&mutex);
    return mark;
}

struct work event_record(CUevent event)
{
    struct mark *mark = mark_make(1), *before = NULL;
    if (mark) {
        mark_keep(mark);
        pthread_mutex_lock(&mutex);
        before = event->mark;
        event->mark = mark;
        pthread_mutex_unlock(&mutex);
    }
    mark_drop(before);
    return (struct work){.kind = WORK_MARK, .mark = mark};
}

bool event_wait(CUevent event, struct work *work)
{
    *work = (struct work){.kind = WORK_WAIT, .mark = event_mark(event)};
    return work->mark;
}

CUresult cuEventSynchronize(CUevent event);

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
    EVENT(event);
    REQUIRE_CU(!(flags & ~1u));
    STREAM(handle, stream);
    if (stream->capture)
        return capture_record(stream, event, flags);
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_forget_event(event);
    struct work work = event_record(event);
    CUresult result = work.mark ? stream_give(stream, &work) : CUDA_ERROR_OUT_OF_MEMORY;
    return result == CUDA_SUCCESS && event->shared ? cuEventSynchronize(event) : result;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return cuEventRecordWithFlags(event, stream, 0);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    struct work work;
    EVENT(event);
    REQUIRE_CU(!(flags & ~1u));
    STREAM(handle, stream);
    if (stream->capture || event->point)
        return capture_wait(stream, event, flags);
    return event_wait(event, &work) ? stream_give(stream, &work) : CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    EVENT(event);
    if (event->point)
        return CUDA_ERROR_CAPTURED_EVENT;
    REFUSE_BESIDE_CAPTURES();
    struct mark *mark = event_mark(event);
    bool done = !mark || mark_over(mark);
    mark_drop(mark);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    EVENT(event);
    if (event->point)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct mark *mark = event_mark(event);
    if (mark)
        mark_wait(mark);
    mark_drop(mark);
    return CUDA_SUCCESS;
}

/* The times are the GPU's own: what lies between two events is what ran, and waited, between them. */
EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    EVENT(start);
    EVENT(end);
    REQUIRE_CU(milliseconds);
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->point || end->point)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct mark *first = event_mark(start), *second = event_mark(end);
    CUresult result = CUDA_SUCCESS;
    if (!first || !second)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!mark_over(first) || !mark_over(second))
        result = CUDA_ERROR_NOT_READY;
    else
        *milliseconds =
            (float)((double)(int64_t)(atomic_load(&second->end_ns) - atomic_load(&first->end_ns)) / 1e6);
    mark_drop(first);
    mark_drop(second);
    return result;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

/* Events that processes share: the thread that records one waits until it is reached, so that it is over for the others at any time. */
struct handle {
    uint32_t magic;
    char unused[60];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcEventHandle), "an IPC handle");

EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    EVENT(event);
    REQUIRE_CU(handle);
    if (!(event->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_HANDLE;
    event->shared = true;
    memcpy(handle, &(struct handle){.magic = EVENT_MAGIC}, sizeof *handle);
    return cuEventSynchronize(event);
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *made, CUipcEventHandle opaque)
{
    struct handle handle;
    memcpy(&handle, &opaque, sizeof handle);
    if (handle.magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = cuEventCreate(made, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    if (result == CUDA_SUCCESS)
        (*made)->shared = true;
    return result;
}

EXPORT CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }
EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return cuEventRecord(event, per_thread(stream)); }
EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    return cuEventRecordWithFlags(event, per_thread(stream), flags);
}
EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    return cuStreamWaitEvent(per_thread(stream), event, flags);
}
