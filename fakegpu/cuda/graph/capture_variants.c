/* The other names of the functions about capturing: older and newer layouts, and per-thread default streams. */
#include "cuda/graph/graphs.h"

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamGetCaptureInfo_v2(CUstream, int *status, uint64_t *id, CUgraph *, const CUgraphNode **, size_t *count);
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags);

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return cuStreamBeginCapture_v2(per_thread(stream), 0);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                 const CUgraphEdgeData *edges, size_t count, int mode)
{
    return cuStreamBeginCaptureToGraph(per_thread(stream), graph, nodes, edges, count, mode);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(per_thread(stream), graph);
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(per_thread(stream), status);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id)
{
    return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, uint64_t *id)
{
    return cuStreamGetCaptureInfo(per_thread(stream), status, id);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                               const CUgraphNode **nodes, size_t *count)
{
    return cuStreamGetCaptureInfo_v2(per_thread(stream), status, id, graph, nodes, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                               const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph, nodes, edges, count);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags)
{
    return cuStreamUpdateCaptureDependencies(per_thread(stream), nodes, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                     size_t count, unsigned flags)
{
    (void)edges;
    return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                          size_t count, unsigned flags)
{
    return cuStreamUpdateCaptureDependencies_v2(per_thread(stream), nodes, edges, count, flags);
}
