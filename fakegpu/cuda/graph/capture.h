/* Capturing: what is given to a stream between begin and end becomes nodes of a graph. */
#ifndef FAKEGPU_CUDA_CAPTURE_H
#define FAKEGPU_CUDA_CAPTURE_H

#include "cuda/copy/copies.h"
#include "cuda/module/modules.h"
#include "cuda/stream/hooks.h"

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

/* The work of setting memory (cuda/copy/memset_work.c); false: no memory. */
bool memset_work(const struct memset_rows *rows, struct work *work);

#endif
