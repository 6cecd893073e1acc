/* Capturing streams: work submitted to them becomes nodes, and events carry the order from stream to stream. */
#include "cuda/stream/capturing.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/graph/capture.h"

enum { EXTERNAL = 1 };

/* Of an event. */
struct capture_point {
    struct position at;
};

pthread_mutex_t capture_mutex = PTHREAD_MUTEX_INITIALIZER;
struct capture *captures;
_Atomic int capture_count;
static uint64_t last_id;

/* --- positions -------------------------------------------------------------------------------------------------- */

static void leave(struct recording *recording)
{
    if (--recording->references)
        return;
    if (recording->graph && !recording->graph_is_callers)
        graph_free(recording->graph);
    free(recording);
}

bool position_set(struct position *at, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *copy = malloc((count + 1) * sizeof *copy);
    if (!copy)
        return false;
    if (count)
        memcpy(copy, nodes, count * sizeof *copy);
    free(at->nodes);
    at->nodes = copy;
    at->count = count;
    return true;
}

bool position_add(struct position *at, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *grown = realloc(at->nodes, (at->count + count + 1) * sizeof *grown);
    if (!grown)
        return false;
    at->nodes = grown;
    for (size_t i = 0; i < count; i++) {
        bool there = false;
        for (size_t j = 0; j < at->count; j++)
            there |= at->nodes[j] == nodes[i];
        if (!there)
            at->nodes[at->count++] = nodes[i];
    }
    return true;
}

static bool enter(CUstream stream, struct recording *recording, const CUgraphNode *nodes, size_t count)
{
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture || !position_set(&capture->at, nodes, count)) {
        free(capture);
        return false;
    }
    capture->at.recording = recording;
    recording->references++;
    capture->stream = stream;
    capture->next = captures;
    captures = capture;
    atomic_fetch_add(&capture_count, 1);
    stream->capture = capture;
    if (stream->blocking)
        atomic_fetch_add(&stream->context->streams->capturing, 1);
    return true;
}

static void remove_capture(struct capture *capture)
{
    for (struct capture **at = &captures; *at; at = &(*at)->next) {
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    }
    atomic_fetch_sub(&capture_count, 1);
    capture->stream->capture = NULL;
    if (capture->stream->blocking)
        atomic_fetch_sub(&capture->stream->context->streams->capturing, 1);
    leave(capture->at.recording);
    free(capture->at.nodes);
    free(capture);
}

static void forget_point(CUevent event)
{
    struct capture_point *point = event->point;
    event->point = NULL;
    if (!point)
        return;
    leave(point->at.recording);
    free(point->at.nodes);
    free(point);
}

void capture_forget_event(CUevent event)
{
    if (!event->point)
        return;
    pthread_mutex_lock(&capture_mutex);
    forget_point(event);
    pthread_mutex_unlock(&capture_mutex);
}

/* --- work submitted to a capturing stream -------------------------------------------------------------------------- */

/* Under lock. Takes the action over, in any case. */
static CUresult append(CUstream stream, CUresult ready, struct action *action)
{
    struct capture *capture = stream->capture;
    CUgraphNode node;
    if (ready != CUDA_SUCCESS) {
        if (capture)
            capture->at.recording->invalid = true;
        return ready;
    }
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (capture && !capture->at.recording->invalid)
        result = graph_add(capture->at.recording->graph, &node, capture->at.nodes, capture->at.count, action);
    if (result != CUDA_SUCCESS)
        action_free(action);
    else if (!position_set(&capture->at, &node, 1))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

static CUresult append_locked(CUstream stream, CUresult ready, struct action *action)
{
    pthread_mutex_lock(&capture_mutex);
    CUresult result = append(stream, ready, action);
    pthread_mutex_unlock(&capture_mutex);
    return result;
}

CUresult capture_kernel(CUstream stream, const struct launch *launch)
{
    struct action action;
    const CUDA_KERNEL_NODE_PARAMS node_params = {.func = launch->function,
                                                 .gridDimX = launch->grid[0],
                                                 .gridDimY = launch->grid[1],
                                                 .gridDimZ = launch->grid[2],
                                                 .blockDimX = launch->block[0],
                                                 .blockDimY = launch->block[1],
                                                 .blockDimZ = launch->block[2],
                                                 .sharedMemBytes = launch->shared_bytes,
                                                 .kernelParams = launch->parameters,
                                                 .extra = launch->extra};
    return append_locked(stream, action_kernel(&node_params, stream->context, launch->cooperative, &action), &action);
}

CUresult capture_copy(CUstream stream, const struct copy *copy)
{
    const CUDA_MEMCPY3D node_params = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = (CUdeviceptr)(uintptr_t)copy->from,
        .srcPitch = copy->from_pitch,
        .srcHeight = copy->from_pitch ? copy->from_slice / copy->from_pitch : 0,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = (CUdeviceptr)(uintptr_t)copy->to,
        .dstPitch = copy->to_pitch,
        .dstHeight = copy->to_pitch ? copy->to_slice / copy->to_pitch : 0,
        .WidthInBytes = copy->width,
        .Height = copy->rows,
        .Depth = copy->slices,
    };
    struct action action;
    return append_locked(stream, action_memcpy(&node_params, stream->context, &action), &action);
}

CUresult capture_memset(CUstream stream, const struct memset_rows *rows)
{
    struct action action;
    const CUDA_MEMSET_NODE_PARAMS node_params = {rows->address,       rows->pitch, rows->value,
                                                 rows->element_bytes, rows->width, rows->height};
    return append_locked(stream, action_memset(&node_params, stream->context, &action), &action);
}

CUresult capture_host(CUstream stream, CUhostFn function, void *argument)
{
    struct action action = {.type = NODE_HOST, .host = {function, argument}};
    return append_locked(stream, CUDA_SUCCESS, &action);
}

CUresult capture_graph(CUstream stream, CUgraph graph)
{
    struct action action = {.type = NODE_GRAPH, .graph = graph_copy(graph)};
    if (!action.graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    action.graph->is_child = true;
    return append_locked(stream, CUDA_SUCCESS, &action);
}

CUresult engine_capture_alloc(CUstream handle, size_t bytes, CUdeviceptr *address)
{
    struct action action;
    STREAM(handle, stream);
    if (!stream->capture)
        return CUDA_ERROR_NOT_READY;
    CUresult ready = action_alloc(stream->context->device, bytes, &action);
    if (ready == CUDA_SUCCESS)
        *address = action.memory->address;
    return append_locked(stream, ready, &action);
}

CUresult engine_capture_free(CUstream handle, CUdeviceptr address)
{
    STREAM(handle, stream);
    if (!stream->capture)
        return CUDA_ERROR_NOT_READY;
    struct action action = {.type = NODE_FREE, .freed = address};
    return append_locked(stream, CUDA_SUCCESS, &action);
}

CUresult capture_unsupported(CUstream stream)
{
    pthread_mutex_lock(&capture_mutex);
    if (stream->capture)
        stream->capture->at.recording->invalid = true;
    pthread_mutex_unlock(&capture_mutex);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_implicit(CUcontext context)
{
    pthread_mutex_lock(&capture_mutex);
    for (struct capture *capture = captures; capture; capture = capture->next) {
        if (capture->stream->context == context && capture->stream->blocking)
            capture->at.recording->invalid = true;
    }
    pthread_mutex_unlock(&capture_mutex);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

void capture_abandon(CUstream stream)
{
    pthread_mutex_lock(&capture_mutex);
    if (stream->capture) {
        struct recording *recording = stream->capture->at.recording;
        recording->invalid = true;
        if (recording->origin == stream)
            recording->origin = NULL;
        remove_capture(stream->capture);
    }
    pthread_mutex_unlock(&capture_mutex);
}

/* --- events ------------------------------------------------------------------------------------------------------------ */

CUresult capture_record(CUstream stream, CUevent event, unsigned flags)
{
    if (flags & EXTERNAL) {
        struct action action = {.type = NODE_EVENT_RECORD, .event = event};
        return append_locked(stream, CUDA_SUCCESS, &action);
    }
    struct capture_point *point = calloc(1, sizeof *point);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&capture_mutex);
    struct capture *capture = stream->capture;
    if (point && capture && position_set(&point->at, capture->at.nodes, capture->at.count)) {
        forget_point(event);
        point->at.recording = capture->at.recording;
        point->at.recording->references++;
        event->point = point;
        point = NULL;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&capture_mutex);
    free(point);
    return result;
}

static CUresult join(CUstream stream, CUevent event)
{
    struct capture_point *point = event->point;
    struct capture *capture = stream->capture;
    if (!point || !point->at.recording->origin) {
        /* The event was recorded outside of the capture, or in one that is over. */
        if (capture)
            capture->at.recording->invalid = true;
        return capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_CAPTURED_EVENT;
    }
    bool done;
    if (!capture && stream == stream->context->streams->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!capture) {
        done = enter(stream, point->at.recording, point->at.nodes, point->at.count);
    } else if (capture->at.recording != point->at.recording) {
        capture->at.recording->invalid = point->at.recording->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    } else {
        done = position_add(&capture->at, point->at.nodes, point->at.count);
    }
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_wait(CUstream stream, CUevent event, unsigned flags)
{
    if (stream->capture && (flags & EXTERNAL)) {
        struct action action = {.type = NODE_WAIT_EVENT, .event = event};
        return append_locked(stream, CUDA_SUCCESS, &action);
    }
    pthread_mutex_lock(&capture_mutex);
    CUresult result = join(stream, event);
    pthread_mutex_unlock(&capture_mutex);
    return result;
}

/* --- beginning and ending ----------------------------------------------------------------------------------------------- */

static CUresult begin(CUstream stream, CUgraph graph, const CUgraphNode *nodes, size_t count, int mode)
{
    REQUIRE_CU(mode >= MODE_GLOBAL && mode <= MODE_RELAXED);
    if (stream == stream->context->streams->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct recording *recording = calloc(1, sizeof *recording);
    if (!recording)
        return CUDA_ERROR_OUT_OF_MEMORY;
    recording->references = 1;
    recording->graph = graph ? graph : graph_make();
    recording->graph_is_callers = graph;
    recording->origin = stream;
    recording->mode = mode;
    recording->thread = pthread_self();
    recording->id = ++last_id;
    bool entered = recording->graph && enter(stream, recording, nodes, count);
    leave(recording);
    return entered ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    STREAM(handle, stream);
    pthread_mutex_lock(&capture_mutex);
    CUresult result = begin(stream, NULL, NULL, 0, mode);
    pthread_mutex_unlock(&capture_mutex);
    return result;
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *nodes,
                                            const CUgraphEdgeData *edges, size_t count, int mode)
{
    (void)edges;
    STREAM(handle, stream);
    REQUIRE_CU(graph_valid(graph) && (nodes || !count));
    pthread_mutex_lock(&capture_mutex);
    CUresult result = begin(stream, graph, nodes, count, mode);
    pthread_mutex_unlock(&capture_mutex);
    return result;
}

/* Whether all that other streams of the capture did comes before where its first stream stands now. */
static bool joined(const struct capture *origin)
{
    for (struct capture *other = captures; other; other = other->next) {
        if (other == origin || other->at.recording != origin->at.recording)
            continue;
        for (size_t i = 0; i < other->at.count; i++) {
            if (!graph_reaches(origin->at.recording->graph, origin->at.nodes, origin->at.count, other->at.nodes[i]))
                return false;
        }
    }
    return true;
}

static CUresult end(CUstream stream, CUgraph *graph)
{
    struct capture *capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct recording *recording = capture->at.recording;
    if (recording->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (recording->mode != MODE_RELAXED && !pthread_equal(recording->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = CUDA_SUCCESS;
    if (recording->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS) {
        *graph = recording->graph;
        recording->graph = NULL;
    }
    recording->origin = NULL;
    recording->references++;
    for (struct capture *other = captures, *next; other; other = next) {
        next = other->next;
        if (other->at.recording == recording)
            remove_capture(other);
    }
    leave(recording);
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    STREAM(handle, stream);
    REQUIRE_CU(graph);
    *graph = NULL;
    pthread_mutex_lock(&capture_mutex);
    CUresult result = end(stream, graph);
    pthread_mutex_unlock(&capture_mutex);
    return result;
}
