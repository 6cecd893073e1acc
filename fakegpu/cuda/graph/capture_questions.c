/* Where a capture stands, and setting it there. */
#include "cuda/graph/capture.h"

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };
enum { SET_DEPENDENCIES = 1 };

static _Thread_local int thread_mode;

static int status_of(CUstream stream)
{
    if (!stream->capture)
        return STATUS_NONE;
    return stream->capture->at.recording->invalid ? STATUS_INVALIDATED : STATUS_ACTIVE;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    STREAM(handle, stream);
    REQUIRE_CU(status);
    pthread_mutex_lock(&capture_mutex);
    *status = status_of(stream);
    pthread_mutex_unlock(&capture_mutex);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **nodes, size_t *count)
{
    STREAM(handle, stream);
    REQUIRE_CU(status);
    pthread_mutex_lock(&capture_mutex);
    const struct capture *capture = stream->capture;
    *status = status_of(stream);
    if (capture && *status == STATUS_ACTIVE) {
        if (id)
            *id = capture->at.recording->id;
        if (graph)
            *graph = capture->at.recording->graph;
        if (nodes)
            *nodes = capture->at.nodes;
        if (count)
            *count = capture->at.count;
    }
    pthread_mutex_unlock(&capture_mutex);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags)
{
    STREAM(handle, stream);
    REQUIRE_CU((nodes || !count) && flags <= SET_DEPENDENCIES);
    pthread_mutex_lock(&capture_mutex);
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture) {
        bool done = flags == SET_DEPENDENCIES ? position_set(&stream->capture->at, nodes, count)
                                              : position_add(&stream->capture->at, nodes, count);
        result = done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&capture_mutex);
    return result;
}

static bool forbids(const struct recording *recording, bool in_relaxed_threads)
{
    if (recording->mode == MODE_RELAXED || (thread_mode == MODE_RELAXED && !in_relaxed_threads))
        return false;
    return pthread_equal(recording->thread, pthread_self()) ||
           (recording->mode == MODE_GLOBAL && thread_mode != MODE_THREAD_LOCAL);
}

/* As an H200 with driver 580 was seen to do it: the call returns 900, and the capture is invalid from then on. */
bool engine_capture_forbids(bool in_relaxed_threads)
{
    bool forbidden = false;
    if (!atomic_load(&capture_count))
        return false;
    pthread_mutex_lock(&capture_mutex);
    for (struct capture *capture = captures; capture; capture = capture->next) {
        if (forbids(capture->at.recording, in_relaxed_threads))
            forbidden = capture->at.recording->invalid = true;
    }
    pthread_mutex_unlock(&capture_mutex);
    return forbidden;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    REQUIRE_CU(mode && *mode >= MODE_GLOBAL && *mode <= MODE_RELAXED);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
