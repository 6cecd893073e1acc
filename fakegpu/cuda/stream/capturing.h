/* Work submitted to a stream between begin and end of a capture becomes nodes of a graph: callers that submit work ask here, cuda/graph/capture.c answers. */
#ifndef FAKEGPU_CUDA_STREAM_CAPTURING_H
#define FAKEGPU_CUDA_STREAM_CAPTURING_H

#include <stdbool.h>

#include "interface/cuda.h"
#include "interface/cuda_work.h"

struct copy;
struct launch;
struct memset_rows;

CUresult capture_record(CUstream stream, CUevent event, unsigned flags);
CUresult capture_kernel(CUstream stream, const struct launch *launch);
CUresult capture_copy(CUstream stream, const struct copy *copy);
CUresult capture_memset(CUstream stream, const struct memset_rows *rows);
/* A graph launched into it becomes a node. */
CUresult capture_graph(CUstream stream, CUgraph graph);
/* The legacy stream is used while streams that are in order with it are captured: their captures fail. Returns the error. */
CUresult capture_implicit(CUcontext context);
/* A capturing stream ends: so does its part in the capture. */
void capture_abandon(CUstream stream);
/* What a capturing stream cannot do ends the capture in failure. Returns the error. */
CUresult capture_unsupported(CUstream stream);
CUresult capture_host(CUstream stream, CUhostFn function, void *argument);
CUresult capture_wait(CUstream stream, CUevent event, unsigned flags);

/* The event's record in a capture counts no more. */
void capture_forget_event(CUevent event);

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

#endif
