/* Graphs: launched, they take what is in them; captured, they take nothing yet. */
#include "compute/marks.h"
#include "hooks/work.h"

typedef int CUstreamCaptureMode;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
typedef void *CUgraphRecaptureCallback;

enum { ERROR_STREAM_CAPTURE_FIRST = 900, ERROR_STREAM_CAPTURE_LAST = 908, ERROR_STREAM_CAPTURE_UNMATCHED = 903 };

LIMITED_STREAM(cuGraphLaunch, (CUgraphExec graph, CUstream stream), (graph, stream), WORK_GRAPH, unsized((uint64_t)(uintptr_t)graph))

static CUresult begun(CUresult result)
{
    if (result == CUDA_SUCCESS)
        captures_count(1);
    return result;
}

/* One that went wrong has ended too; one that was never begun has not. */
static CUresult ended(CUresult result)
{
    if (result == CUDA_SUCCESS || (result >= ERROR_STREAM_CAPTURE_FIRST && result < ERROR_STREAM_CAPTURE_UNMATCHED))
        captures_count(-1);
    return result;
}

#define CAPTURE(symbol, parameters, arguments, note)                                                       \
    CUresult symbol parameters;                                                                            \
    EXPORT CUresult symbol parameters { return note(REAL(symbol) arguments); }                             \
    CUresult symbol##_ptsz parameters;                                                                     \
    EXPORT CUresult symbol##_ptsz parameters { return note(REAL(symbol##_ptsz) arguments); }

CAPTURE(cuStreamBeginCapture, (CUstream stream), (stream), begun)
CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode), begun)
CAPTURE(cuStreamBeginCaptureToGraph,
        (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
         CUstreamCaptureMode mode),
        (stream, graph, after, edges, count, mode), begun)
CAPTURE(cuStreamBeginRecaptureToGraph,
        (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *argument),
        (stream, mode, graph, callback, argument), begun)
CAPTURE(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *parameters), (stream, parameters), begun)
CAPTURE(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph), ended)
CAPTURE(cuStreamEndCaptureToCig, (CUstream stream), (stream), ended)
