/* Making graphs by hand: one function for each kind of node. */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph/graphs.h"
#include "cuda/memory/memory.h"

EXPORT CUresult cuGraphCreate(CUgraph *made, unsigned flags)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    REQUIRE_CU(made && !flags);
    *made = graph_make();
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    REQUIRE_CU(graph_valid(graph) && !graph->is_child);
    graph_free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *made, CUgraph graph)
{
    REQUIRE_CU(made && graph_valid(graph));
    *made = graph_copy(graph);
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Adds what was made ready, or frees it. */
static CUresult add(CUresult ready, CUgraphNode *made, CUgraph graph, const CUgraphNode *before, size_t count,
                    struct action *action)
{
    if (ready != CUDA_SUCCESS)
        return ready;
    CUresult result = graph_valid(graph) && made && (before || !count) ? graph_add(graph, made, before, count, action)
                                                                       : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        action_free(action);
    return result;
}

#define PLACE CUgraphNode *made, CUgraph graph, const CUgraphNode *before, size_t count

EXPORT CUresult cuGraphAddEmptyNode(PLACE)
{
    struct action action = {.type = NODE_EMPTY};
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

/* The version that knows kernels of libraries and contexts; a context that is not named is the current one. */
static CUresult kernel_of(const CUDA_KERNEL_NODE_PARAMS *node_params, size_t bytes, struct action *action)
{
    CUDA_KERNEL_NODE_PARAMS params = {0};
    ENTER(context);
    REQUIRE_CU(node_params);
    memcpy(&params, node_params, bytes);
    if (!params.func)
        params.func = params.kern;
    if (params.ctx && !context_valid(params.ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    return action_kernel(&params, params.ctx ? params.ctx : context, false, action);
}

EXPORT CUresult cuGraphAddKernelNode_v2(PLACE, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct action action;
    return add(kernel_of(node_params, sizeof *node_params, &action), made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddKernelNode(PLACE, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct action action;
    return add(kernel_of(node_params, KERNEL_NODE_PARAMS_V1_BYTES, &action), made, graph, before, count, &action);
}

static CUresult in_context(CUcontext *context)
{
    return context_valid(*context) ? CUDA_SUCCESS : context_current(context);
}

EXPORT CUresult cuGraphAddMemcpyNode(PLACE, const CUDA_MEMCPY3D *node_params, CUcontext context)
{
    struct action action;
    REQUIRE_CU(node_params);
    CUresult result = in_context(&context);
    if (result == CUDA_SUCCESS)
        result = action_memcpy(node_params, context, &action);
    return add(result, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddMemsetNode(PLACE, const CUDA_MEMSET_NODE_PARAMS *node_params, CUcontext context)
{
    struct action action;
    REQUIRE_CU(node_params);
    CUresult result = in_context(&context);
    if (result == CUDA_SUCCESS)
        result = action_memset(node_params, context, &action);
    return add(result, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddHostNode(PLACE, const CUDA_HOST_NODE_PARAMS *node_params)
{
    REQUIRE_CU(node_params && node_params->fn);
    struct action action = {.type = NODE_HOST, .host = *node_params};
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddChildGraphNode(PLACE, CUgraph child)
{
    REQUIRE_CU(graph_valid(child) && child != graph);
    struct action action = {.type = NODE_GRAPH, .graph = graph_copy(child)};
    if (!action.graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    action.graph->is_child = true;
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddEventRecordNode(PLACE, CUevent event)
{
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    struct action action = {.type = NODE_EVENT_RECORD, .event = event};
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddEventWaitNode(PLACE, CUevent event)
{
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    struct action action = {.type = NODE_WAIT_EVENT, .event = event};
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

/* What cuGraphAddMemAllocNode takes: the pool's properties (88 bytes, of which the location counts), then these. */
typedef struct {
    int allocType, handleTypes, locationType, locationId;
    char rest[72];
    const void *accessDescs;
    size_t accessDescCount, bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "allocation node");

EXPORT CUresult cuGraphAddMemAllocNode(PLACE, CUDA_MEM_ALLOC_NODE_PARAMS *node_params)
{
    enum { PINNED = 1, ON_DEVICE = 1 };
    struct action action;
    ENTER(context);
    (void)context;
    REQUIRE_CU(node_params && node_params->bytesize && node_params->allocType == PINNED && node_params->locationType == ON_DEVICE);
    struct device *device = device_get(node_params->locationId);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = device_attach(device);
    if (result == CUDA_SUCCESS)
        result = action_alloc(device, node_params->bytesize, &action);
    if (result == CUDA_SUCCESS)
        node_params->dptr = action.memory->address;
    return add(result, made, graph, before, count, &action);
}

EXPORT CUresult cuGraphAddMemFreeNode(PLACE, CUdeviceptr address)
{
    REQUIRE_CU(address);
    struct action action = {.type = NODE_FREE, .freed = address};
    return add(CUDA_SUCCESS, made, graph, before, count, &action);
}

/* --- any kind ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int type, reserved0[3];
    union {
        long long reserved1[29];
        CUDA_KERNEL_NODE_PARAMS kernel;
        struct { int flags, reserved; CUcontext context; CUDA_MEMCPY3D params; } memcpy;
        struct { CUDA_MEMSET_NODE_PARAMS params; CUcontext context; } memset;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph graph;
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr freed;
    };
    long long reserved2;
} CUgraphNodeParams;
_Static_assert(sizeof(CUgraphNodeParams) == 256, "node parameters");

EXPORT CUresult cuGraphAddNode(PLACE, CUgraphNodeParams *node_params)
{
    REQUIRE_CU(node_params);
    switch (node_params->type) {
    case NODE_KERNEL:
        return cuGraphAddKernelNode_v2(made, graph, before, count, &node_params->kernel);
    case NODE_MEMCPY:
        return cuGraphAddMemcpyNode(made, graph, before, count, &node_params->memcpy.params, node_params->memcpy.context);
    case NODE_MEMSET:
        return cuGraphAddMemsetNode(made, graph, before, count, &node_params->memset.params, node_params->memset.context);
    case NODE_HOST:
        return cuGraphAddHostNode(made, graph, before, count, &node_params->host);
    case NODE_GRAPH:
        return cuGraphAddChildGraphNode(made, graph, before, count, node_params->graph);
    case NODE_EMPTY:
        return cuGraphAddEmptyNode(made, graph, before, count);
    case NODE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(made, graph, before, count, node_params->event);
    case NODE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(made, graph, before, count, node_params->event);
    case NODE_ALLOC:
        return cuGraphAddMemAllocNode(made, graph, before, count, &node_params->alloc);
    case NODE_FREE:
        return cuGraphAddMemFreeNode(made, graph, before, count, node_params->freed);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Additional data of edges means nothing where kernels do not overlap. */
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges,
                                  size_t count, CUgraphNodeParams *node_params)
{
    (void)edges;
    return cuGraphAddNode(made, graph, before, count, node_params);
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges,
                                  size_t count, CUgraphNodeParams *node_params)
{
    (void)edges;
    return cuGraphAddNode(made, graph, before, count, node_params);
}

/* --- reading and changing what nodes do --------------------------------------------------------------------------- */

#define OF_TYPE(node, kind) REQUIRE_CU((node) && (node)->action.type == (kind))

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
    OF_TYPE(node, NODE_KERNEL);
    REQUIRE_CU(params);
    *params = node->action.kernel.params;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
    OF_TYPE(node, NODE_KERNEL);
    REQUIRE_CU(params);
    memcpy(params, &node->action.kernel.params, KERNEL_NODE_PARAMS_V1_BYTES);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params)
{
    OF_TYPE(node, NODE_MEMCPY);
    REQUIRE_CU(params);
    *params = node->action.memcpy.params;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params)
{
    OF_TYPE(node, NODE_MEMSET);
    REQUIRE_CU(params);
    *params = node->action.memset;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params)
{
    OF_TYPE(node, NODE_HOST);
    REQUIRE_CU(params);
    *params = node->action.host;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    OF_TYPE(node, NODE_GRAPH);
    REQUIRE_CU(graph);
    *graph = node->action.graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
    OF_TYPE(node, NODE_EVENT_RECORD);
    REQUIRE_CU(event);
    *event = node->action.event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
    OF_TYPE(node, NODE_WAIT_EVENT);
    REQUIRE_CU(event);
    *event = node->action.event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    OF_TYPE(node, NODE_ALLOC);
    REQUIRE_CU(params);
    memset(params, 0, sizeof *params);
    params->allocType = params->locationType = 1;
    params->bytesize = node->action.memory->bytes;
    params->dptr = node->action.memory->address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
    OF_TYPE(node, NODE_FREE);
    REQUIRE_CU(address);
    *address = node->action.freed;
    return CUDA_SUCCESS;
}

/* A node of the same kind takes the new action. */
static CUresult change(CUresult ready, CUgraphNode node, struct action *action)
{
    if (ready != CUDA_SUCCESS)
        return ready;
    action_free(&node->action);
    node->action = *action;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct action action;
    OF_TYPE(node, NODE_KERNEL);
    return change(kernel_of(node_params, sizeof *node_params, &action), node, &action);
}

EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct action action;
    OF_TYPE(node, NODE_KERNEL);
    return change(kernel_of(node_params, KERNEL_NODE_PARAMS_V1_BYTES, &action), node, &action);
}

EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *node_params)
{
    struct action action;
    OF_TYPE(node, NODE_MEMCPY);
    REQUIRE_CU(node_params);
    return change(action_memcpy(node_params, node->action.context, &action), node, &action);
}

EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *node_params)
{
    struct action action;
    OF_TYPE(node, NODE_MEMSET);
    REQUIRE_CU(node_params);
    return change(action_memset(node_params, node->action.context, &action), node, &action);
}

EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *node_params)
{
    OF_TYPE(node, NODE_HOST);
    REQUIRE_CU(node_params && node_params->fn);
    node->action.host = *node_params;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
    OF_TYPE(node, NODE_EVENT_RECORD);
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    node->action.event = event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
    OF_TYPE(node, NODE_WAIT_EVENT);
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    node->action.event = event;
    return CUDA_SUCCESS;
}
