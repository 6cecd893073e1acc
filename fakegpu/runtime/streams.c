/* Streams, events, captures and graphs: each call is one of the driver's. */
#include "runtime.h"

IN_CONTEXT(cudaStreamCreate(cudaStream_t *stream), cuStreamCreate(stream, CU_STREAM_DEFAULT))
IN_CONTEXT(cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags), cuStreamCreate(stream, flags))
IN_CONTEXT(cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority),
           cuStreamCreateWithPriority(stream, flags, priority))
IN_CONTEXT(cudaStreamDestroy(cudaStream_t stream), cuStreamDestroy(stream))
IN_CONTEXT(cudaStreamGetPriority(cudaStream_t stream, int *priority), cuStreamGetPriority(stream, priority))
IN_CONTEXT(cudaStreamQuery(cudaStream_t stream), cuStreamQuery(stream))
IN_CONTEXT(cudaStreamSynchronize(cudaStream_t stream), cuStreamSynchronize(stream))
IN_CONTEXT(cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags), cuStreamWaitEvent(stream, event, flags))
IN_CONTEXT(cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *argument, unsigned flags),
           cuStreamAddCallback(stream, (CUstreamCallback)function, argument, flags))
IN_CONTEXT(cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument), cuLaunchHostFunc(stream, function, argument))

IN_CONTEXT(cudaEventCreate(cudaEvent_t *event), cuEventCreate(event, CU_EVENT_DEFAULT))
IN_CONTEXT(cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags), cuEventCreate(event, flags))
IN_CONTEXT(cudaEventDestroy(cudaEvent_t event), cuEventDestroy(event))
IN_CONTEXT(cudaEventQuery(cudaEvent_t event), cuEventQuery(event))
IN_CONTEXT(cudaEventRecord(cudaEvent_t event, cudaStream_t stream), cuEventRecord(event, stream))
IN_CONTEXT(cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags), cuEventRecordWithFlags(event, stream, flags))
IN_CONTEXT(cudaEventSynchronize(cudaEvent_t event), cuEventSynchronize(event))
IN_CONTEXT(cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end), cuEventElapsedTime(ms, begin, end))

IN_CONTEXT(cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode), cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode))
IN_CONTEXT(cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                         const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode),
           cuStreamBeginCaptureToGraph(stream, graph, nodes, (const CUgraphEdgeData *)edges, count, (CUstreamCaptureMode)mode))
IN_CONTEXT(cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph), cuStreamEndCapture(stream, graph))
IN_CONTEXT(cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status),
           cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status))
IN_CONTEXT(cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                    const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count),
           cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, nodes,
                                  (const CUgraphEdgeData **)edges, count))
IN_CONTEXT(cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges, size_t count,
                                               unsigned flags),
           cuStreamUpdateCaptureDependencies(stream, nodes, (const CUgraphEdgeData *)edges, count, flags))
IN_CONTEXT(cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode),
           cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode))

IN_CONTEXT(cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags), cuGraphInstantiate(made, graph, flags))
IN_CONTEXT(cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags),
           cuGraphInstantiate(made, graph, flags))
IN_CONTEXT(cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream), cuGraphLaunch(graph, stream))
IN_CONTEXT(cudaGraphDestroy(cudaGraph_t graph), cuGraphDestroy(graph))
IN_CONTEXT(cudaGraphExecDestroy(cudaGraphExec_t graph), cuGraphExecDestroy(graph))
IN_CONTEXT(cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count), cuGraphGetNodes(graph, nodes, count))
IN_CONTEXT(cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges, size_t *count),
           cuGraphNodeGetDependencies(node, nodes, (CUgraphEdgeData *)edges, count))
IN_CONTEXT(cudaUserObjectCreate(cudaUserObject_t *object, void *held, cudaHostFn_t destroy, unsigned count, unsigned flags),
           cuUserObjectCreate(object, held, destroy, count, flags))
IN_CONTEXT(cudaUserObjectRelease(cudaUserObject_t object, unsigned count), cuUserObjectRelease(object, count))
IN_CONTEXT(cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags),
           cuGraphRetainUserObject(graph, object, count, flags))

/* Conditional nodes, which are what programs add by these, are not in the stand-in driver. */
EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t *made, cudaGraph_t graph, const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                    size_t count, struct cudaGraphNodeParams *parameters)
{
    (void)made, (void)graph, (void)nodes, (void)edges, (void)count, (void)parameters;
    return keep(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph, unsigned value, unsigned flags)
{
    (void)handle, (void)graph, (void)value, (void)flags;
    return keep(cudaErrorNotSupported);
}
