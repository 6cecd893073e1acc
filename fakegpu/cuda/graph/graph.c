/* Graphs themselves: making, copying, ordering. */
#include "cuda/graph/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"

bool graph_valid(CUgraph graph)
{
    return graph && atomic_load(&graph->magic) == GRAPH_MAGIC;
}

CUgraph graph_make(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph)
        atomic_store(&graph->magic, GRAPH_MAGIC);
    return graph;
}

/* --- what nodes do -------------------------------------------------------------------------------------------- */

void action_free(struct action *action)
{
    if (action->type == NODE_KERNEL)
        free(action->kernel.values);
    if (action->type == NODE_GRAPH)
        graph_free(action->graph);
    if (action->type == NODE_ALLOC && atomic_fetch_sub(&action->memory->references, 1) == 1) {
        pool_give_back(action->memory->address);
        free(action->memory);
    }
}

/* The parameters' values are kept, as the driver does: the program's may be gone at the launch. */
static bool keep_values(const CUDA_KERNEL_NODE_PARAMS *node_params, struct action *action)
{
    const struct kernel_image *image = node_params->func->image;
    unsigned count = image->parameter_count;
    size_t bytes = 0, at = (count ? count : 1) * sizeof(void *);
    for (unsigned i = 0; i < count; i++)
        bytes += (image->parameters[i].size + 15) & ~15u;
    action->kernel.values = NULL;
    action->kernel.params = *node_params;
    if (!node_params->kernelParams || !count)
        return true;
    void **values = calloc(1, at + bytes);
    if (!values)
        return false;
    for (unsigned i = 0; i < count; i++) {
        values[i] = (char *)values + at;
        memcpy(values[i], node_params->kernelParams[i], image->parameters[i].size);
        at += (image->parameters[i].size + 15) & ~15u;
    }
    action->kernel.values = action->kernel.params.kernelParams = values;
    return true;
}

CUresult action_kernel(const CUDA_KERNEL_NODE_PARAMS *node_params, CUcontext context, bool cooperative, struct action *action)
{
    uint64_t duration_ns;
    const struct launch launch = {.function = node_params->func,
                                  .grid = {node_params->gridDimX, node_params->gridDimY, node_params->gridDimZ},
                                  .block = {node_params->blockDimX, node_params->blockDimY, node_params->blockDimZ},
                                  .shared_bytes = node_params->sharedMemBytes,
                                  .parameters = node_params->kernelParams,
                                  .extra = node_params->extra,
                                  .cooperative = cooperative};
    CUresult result = launch_check(context, &launch, &duration_ns);
    if (result != CUDA_SUCCESS)
        return result;
    *action = (struct action){.type = NODE_KERNEL, .context = context};
    if (!keep_values(node_params, action))
        return CUDA_ERROR_OUT_OF_MEMORY;
    action->kernel.params.extra = NULL;
    action->kernel.duration_ns = duration_ns;
    action->kernel.cooperative = cooperative;
    return CUDA_SUCCESS;
}

CUresult action_memcpy(const CUDA_MEMCPY3D *node_params, CUcontext context, struct action *action)
{
    bool pageable;
    *action = (struct action){.type = NODE_MEMCPY, .context = context};
    action->memcpy.params = *node_params;
    CUresult result = copy_of_3d(node_params, &action->memcpy.copy, &action->memcpy.empty);
    if (result == CUDA_SUCCESS && !action->memcpy.empty)
        result = copy_check(context, &action->memcpy.copy, &action->memcpy.duration_ns, &pageable);
    return result;
}

CUresult action_memset(const CUDA_MEMSET_NODE_PARAMS *node_params, CUcontext context, struct action *action)
{
    const struct memset_rows rows = {node_params->dst,         node_params->pitch, node_params->value,
                                     node_params->elementSize, node_params->width, node_params->height};
    REQUIRE_CU(node_params->elementSize == 1 || node_params->elementSize == 2 || node_params->elementSize == 4);
    *action = (struct action){.type = NODE_MEMSET, .context = context};
    action->memset = *node_params;
    return memset_check(&rows);
}

/* The address is known from now on; the memory behind it is taken when the graph is instantiated. */
CUresult action_alloc(struct device *device, size_t bytes, struct action *action)
{
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pool_take(device, bytes, &memory->address);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    atomic_store(&memory->references, 1);
    memory->bytes = bytes;
    *action = (struct action){.type = NODE_ALLOC};
    action->memory = memory;
    return CUDA_SUCCESS;
}

bool action_copy(const struct action *from, struct action *to)
{
    *to = *from;
    if (from->type == NODE_KERNEL)
        return keep_values(&from->kernel.params, to);
    if (from->type == NODE_ALLOC)
        atomic_fetch_add(&from->memory->references, 1);
    if (from->type == NODE_GRAPH && (to->graph = graph_copy(from->graph)))
        to->graph->is_child = true;
    return from->type != NODE_GRAPH || to->graph;
}

/* --- nodes and edges -------------------------------------------------------------------------------------------- */

bool graph_add_edge(CUgraphNode from, CUgraphNode to)
{
    for (size_t i = 0; i < to->before_count; i++) {
        if (to->before[i] == from)
            return true;
    }
    CUgraphNode *grown = realloc(to->before, (to->before_count + 1) * sizeof *grown);
    if (!grown)
        return false;
    to->before = grown;
    to->before[to->before_count++] = from;
    return true;
}

bool graph_remove_edge(CUgraphNode from, CUgraphNode to)
{
    for (size_t i = 0; i < to->before_count; i++) {
        if (to->before[i] == from) {
            to->before[i] = to->before[--to->before_count];
            return true;
        }
    }
    return false;
}

CUresult graph_add(CUgraph graph, CUgraphNode *made, const CUgraphNode *before, size_t count, const struct action *action)
{
    for (size_t i = 0; i < count; i++)
        REQUIRE_CU(before[i] && before[i]->graph == graph);
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->graph = graph;
    for (size_t i = 0; i < count; i++) {
        if (!graph_add_edge(before[i], node)) {
            free(node->before);
            free(node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    node->action = *action;
    node->id = graph->next_id++;
    if (graph->last)
        graph->last->next = node;
    else
        graph->nodes = node;
    graph->last = node;
    graph->count++;
    *made = node;
    return CUDA_SUCCESS;
}

void graph_free(CUgraph graph)
{
    if (!graph)
        return;
    for (CUgraphNode node = graph->nodes, next; node; node = next) {
        next = node->next;
        action_free(&node->action);
        free(node->before);
        free(node);
    }
    atomic_store(&graph->magic, 0);
    free(graph);
}

CUgraph graph_copy(CUgraph graph)
{
    CUgraph copy = graph_make();
    CUgraphNode *made = calloc(graph->next_id + 1, sizeof *made), node;
    bool whole = copy && made;
    for (node = graph->nodes; whole && node; node = node->next) {
        struct action action;
        whole = action_copy(&node->action, &action);
        if (whole && graph_add(copy, &made[node->id], NULL, 0, &action) != CUDA_SUCCESS) {
            action_free(&action);
            whole = false;
        }
        if (whole)
            made[node->id]->original = node;
    }
    for (node = graph->nodes; whole && node; node = node->next) {
        for (size_t i = 0; whole && i < node->before_count; i++)
            whole = graph_add_edge(made[node->before[i]->id], made[node->id]);
    }
    free(made);
    if (whole)
        return copy;
    graph_free(copy);
    return NULL;
}

/* As often as needed: nodes whose predecessors are all listed. Graphs are mostly in order already. */
CUgraphNode *graph_order(CUgraph graph)
{
    CUgraphNode *order = calloc(graph->count + 1, sizeof *order);
    unsigned walk = ++graph->walk;
    size_t listed = 0, before = 1;
    while (order && listed < graph->count && listed != before) {
        before = listed;
        for (CUgraphNode node = graph->nodes; node; node = node->next) {
            bool ready = node->mark != walk;
            for (size_t i = 0; ready && i < node->before_count; i++)
                ready = node->before[i]->mark == walk;
            if (ready) {
                node->mark = walk;
                order[listed++] = node;
            }
        }
    }
    if (order && listed < graph->count) {
        free(order);
        return NULL;
    }
    return order;
}

static void mark_before(CUgraphNode node, unsigned walk)
{
    if (node->mark == walk)
        return;
    node->mark = walk;
    for (size_t i = 0; i < node->before_count; i++)
        mark_before(node->before[i], walk);
}

bool graph_reaches(CUgraph graph, const CUgraphNode *of, size_t count, CUgraphNode node)
{
    unsigned walk = ++graph->walk;
    for (size_t i = 0; i < count; i++)
        mark_before(of[i], walk);
    return node->mark == walk;
}
