/* What contexts and memory ask of the part that runs work: streams and the engine. */
#ifndef FAKEGPU_CUDA_STREAM_CONTEXT_WORK_H
#define FAKEGPU_CUDA_STREAM_CONTEXT_WORK_H

#include "interface/cuda.h"

struct memset_rows;

/* Makes context->streams; the default streams exist from here on. */
CUresult engine_context_created(CUcontext context);

/* Waits (bounded) for the context's work, ends its streams and events, frees context->streams. */
void engine_context_ending(CUcontext context);

/* Waits until the context's work is done. */
CUresult engine_synchronize(CUcontext context);

/* Runs `function` once everything submitted to the stream before is done, in the stream's order, and returns at once.
 * `stream` is as the caller of the interface gave it (NULL, legacy and per-thread handles too). */
CUresult engine_after(CUstream stream, void (*function)(void *), void *argument);

/* Waits until everything submitted to the stream is done. */
CUresult engine_stream_synchronize(CUstream stream);

/* The context of a stream handle, the current one for NULL and the default streams; an error for a stale handle. */
CUresult engine_stream_context(CUstream stream, CUcontext *context);

/* Gives a checked memset to the stream, as a node where it is being captured. */
CUresult engine_memset(CUstream stream, const struct memset_rows *rows);

#endif
