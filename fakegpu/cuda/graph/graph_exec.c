/* Graphs that can be launched: their own copy of a graph, in an order. */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph/graphs.h"
#include "cuda/stream/capturing.h"

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph;
    CUgraphNode *order;
    uint64_t flags;
};

typedef struct {
    uint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef struct {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
enum { INSTANTIATE_FLAGS = 1 | 2 | 8, INSTANTIATE_DEVICE_LAUNCH = 4 };
enum { UPDATE_TOPOLOGY_CHANGED = 2, UPDATE_TYPE_CHANGED = 3 };

static bool exec_valid(CUgraphExec exec)
{
    return exec && exec->magic == EXEC_MAGIC;
}

/* The memory of the graph's allocation nodes, which have had addresses alone so far. */
static CUresult back_memory(CUgraph graph)
{
    CUresult result = CUDA_SUCCESS;
    for (CUgraphNode node = graph->nodes; node && result == CUDA_SUCCESS; node = node->next) {
        if (node->action.type == NODE_ALLOC)
            result = pool_back(node->action.memory->address);
        else if (node->action.type == NODE_GRAPH)
            result = back_memory(node->action.graph);
    }
    return result;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    ENTER(context);
    (void)context;
    REQUIRE_CU(made && graph_valid(graph));
    if (flags & INSTANTIATE_DEVICE_LAUNCH)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE_CU(!(flags & ~(unsigned long long)INSTANTIATE_FLAGS));
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec || !(exec->graph = graph_copy(graph))) {
        free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!(exec->order = graph_order(exec->graph))) {
        graph_free(exec->graph);
        free(exec);
        return CUDA_ERROR_INVALID_VALUE; /* a circle */
    }
    CUresult result = back_memory(exec->graph);
    if (result != CUDA_SUCCESS) {
        free(exec->order);
        graph_free(exec->graph);
        free(exec);
        return result;
    }
    exec->flags = flags;
    exec->magic = EXEC_MAGIC;
    *made = exec;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph, CUgraphNode *error, char *log, size_t bytes)
{
    if (error)
        *error = NULL;
    if (log && bytes)
        *log = '\0';
    return cuGraphInstantiateWithFlags(made, graph, 0);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *made, CUgraph graph, CUgraphNode *error, char *log, size_t bytes)
{
    return cuGraphInstantiate_v2(made, graph, error, log, bytes);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    REQUIRE_CU(params);
    CUresult result = cuGraphInstantiateWithFlags(made, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result != CUDA_SUCCESS;
    return result;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(made, graph, params);
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags)
{
    REQUIRE_CU(exec_valid(exec) && flags);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    REQUIRE_CU(exec_valid(exec));
    exec->magic = 0;
    graph_free(exec->graph);
    free(exec->order);
    free(exec);
    return CUDA_SUCCESS;
}

/* --- launching ----------------------------------------------------------------------------------------------------- */

static size_t count_works(CUgraph graph)
{
    size_t count = 0;
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        count += node->action.type == NODE_GRAPH ? count_works(node->action.graph) : 1;
    return count;
}

/* The work of one node; `any`: there is some. */
static CUresult work_of(const struct action *action, struct work *work, bool *any)
{
    *any = true;
    switch (action->type) {
    case NODE_KERNEL:
        *work = (struct work){.kind = WORK_TIMED, .duration_ns = action->kernel.duration_ns};
        return CUDA_SUCCESS;
    case NODE_MEMCPY:
        *any = !action->memcpy.empty;
        if (*any && !copy_work(&action->memcpy.copy, action->memcpy.duration_ns, work))
            return CUDA_ERROR_OUT_OF_MEMORY;
        return CUDA_SUCCESS;
    case NODE_MEMSET: {
        const CUDA_MEMSET_NODE_PARAMS *node_params = &action->memset;
        const struct memset_rows rows = {node_params->dst,         node_params->pitch, node_params->value,
                                         node_params->elementSize, node_params->width, node_params->height};
        *any = rows.width && rows.height;
        return !*any || memset_work(&rows, work) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    case NODE_HOST:
        *work = (struct work){.kind = WORK_HOST, .call = action->host.fn, .argument = action->host.userData};
        return CUDA_SUCCESS;
    case NODE_EVENT_RECORD:
        *work = event_record(action->event);
        return work->mark ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    case NODE_WAIT_EVENT:
        *any = event_wait(action->event, work);
        return CUDA_SUCCESS;
    default:
        *any = false;
        return CUDA_SUCCESS;
    }
}

static CUresult collect(CUgraphNode *order, size_t count, struct work *works, size_t *used)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        struct action *action = &order[i]->action;
        bool any = false;
        if (order[i]->disabled)
            continue;
        if (action->type == NODE_GRAPH) {
            CUgraphNode *inner = graph_order(action->graph);
            result = inner ? collect(inner, action->graph->count, works, used) : CUDA_ERROR_INVALID_VALUE;
            free(inner);
            continue;
        }
        result = work_of(action, &works[*used], &any);
        if (result == CUDA_SUCCESS)
            *used += any;
    }
    return result;
}

static void drop(struct work *works, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (works[i].argument_owned)
            free(works[i].argument);
        if (works[i].kind == WORK_MARK)
            mark_reach(works[i].mark, 0);
        mark_drop(works[i].mark);
    }
}

/* One after another: this GPU does one thing at a time for a process, so what is side by side in the graph takes as long. */
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    STREAM(handle, stream);
    if (!exec_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_graph(stream, exec->graph);
    struct work *works = calloc(count_works(exec->graph) + 1, sizeof *works);
    size_t used = 0;
    if (!works)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = collect(exec->order, exec->graph->count, works, &used);
    if (result != CUDA_SUCCESS) {
        drop(works, used);
    } else if (used) {
        works[0].is_launch = true;
        result = stream_give_all(stream, works, used);
    }
    free(works);
    return result;
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphLaunch(exec, per_thread(stream));
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    STREAM(handle, stream);
    (void)stream;
    REQUIRE_CU(exec_valid(exec));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphUpload(exec, per_thread(stream));
}

/* --- changing -------------------------------------------------------------------------------------------------------- */

/* Nodes are compared in the order in which they were added. */
EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    REQUIRE_CU(exec_valid(exec) && graph_valid(graph) && info);
    *info = (CUgraphExecUpdateResultInfo){0};
    CUgraphNode node = graph->nodes, other = exec->graph->nodes;
    for (; node && other; node = node->next, other = other->next) {
        if (node->action.type != other->action.type)
            info->result = UPDATE_TYPE_CHANGED;
        else if (node->before_count != other->before_count)
            info->result = UPDATE_TOPOLOGY_CHANGED;
        if (info->result) {
            info->errorNode = node;
            return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        }
    }
    if (node || other) {
        info->result = UPDATE_TOPOLOGY_CHANGED;
        info->errorNode = node;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    CUgraph copy = graph_copy(graph);
    CUgraphNode *order = copy ? graph_order(copy) : NULL;
    if (!order) {
        graph_free(copy);
        return copy ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (node = copy->nodes, other = exec->graph->nodes; node; node = node->next, other = other->next) {
        node->disabled = other->disabled;
        node->original = other->original;
    }
    graph_free(exec->graph);
    free(exec->order);
    exec->graph = copy;
    exec->order = order;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *result)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult status = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error)
        *error = info.errorNode;
    if (result)
        *result = info.result;
    return status;
}

/* The executable graph's node that was made from `node`. */
static CUgraphNode own_node(CUgraphExec exec, CUgraphNode node, enum node_type type)
{
    for (CUgraphNode own = exec_valid(exec) ? exec->graph->nodes : NULL; own; own = own->next) {
        if (own->original == node && own->action.type == type)
            return own;
    }
    return NULL;
}

static CUresult change(CUresult ready, CUgraphNode own, struct action *action)
{
    if (ready != CUDA_SUCCESS)
        return ready;
    action_free(&own->action);
    own->action = *action;
    return CUDA_SUCCESS;
}

static CUresult change_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params, size_t bytes)
{
    CUDA_KERNEL_NODE_PARAMS params = {0};
    struct action action;
    CUgraphNode own = own_node(exec, node, NODE_KERNEL);
    REQUIRE_CU(own && node_params);
    memcpy(&params, node_params, bytes);
    if (!params.func)
        params.func = params.kern;
    return change(action_kernel(&params, own->action.context, own->action.kernel.cooperative, &action), own, &action);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    return change_kernel(exec, node, node_params, sizeof *node_params);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    return change_kernel(exec, node, node_params, KERNEL_NODE_PARAMS_V1_BYTES);
}

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *node_params, CUcontext context)
{
    struct action action;
    CUgraphNode own = own_node(exec, node, NODE_MEMCPY);
    REQUIRE_CU(own && node_params);
    if (!context_valid(context))
        context = own->action.context;
    return change(action_memcpy(node_params, context, &action), own, &action);
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *node_params,
                                               CUcontext context)
{
    struct action action;
    CUgraphNode own = own_node(exec, node, NODE_MEMSET);
    REQUIRE_CU(own && node_params);
    if (!context_valid(context))
        context = own->action.context;
    return change(action_memset(node_params, context, &action), own, &action);
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *node_params)
{
    CUgraphNode own = own_node(exec, node, NODE_HOST);
    REQUIRE_CU(own && node_params && node_params->fn);
    own->action.host = *node_params;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    CUgraphNode own = own_node(exec, node, NODE_EVENT_RECORD);
    REQUIRE_CU(own && event_valid(event));
    own->action.event = event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    CUgraphNode own = own_node(exec, node, NODE_WAIT_EVENT);
    REQUIRE_CU(own && event_valid(event));
    own->action.event = event;
    return CUDA_SUCCESS;
}

/* Kernels, copies and memsets can be left out. */
static CUgraphNode switchable(CUgraphExec exec, CUgraphNode node)
{
    CUgraphNode own = own_node(exec, node, NODE_KERNEL);
    if (!own)
        own = own_node(exec, node, NODE_MEMCPY);
    return own ? own : own_node(exec, node, NODE_MEMSET);
}

EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
    CUgraphNode own = switchable(exec, node);
    REQUIRE_CU(own);
    own->disabled = !enabled;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled)
{
    CUgraphNode own = switchable(exec, node);
    REQUIRE_CU(own && enabled);
    *enabled = !own->disabled;
    return CUDA_SUCCESS;
}
