#define _GNU_SOURCE
#include "cuda/stream/executor.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>


enum { FREE_LISTED_MAX = 4096 };

static struct executor executors[GPUS_MAX];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

void executor_lock(struct executor *executor) { pthread_mutex_lock(&executor->mutex); }
void executor_unlock(struct executor *executor) { pthread_mutex_unlock(&executor->mutex); }

void executor_poke(unsigned ordinal)
{
    struct executor *executor = &executors[ordinal];
    if (atomic_load(&executor->running))
        engine_poke(executor->engine, executor->slot);
}

/* --- the list of streams with work ------------------------------------------------------------------------- */

static void activate(CUstream stream)
{
    struct executor *executor = stream->executor;
    if (stream->active)
        return;
    stream->active = true;
    stream->previous_active = NULL;
    stream->next_active = executor->active;
    if (executor->active)
        executor->active->previous_active = stream;
    executor->active = stream;
}

static void deactivate(CUstream stream)
{
    if (stream->previous_active)
        stream->previous_active->next_active = stream->next_active;
    else
        stream->executor->active = stream->next_active;
    if (stream->next_active)
        stream->next_active->previous_active = stream->previous_active;
    stream->active = false;
}

static struct work *take_free(struct executor *executor)
{
    struct work *work = executor->free_work;
    if (work) {
        executor->free_work = work->next;
        executor->free_count--;
        return work;
    }
    return malloc(sizeof *work);
}

static void recycle(struct executor *executor, struct work *work)
{
    if (work->argument_owned)
        free(work->argument);
    mark_drop(work->mark);
    if (executor->free_count >= FREE_LISTED_MAX) {
        free(work);
        return;
    }
    work->next = executor->free_work;
    executor->free_work = work;
    executor->free_count++;
}

/* The first work of a stream is done with. */
static void finish_first(CUstream stream)
{
    struct executor *executor = stream->executor;
    struct work *work = stream->first;
    stream->first = work->next;
    if (!stream->first)
        stream->last = NULL;
    if (work->is_launch && stream->launches-- == LAUNCHES_MAX)
        pthread_cond_broadcast(&executor->room);
    recycle(executor, work);
    if (!stream->first) {
        deactivate(stream);
        if (stream->ending)
            stream_gone(stream);
    }
}

/* --- which work is next -------------------------------------------------------------------------------------- */

static void later(uint64_t *deadline_ns, uint64_t moment_ns)
{
    if (moment_ns < *deadline_ns)
        *deadline_ns = moment_ns;
}

/* The legacy stream waits for earlier work of other streams of its context, and they for it. */
static bool legacy_in_order(CUstream stream)
{
    CUstream legacy = stream->context->streams->legacy;
    uint64_t sequence = stream->first->sequence;
    if (!stream->blocking)
        return true;
    if (stream != legacy)
        return !legacy->first || legacy->first->sequence > sequence;
    for (CUstream other = stream->executor->active; other; other = other->next_active) {
        if (other != legacy && other->blocking && other->context == stream->context && other->first->sequence < sequence)
            return false;
    }
    return true;
}

static void follow_legacy(CUstream stream)
{
    CUstream legacy = stream->context->streams->legacy;
    if (!stream->blocking)
        return;
    if (stream != legacy) {
        if (legacy->tail_ns > stream->tail_ns)
            stream->tail_ns = legacy->tail_ns;
        return;
    }
    for (CUstream other = stream->context->streams->streams; other; other = other->next) {
        if (other->blocking && other->tail_ns > stream->tail_ns)
            stream->tail_ns = other->tail_ns;
    }
}

static bool head_ready(CUstream stream)
{
    return !stream->busy && (stream->first->onlooker || legacy_in_order(stream));
}

static uint64_t ready_ns(const struct CUstream_st *stream)
{
    uint64_t given_ns = stream->first->given_ns;
    return given_ns > stream->tail_ns ? given_ns : stream->tail_ns;
}

/* The stream's first work, if it takes no GPU time. True: it was done, or is being done. */
static bool run_untimed(CUstream stream, uint64_t now_ns, enum mover mover, uint64_t *deadline_ns)
{
    struct executor *executor = stream->executor;
    struct work *work = stream->first;
    bool ending = stream->context->streams->ending;
    if (!work->onlooker)
        follow_legacy(stream);
    switch (work->kind) {
    case WORK_MARK:
        mark_reach(work->mark, ready_ns(stream));
        break;
    case WORK_WAIT:
        if (!mark_known(work->mark, (unsigned)executor->device->ordinal)) {
            if (!ending)
                return false;
        } else if (atomic_load(&work->mark->end_ns) > stream->tail_ns)
            stream->tail_ns = atomic_load(&work->mark->end_ns);
        break;
    case WORK_VALUE:
        if (stream->tail_ns > now_ns) {
            later(deadline_ns, stream->tail_ns);
            return false;
        }
        if (!work->test(work->argument) && !ending) {
            later(deadline_ns, now_ns + LOOK_AGAIN_NS);
            return false;
        }
        stream->tail_ns = now_ns;
        break;
    case WORK_HOST:
        if (stream->tail_ns > now_ns) {
            later(deadline_ns, stream->tail_ns);
            return false;
        }
        stream->busy = hostcall(work->call, work->argument, stream_hostcall_returned, stream);
        if (!stream->busy)
            later(deadline_ns, now_ns + LOOK_AGAIN_NS); /* no memory, no thread: perhaps then */
        return stream->busy;
    case WORK_AFTER:
        if (mover != MOVER_THREAD) {
            later(deadline_ns, now_ns);
            return false;
        }
        stream->busy = true;
        executor_unlock(executor);
        work->call(work->argument);
        executor_lock(executor);
        stream->busy = false;
        break;
    case WORK_TIMED:
        return false;
    }
    finish_first(stream);
    return true;
}

void stream_hostcall_returned(void *argument)
{
    CUstream stream = argument;
    struct executor *executor = stream->executor;
    executor_lock(executor);
    stream->busy = false;
    stream->tail_ns = monotonic_ns();
    finish_first(stream);
    executor_move(executor, MOVER_GIVES);
    executor_unlock(executor);
}

/* Does all that takes no GPU time. A pass over the list restarts once something was done: the list has changed. */
static void run_all_untimed(struct executor *executor, enum mover mover, uint64_t *deadline_ns)
{
    CUstream stream = executor->active;
    while (stream) {
        bool done = stream->first->kind != WORK_TIMED && head_ready(stream) &&
                    run_untimed(stream, monotonic_ns(), mover, deadline_ns);
        stream = done ? executor->active : stream->next_active;
    }
}

/* Of the streams whose first work wants GPU time, the one whose work was submitted first, higher priority before. */
static CUstream next_timed(struct executor *executor, uint64_t now_ns, uint64_t *deadline_ns)
{
    CUstream chosen = NULL;
    for (CUstream stream = executor->active; stream; stream = stream->next_active) {
        if (stream->first->kind != WORK_TIMED || !head_ready(stream))
            continue;
        follow_legacy(stream);
        /* Only what another GPU or a value does ends later than this process's piece. */
        if (stream->tail_ns > now_ns && stream->tail_ns > executor->cursor_ns) {
            later(deadline_ns, stream->tail_ns);
            continue;
        }
        if (!chosen || stream->priority < chosen->priority ||
            (stream->priority == chosen->priority && stream->first->sequence < chosen->first->sequence))
            chosen = stream;
    }
    return chosen;
}

/* --- GPU time ------------------------------------------------------------------------------------------------ */

/* How much work was there at `start_ns` and needs nothing but GPU time; enough for a slice at most. `more`: beyond it. */
static uint64_t runnable_ns(struct executor *executor, uint64_t start_ns, bool *more)
{
    uint64_t sum_ns = 0;
    *more = false;
    for (CUstream stream = executor->active; stream; stream = stream->next_active) {
        if (stream->busy)
            continue;
        for (struct work *work = stream->first; work; work = work->next) {
            bool untimed = work->kind == WORK_MARK ||
                           (work->kind == WORK_WAIT && mark_known(work->mark, (unsigned)executor->device->ordinal));
            if (work->kind != WORK_TIMED && !untimed)
                break;
            if (work->given_ns > start_ns) {
                *more |= !untimed;
                break;
            }
            if (work->kind == WORK_TIMED)
                sum_ns += work->duration_ns - work->done_ns;
            if (sum_ns > ENGINE_SLICE_NS) {
                *more = true;
                return ENGINE_SLICE_NS;
            }
        }
    }
    return sum_ns;
}

/* Makes a piece of the calendar this process's. False: not yet; *deadline_ns says when to ask again. */
static bool have_piece(struct executor *executor, CUstream stream, uint64_t now_ns, uint64_t *deadline_ns)
{
    uint64_t wanted_ns = ready_ns(stream), start_ns;
    bool more;
    if (executor->cursor_ns < executor->piece_end_ns && wanted_ns < executor->piece_end_ns)
        return true;
    if (executor->piece_end_ns > now_ns) {
        later(deadline_ns, executor->piece_end_ns);
        if (!executor->wanting)
            engine_announce(executor->engine, executor->slot, wanted_ns);
        executor->wanting = true;
        return false;
    }
    uint64_t calendar_ns = atomic_load(&executor->engine->calendar_ns);
    uint64_t length_ns = runnable_ns(executor, calendar_ns > wanted_ns ? calendar_ns : wanted_ns, &more);
    uint64_t least_ns = stream->first->duration_ns - stream->first->done_ns;
    if (length_ns < least_ns)
        length_ns = least_ns;
    if (!engine_reserve(&executor->device->state, executor->slot, wanted_ns, length_ns, more, &executor->wait, &start_ns,
                        &executor->piece_end_ns)) {
        executor->wanting = true;
        later(deadline_ns, executor->wait.until_ns);
        return false;
    }
    executor->cursor_ns = start_ns;
    executor->wanting = more || length_ns > ENGINE_SLICE_NS;
    return true;
}

/* Runs (a part of) the stream's first work in the piece that this process has. */
static void run_timed(struct executor *executor, CUstream stream)
{
    struct work *work = stream->first;
    uint64_t start_ns = ready_ns(stream);
    if (start_ns < executor->cursor_ns)
        start_ns = executor->cursor_ns;
    uint64_t part_ns = work->duration_ns - work->done_ns;
    if (part_ns > executor->piece_end_ns - start_ns)
        part_ns = executor->piece_end_ns - start_ns;
    executor->cursor_ns = stream->tail_ns = start_ns + part_ns;
    work->done_ns += part_ns;
    state_add_busy(executor->device->state.state, executor->slot, start_ns, start_ns + part_ns);
    if (work->act) {
        stream->busy = true;
        if (!work->small && executor->wanting) {
            engine_withdraw(executor->device->state.state, executor->slot);
            executor->wanting = false;
        }
        executor_unlock(executor);
        work->act(work->argument, work->done_ns, work->duration_ns);
        executor_lock(executor);
        stream->busy = false;
    }
    if (work->done_ns == work->duration_ns)
        finish_first(stream);
}

/* What is left of a piece when no work is that could use it: not this process's any more, unless another's lies behind
 * it. Others need not leave the turn free. */
static void end_piece(struct executor *executor)
{
    if (executor->cursor_ns < executor->piece_end_ns &&
        engine_give_back(executor->engine, executor->slot, executor->piece_end_ns, executor->cursor_ns))
        executor->piece_end_ns = executor->cursor_ns;
    if (executor->wanting) {
        engine_withdraw(executor->device->state.state, executor->slot);
        executor->wanting = false;
    }
}

/* Does what can be done now; returns when something more can be. Under lock, which it lets go while work acts. */
static uint64_t step(struct executor *executor, enum mover mover)
{
    for (;;) {
        uint64_t deadline_ns = ENGINE_NEVER;
        run_all_untimed(executor, mover, &deadline_ns);
        uint64_t now_ns = monotonic_ns();
        CUstream stream = next_timed(executor, now_ns, &deadline_ns);
        if (!stream) {
            end_piece(executor);
            return deadline_ns;
        }
        if (mover == MOVER_GIVES && stream->first->act && !stream->first->small)
            return now_ns; /* a thread that submits work is not held up by other work's bytes */
        if (!have_piece(executor, stream, now_ns, &deadline_ns))
            return deadline_ns;
        run_timed(executor, stream);
    }
}

void executor_move(struct executor *executor, enum mover mover)
{
    uint64_t until_ns = step(executor, mover);
    if (until_ns < executor->thread_until_ns) {
        executor->thread_until_ns = until_ns; /* one poke is enough */
        engine_poke(executor->engine, executor->slot);
    }
}

static void *run(void *argument)
{
    struct executor *executor = argument;
    sleep_precisely();
    executor_lock(executor);
    for (;;) {
        executor->thread_until_ns = 0;
        uint32_t seen = engine_seen(executor->engine, executor->slot);
        uint64_t until_ns = step(executor, MOVER_THREAD);
        executor->thread_until_ns = until_ns;
        executor_unlock(executor);
        if (until_ns == ENGINE_NEVER || until_ns > monotonic_ns())
            engine_sleep(executor->engine, executor->slot, seen, until_ns);
        executor_lock(executor);
    }
    return NULL;
}

/* --- from outside ---------------------------------------------------------------------------------------------- */

struct executor *executor_of(struct device *device)
{
    struct executor *executor = &executors[device->ordinal];
    sigset_t all, before;
    if (atomic_load(&executor->running))
        return executor;
    pthread_mutex_lock(&making);
    if (!atomic_load(&executor->running)) {
        executor->device = device;
        executor->engine = engine_of(device->state.state);
        executor->slot = (unsigned)device->slot;
        executor->thread_until_ns = ENGINE_NEVER;
        pthread_mutex_init(&executor->mutex, NULL);
        pthread_cond_init(&executor->room, NULL);
        /* The program's signals are the program's threads'. */
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        int failed = pthread_create(&executor->thread, NULL, run, executor);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        atomic_store(&executor->running, !failed);
        if (failed)
            executor = NULL;
    }
    pthread_mutex_unlock(&making);
    return executor;
}

bool stream_idle(CUstream stream, uint64_t now_ns)
{
    const struct work *work = stream->first;
    while (work && work->onlooker)
        work = work->next;
    return !work && !stream->busy && stream->tail_ns <= now_ns;
}

/* A program that gives work faster than the GPU does it waits here. */
static void await_room(CUstream stream)
{
    while (stream->launches >= LAUNCHES_MAX)
        pthread_cond_wait(&stream->executor->room, &stream->executor->mutex);
}

bool stream_append(CUstream stream, const struct work *submitted, uint64_t now_ns)
{
    struct executor *executor = stream->executor;
    struct work *work = take_free(executor);
    if (!work)
        return false;
    *work = *submitted;
    work->next = NULL;
    work->done_ns = 0;
    work->given_ns = now_ns;
    work->sequence = ++executor->sequence;
    stream->launches += work->is_launch;
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    activate(stream);
    return true;
}

CUresult stream_give_all(CUstream stream, const struct work *submitted, size_t count)
{
    struct executor *executor = stream->executor;
    CUresult result = CUDA_SUCCESS;
    executor_lock(executor);
    if (count && submitted[0].is_launch)
        await_room(stream);
    bool behind = stream->first;
    uint64_t now_ns = monotonic_ns();
    for (size_t i = 0; i < count; i++) {
        if (!stream_append(stream, &submitted[i], now_ns))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* While its thread waits for the turn, or the end of the piece before it, more work changes nothing: it will be looked at then. */
    bool thread_waits = executor->thread_until_ns && executor->thread_until_ns != ENGINE_NEVER;
    if (!(executor->wanting && thread_waits && (behind || (count && submitted[0].kind == WORK_TIMED))))
        executor_move(executor, MOVER_GIVES);
    executor_unlock(executor);
    return result;
}

CUresult stream_give(CUstream stream, const struct work *work)
{
    return stream_give_all(stream, work, 1);
}
