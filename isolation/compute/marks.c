#include "compute/marks.h"

#include <stdatomic.h>

#include "driver/capture_mode.h"
#include "driver/real.h"

/* Captures under way in this process. While there are none, the driver is not asked. */
static _Atomic int captures;

void captures_count(int more)
{
    if (atomic_fetch_add(&captures, more) + more < 0)
        atomic_store(&captures, 0);
}

bool stream_is_captured(CUstream stream)
{
    int status = 0;
    if (!atomic_load_explicit(&captures, memory_order_relaxed))
        return false;
    /* An error means the legacy stream beside a capture: what the program does now fails anyway. */
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status;
}

void marks_beside_captures(void) { relax_capture_mode(); }

/* Makes a context current if it is not; true: leave_context must follow. */
static bool enter_context(CUcontext context)
{
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return false;
    return REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
}

static void leave_context(bool entered)
{
    CUcontext popped;
    if (entered)
        REAL(cuCtxPopCurrent_v2)(&popped);
}

static CUresult context_of(CUstream stream, CUcontext *context)
{
    bool by_default = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (!by_default && REAL(cuStreamGetCtx)(stream, context) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return REAL(cuCtxGetCurrent)(context);
}

static bool take_event(struct mark_pool *pool, CUcontext context, CUevent *event)
{
    for (unsigned i = 0; i < pool->count; i++) {
        if (pool->marks[i].context == context) {
            *event = pool->marks[i].event;
            pool->marks[i] = pool->marks[--pool->count];
            return true;
        }
    }
    return REAL(cuEventCreate)(event, 0) == CUDA_SUCCESS;
}

bool mark_put(struct mark_pool *pool, CUstream stream, struct mark *mark)
{
    bool put = false;
    int mode = relax_capture_mode();
    if (context_of(stream, &mark->context) == CUDA_SUCCESS && mark->context) {
        bool entered = enter_context(mark->context);
        if (take_event(pool, mark->context, &mark->event)) {
            put = REAL(cuEventRecord)(mark->event, stream) == CUDA_SUCCESS;
            if (!put)
                mark_drop(pool, mark);
        }
        leave_context(entered);
    }
    restore_capture_mode(mode);
    return put;
}

enum mark_state mark_look(const struct mark *mark)
{
    int mode = relax_capture_mode();
    bool entered = enter_context(mark->context);
    CUresult result = REAL(cuEventQuery)(mark->event);
    leave_context(entered);
    restore_capture_mode(mode);
    return result == CUDA_SUCCESS ? MARK_REACHED : result == CUDA_ERROR_NOT_READY ? MARK_AHEAD : MARK_LOST;
}

bool mark_distance(const struct mark *before, const struct mark *after, int64_t *time_ns)
{
    float milliseconds = 0;
    int mode = relax_capture_mode();
    bool entered = enter_context(after->context);
    CUresult result = REAL(cuEventElapsedTime)(&milliseconds, before->event, after->event);
    leave_context(entered);
    restore_capture_mode(mode);
    if (result != CUDA_SUCCESS || !(milliseconds >= -1e9f) || milliseconds > 1e9f)
        return false;
    *time_ns = (int64_t)((double)milliseconds * 1e6);
    return true;
}

bool mark_between(const struct mark *before, const struct mark *after, uint64_t *time_ns)
{
    int64_t signed_ns;
    if (!mark_distance(before, after, &signed_ns) || signed_ns < 0)
        return false;
    *time_ns = (uint64_t)signed_ns;
    return true;
}

void mark_drop(struct mark_pool *pool, const struct mark *mark)
{
    if (pool->count < MARKS_KEPT) {
        pool->marks[pool->count++] = *mark;
        return;
    }
    int mode = relax_capture_mode();
    bool entered = enter_context(mark->context);
    REAL(cuEventDestroy_v2)(mark->event);
    leave_context(entered);
    restore_capture_mode(mode);
}

void marks_end_context(struct mark_pool *pool, CUcontext ended, CUcontext heir)
{
    unsigned kept = 0, count = pool->count;
    for (unsigned i = 0; i < count; i++) {
        struct mark mark = pool->marks[i];
        if (mark.context == ended)
            mark.context = heir;
        if (mark.context)
            pool->marks[kept++] = mark;
    }
    pool->count = kept;
}
