/* What a graph consists of, and changing its edges. */
#include <stdlib.h>

#include "cuda/graph/graphs.h"

/* Lists are returned as the interface does: without room for them only their length. */
struct list {
    CUgraphNode *nodes;
    size_t room, count;
};

static void put(struct list *list, CUgraphNode node)
{
    if (list->nodes && list->count < list->room)
        list->nodes[list->count] = node;
    list->count++;
}

/* Longer room is filled with nothing, shorter room gets the beginning. */
static void end(const struct list *list, size_t *count)
{
    for (size_t i = list->count; list->nodes && i < list->room; i++)
        list->nodes[i] = NULL;
    *count = list->nodes && list->count > list->room ? list->room : list->count;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    REQUIRE_CU(graph_valid(graph) && count);
    struct list list = {nodes, *count, 0};
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        put(&list, node);
    end(&list, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    REQUIRE_CU(graph_valid(graph) && count);
    struct list list = {nodes, *count, 0};
    for (CUgraphNode node = graph->nodes; node; node = node->next) {
        if (!node->before_count)
            put(&list, node);
    }
    end(&list, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    REQUIRE_CU(graph_valid(graph) && count && !from == !to);
    struct list froms = {from, *count, 0}, tos = {to, *count, 0};
    size_t ignored;
    for (CUgraphNode node = graph->nodes; node; node = node->next) {
        for (size_t i = 0; i < node->before_count; i++) {
            put(&froms, node->before[i]);
            put(&tos, node);
        }
    }
    end(&froms, count);
    end(&tos, &ignored);
    return CUDA_SUCCESS;
}

static void no_data(CUgraphEdgeData *data, size_t count)
{
    for (size_t i = 0; data && i < count; i++)
        data[i] = (CUgraphEdgeData){0};
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    CUresult result = cuGraphGetEdges(graph, from, to, count);
    if (result == CUDA_SUCCESS && from)
        no_data(data, *count);
    return result;
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    REQUIRE_CU(node && count);
    struct list list = {nodes, *count, 0};
    for (size_t i = 0; i < node->before_count; i++)
        put(&list, node->before[i]);
    end(&list, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    CUresult result = cuGraphNodeGetDependencies(node, nodes, count);
    if (result == CUDA_SUCCESS && nodes)
        no_data(data, *count);
    return result;
}

EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    REQUIRE_CU(node && count);
    struct list list = {nodes, *count, 0};
    for (CUgraphNode other = node->graph->nodes; other; other = other->next) {
        for (size_t i = 0; i < other->before_count; i++) {
            if (other->before[i] == node)
                put(&list, other);
        }
    }
    end(&list, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    CUresult result = cuGraphNodeGetDependentNodes(node, nodes, count);
    if (result == CUDA_SUCCESS && nodes)
        no_data(data, *count);
    return result;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    REQUIRE_CU(node && type);
    *type = (int)node->action.type;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph)
{
    REQUIRE_CU(node && graph);
    *graph = node->graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetLocalId(CUgraphNode node, unsigned *id)
{
    REQUIRE_CU(node && id);
    *id = node->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone)
{
    REQUIRE_CU(found && original && graph_valid(clone));
    for (CUgraphNode node = clone->nodes; node; node = node->next) {
        if (node->original == original) {
            *found = node;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    REQUIRE_CU(graph_valid(graph) && ((from && to) || !count));
    for (size_t i = 0; i < count; i++) {
        REQUIRE_CU(from[i] && to[i] && from[i]->graph == graph && to[i]->graph == graph && from[i] != to[i]);
        if (!graph_add_edge(from[i], to[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *data, size_t count)
{
    (void)data;
    return cuGraphAddDependencies(graph, from, to, count);
}

EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    REQUIRE_CU(graph_valid(graph) && ((from && to) || !count));
    for (size_t i = 0; i < count; i++) {
        REQUIRE_CU(from[i] && to[i] && to[i]->graph == graph);
        REQUIRE_CU(graph_remove_edge(from[i], to[i]));
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                             const CUgraphEdgeData *data, size_t count)
{
    (void)data;
    return cuGraphRemoveDependencies(graph, from, to, count);
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode node)
{
    REQUIRE_CU(node && graph_valid(node->graph));
    CUgraph graph = node->graph;
    CUgraphNode previous = NULL;
    for (CUgraphNode other = graph->nodes; other; other = other->next) {
        while (graph_remove_edge(node, other))
            ;
        if (other->next == node)
            previous = other;
    }
    if (previous)
        previous->next = node->next;
    else
        graph->nodes = node->next;
    if (graph->last == node)
        graph->last = previous;
    graph->count--;
    action_free(&node->action);
    free(node->before);
    free(node);
    return CUDA_SUCCESS;
}
