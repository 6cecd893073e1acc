#define _GNU_SOURCE
#include "compute/compute.h"

#include "compute/estimate.h"
#include "compute/flow.h"
#include "compute/wait.h"
#include "compute/watch.h"
#include "driver/gpus.h"
#include "driver/real.h"

/* Charged for work of which nothing is known and which cannot be measured now. */
#define UNMEASURED_NS UINT64_C(100000)
/* How many pieces of a kind may come before the next mark, once the first was measured; and from how many on they are put without a look. */
enum { TRUSTED_AT_FIRST = 8, TRUSTED_UNSEEN = 48 };
/* The shortest that anything is taken for of which only like work is known. */
#define LIKELY_LEAST_NS UINT64_C(2000)

/* The only GPU, if it is limited: then it is known to which GPU a stream belongs. -1: more than one. */
static _Atomic int only_gpu = -2;

static int find_only_gpu(void)
{
    int count = 0, gpu = -1;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return -1; /* not a fact yet */
    if (count != 1 || gpu_of_device(0, &gpu) != CUDA_SUCCESS)
        gpu = -1;
    atomic_store(&only_gpu, gpu);
    return gpu;
}

static CUresult find_gpu(CUstream stream, int *gpu)
{
    int only = atomic_load_explicit(&only_gpu, memory_order_relaxed);
    if (only == -2)
        only = find_only_gpu();
    if (only >= 0) {
        *gpu = only;
        return CUDA_SUCCESS;
    }
    CUresult result = gpu_of_stream(stream, gpu);
    if (result == CUDA_ERROR_SYSTEM_NOT_READY)
        return result;
    if (result != CUDA_SUCCESS)
        *gpu = GPU_NOT_ALLOCATED; /* no context, a bad stream: the driver refuses it in its own words */
    return CUDA_SUCCESS;
}

/* Whether this piece shall be measured: its kind is unknown, it is long, or there was no mark for a while, or for as many pieces as its kind is
 * trusted for. Behind a long one
 * without a mark the next one, in another stream, would seem to have begun before it could. */
static bool wants_mark(const struct flow *flow, bool known, uint64_t estimated_ns, unsigned trusted, uint64_t now_ns)
{
    return flow->mark_count < FLOW_MARKS &&
           (!known || estimated_ns >= FLOW_MARK_NS || flow->launches - flow->marked_launches >= trusted ||
            flow->put_ns - flow->marked_put_ns >= FLOW_MARK_NS || now_ns - flow->marked_at_ns >= FLOW_MARK_NS);
}

/* How long it takes: as such work did, or as like work makes likely. */
static bool estimate(const struct piece *piece, uint64_t *time_ns)
{
    if (estimate_of(piece->estimate, piece->amount, time_ns))
        return true;
    if (piece->like == ESTIMATE_NONE || !estimate_of(piece->like, piece->like_amount, time_ns))
        return false;
    if (*time_ns < LIKELY_LEAST_NS)
        *time_ns = LIKELY_LEAST_NS;
    return true;
}

/* How many pieces may follow each other without a mark: few, until some were measured and took as long as they were taken for. */
static unsigned trusted_launches(const struct piece *piece)
{
    unsigned own = estimate_trust(piece->estimate), like = piece->like == ESTIMATE_NONE ? 0 : estimate_trust(piece->like);
    return TRUSTED_AT_FIRST * (1 + (own > like ? own : like));
}

static void enter(struct flow *flow, struct piece *piece)
{
    uint64_t estimated_ns, now_ns;
    unsigned trusted = trusted_launches(piece);
    flow_note_stream(flow, piece->stream);
    bool known = estimate(piece, &estimated_ns);
    piece->charged_ns = known ? estimated_ns * flow->scale / 65536u : 0;
    if (known && trusted >= TRUSTED_UNSEEN &&
        flow_put_batched(flow, piece->charged_ns, estimated_ns, estimate_uneven(piece->estimate)))
        return;
    flow_settle_batch(flow);
    now_ns = flow_wait(flow, turn_now_ns(), 3 * trusted);
    /* Others may have learned what it takes meanwhile. */
    known = estimate(piece, &estimated_ns);
    piece->known = known;
    piece->charged_ns = known ? estimated_ns * flow->scale / 65536u : 0;
    if (wants_mark(flow, known, estimated_ns, trusted, now_ns)) {
        struct mark before;
        piece->marked = true;
        piece->began_ns = turn_now_ns();
        piece->idle = !flow_ahead_ns(flow, piece->began_ns);
        piece->measured = mark_put(&flow->pool, piece->stream, &before);
        if (piece->measured) {
            piece->before_event = before.event;
            piece->before_context = before.context;
        }
        flow->marked_at_ns = now_ns;
    }
    if (!known && !piece->measured)
        piece->charged_ns = UNMEASURED_NS;
    flow_put(flow, now_ns, piece->charged_ns, known ? estimated_ns : FLOW_UNKNOWN_NS,
             estimate_uneven(piece->estimate));
    if (piece->marked) {
        flow->marked_put_ns = flow->put_ns;
        flow->marked_launches = flow->launches;
    }
    flow_allow_batch(flow, now_ns);
    piece->launches = flow->launches;
}

static unsigned place_of(uint64_t key, enum work work, int gpu)
{
    return estimate_place(key * 31 + (uint64_t)work * 7919 + (uint64_t)gpu);
}

CUresult compute_enter(struct piece *piece, enum work work, struct kind kind, CUstream stream)
{
    piece->gpu = GPU_NOT_ALLOCATED;
    if (!flows_limited())
        return CUDA_SUCCESS;
    CUresult refused = find_gpu(stream, &piece->gpu);
    if (refused != CUDA_SUCCESS || piece->gpu < 0)
        return refused;
    if (stream_is_captured(stream)) {
        piece->gpu = GPU_NOT_ALLOCATED;
        return CUDA_SUCCESS;
    }
    struct flow *flow = flow_lock(piece->gpu);
    if (!flow) {
        piece->gpu = GPU_NOT_ALLOCATED;
        return CUDA_SUCCESS;
    }
    piece->stream = stream;
    piece->marked = piece->measured = false;
    piece->waited = work == WORK_COPY_WAITED;
    piece->amount = kind.size ? kind.size : ESTIMATE_ONE;
    piece->estimate = place_of(kind.key, work, piece->gpu);
    piece->like_amount = kind.like_size;
    piece->like = kind.like_size ? place_of(kind.like, work, piece->gpu) : ESTIMATE_NONE;
    enter(flow, piece);
    flow_unlock(flow);
    return CUDA_SUCCESS;
}

/* The driver has taken it: the mark behind it. */
static void mark(struct flow *flow, struct piece *piece)
{
    struct mark before = {piece->before_event, piece->before_context}, after;
    bool alone = piece->launches == flow->launches; /* nothing of another thread came between the marks */
    /* A GPU without work waits for ours as long as this thread takes between the marks. */
    uint64_t between_ns = piece->measured && !piece->waited ? turn_now_ns() - piece->began_ns : 0;
    if (flow->mark_count < FLOW_MARKS && mark_put(&flow->pool, piece->stream, &after)) {
        uint64_t now_ns = turn_now_ns();
        uint64_t began_ns = atomic_load(&flow->page->began_ns);
        struct marked marked = {
            .before = before, .after = after, .measured = piece->measured, .known = piece->known,
            .sure = alone && now_ns > began_ns + FLOW_UNSURE_NS,
            .at_ns = now_ns, .began_ns = began_ns, .between_ns = between_ns, .idle = piece->idle, .estimate = piece->estimate,
            .amount = piece->amount, .like = piece->like, .like_amount = piece->like_amount, .charged_ns = piece->charged_ns,
        };
        if (flow_mark(flow, now_ns, &marked))
            flow_watch();
    } else if (piece->measured) {
        mark_drop(&flow->pool, &before);
    }
}

CUresult compute_leave(struct piece *piece, CUresult result)
{
    if (piece->gpu < 0 || (result == CUDA_SUCCESS && !piece->marked))
        return result;
    struct flow *flow = flow_lock(piece->gpu);
    if (!flow)
        return result;
    if (result == CUDA_SUCCESS) {
        mark(flow, piece);
    } else {
        struct mark before = {piece->before_event, piece->before_context};
        flow_correct(flow, -(int64_t)piece->charged_ns);
        flow->paid_ns -= piece->charged_ns;
        if (piece->measured)
            mark_drop(&flow->pool, &before);
    }
    flow_unlock(flow);
    return result;
}
