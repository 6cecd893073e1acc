/* What contexts and memory ask of the part that runs work: streams and the engine.
 *
 * cuda/stream/hooks.c answers each of them weakly, as if no stream ever had work; the engine's own definitions take their place. */
#ifndef FAKEGPU_CUDA_HOOKS_H
#define FAKEGPU_CUDA_HOOKS_H

#include "cuda/memory/memory.h"

/* Makes context->streams; the default streams exist from here on. */
CUresult engine_context_created(CUcontext context);

/* Waits (bounded) for the context's work, ends its streams and events, frees context->streams. */
void engine_context_ending(CUcontext context);

/* Waits until the context's work is done. */
CUresult engine_synchronize(CUcontext context);

/* Runs `function` once everything given to the stream before is done, in the stream's order, and returns at once.
 * `stream` is as the caller of the interface gave it (NULL, legacy and per-thread handles too). */
CUresult engine_after(CUstream stream, void (*function)(void *), void *argument);

/* The same, with GPU time taken first. */
CUresult engine_work(CUstream stream, uint64_t duration_ns, void (*function)(void *), void *argument);

/* Waits until everything given to the stream is done. */
CUresult engine_stream_synchronize(CUstream stream);

/* The context of a stream handle, the current one for NULL and the default streams; an error for a stale handle. */
CUresult engine_stream_context(CUstream stream, CUcontext *context);

/* Whether the stream is being captured; stream-ordered memory then becomes nodes of its graph (which the engine's part
 * adds): these two are asked first and return CUDA_ERROR_NOT_READY where the stream is not being captured. */
CUresult engine_capture_alloc(CUstream stream, size_t bytes, CUdeviceptr *address);
/* Whether a call that is unsafe beside captures is forbidden in this thread at present; the captures that forbid it fail. Threads whose mode is
 * relaxed may make all but those that wait for a whole context. */
bool engine_capture_forbids(bool in_relaxed_threads);
#define REFUSE_BESIDE_CAPTURES()                          \
    do {                                                  \
        if (engine_capture_forbids(false))                \
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; \
    } while (0)
CUresult engine_capture_free(CUstream stream, CUdeviceptr address);

/* Gives a checked memset to the stream, as a node where it is being captured. */
CUresult engine_memset(CUstream stream, const struct memset_rows *rows);

#endif
