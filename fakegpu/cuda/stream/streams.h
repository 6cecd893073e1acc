/* Streams, from a handle as the program gave it to the stream behind it. */
#ifndef FAKEGPU_CUDA_STREAM_STREAMS_H
#define FAKEGPU_CUDA_STREAM_STREAMS_H

#include "cuda/stream/executor.h"
#include "interface/cuda_work.h"

#define STREAM_MAGIC UINT32_C(0x7374726d)

/* The stream behind a handle: of the current context for the default ones. CUDA_ERROR_INVALID_HANDLE for a stale one. */
CUresult stream_resolve(CUstream handle, CUstream *stream);

/* A number of the calling thread, from 1 on; one that ends leaves its number, and its default streams, to a later one.
 * 0: no memory. */
uint64_t thread_number(void);

/* A stream of the context, which may be a part of one. */
CUresult stream_make(CUcontext context, unsigned flags, int priority, CUstream *made);

/* The part ends: its streams can only be destroyed from here on. */
void streams_detach(CUcontext part);

/* Waits until everything submitted to the stream so far is over. */
CUresult stream_finish(CUstream stream);

/* Declares `stream`, what `handle` stands for, or returns the error. */
#define STREAM(handle, stream)                                                                             \
    CUstream stream;                                                                                       \
    do {                                                                                                   \
        CUresult unresolved_ = stream_resolve((handle), &stream);                                          \
        if (unresolved_ != CUDA_SUCCESS)                                                                   \
            return unresolved_;                                                                            \
    } while (0)

#endif
