/* Graphs: nodes, what they do, and what they wait for. A graph is not thread-safe, as NVIDIA's are not. */
#ifndef FAKEGPU_CUDA_GRAPH_GRAPHS_H
#define FAKEGPU_CUDA_GRAPH_GRAPHS_H

#include "cuda/copy/copies.h"
#include "cuda/module/modules.h"
#include "cuda/stream/context_work.h"
#include "cuda/stream/events.h"

#define GRAPH_MAGIC UINT32_C(0x67726170)
#define EXEC_MAGIC UINT32_C(0x65786563)

enum node_type {
    NODE_KERNEL,
    NODE_MEMCPY,
    NODE_MEMSET,
    NODE_HOST,
    NODE_GRAPH,
    NODE_EMPTY,
    NODE_WAIT_EVENT,
    NODE_EVENT_RECORD,
    NODE_ALLOC = 10,
    NODE_FREE = 11,
};

typedef struct {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void **kernelParams, **extra;
    CUfunction kern; /* from here on not in the first version */
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
enum { KERNEL_NODE_PARAMS_V1_BYTES = 56 };
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
typedef struct {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;
typedef struct { unsigned char from_port, to_port, type, reserved[5]; } CUgraphEdgeData;
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72 && sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "nodes' parameters");

/* Memory of an allocation node; lives as long as any graph that has the node. */
struct graph_memory {
    _Atomic unsigned references;
    CUdeviceptr address;
    size_t bytes;
};

/* What a node does. */
struct action {
    enum node_type type;
    CUcontext context;
    union {
        struct {
            CUDA_KERNEL_NODE_PARAMS params; /* kernelParams points into `values` */
            uint64_t duration_ns;
            void **values; /* copies of the parameters, one block; NULL: none */
            bool cooperative;
        } kernel;
        struct {
            CUDA_MEMCPY3D params;
            struct copy copy;
            uint64_t duration_ns;
            bool empty;
        } memcpy;
        CUDA_MEMSET_NODE_PARAMS memset;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph graph; /* its own copy */
        CUevent event;
        struct graph_memory *memory;
        CUdeviceptr freed;
    };
};

struct CUgraphNode_st {
    CUgraph graph;
    struct action action;
    CUgraphNode *before; /* what it waits for */
    size_t before_count;
    CUgraphNode original; /* of a copy */
    unsigned id;
    bool disabled; /* in an executable graph */
    unsigned mark; /* of walks */
    CUgraphNode next;
};

struct CUgraph_st {
    _Atomic uint32_t magic;
    CUgraphNode nodes, last;
    size_t count;
    unsigned next_id, walk;
    bool is_child; /* belongs to a node */
};

bool graph_valid(CUgraph graph);
CUgraph graph_make(void);
void graph_free(CUgraph graph);
CUgraph graph_copy(CUgraph graph);

/* Adds a node; takes the action over when it succeeds. */
CUresult graph_add(CUgraph graph, CUgraphNode *made, const CUgraphNode *before, size_t count, const struct action *action);
bool graph_add_edge(CUgraphNode from, CUgraphNode to);
bool graph_remove_edge(CUgraphNode from, CUgraphNode to);

/* The nodes in an order in which each comes after what it waits for; NULL for a circle. To be freed. */
CUgraphNode *graph_order(CUgraph graph);

/* Whether `node` is one of `of`, or what one of them waits for, directly or not. */
bool graph_reaches(CUgraph graph, const CUgraphNode *of, size_t count, CUgraphNode node);

void action_free(struct action *action);
bool action_copy(const struct action *from, struct action *to);
CUresult action_kernel(const CUDA_KERNEL_NODE_PARAMS *node_params, CUcontext context, bool cooperative, struct action *action);
CUresult action_memcpy(const CUDA_MEMCPY3D *node_params, CUcontext context, struct action *action);
CUresult action_memset(const CUDA_MEMSET_NODE_PARAMS *node_params, CUcontext context, struct action *action);
CUresult action_alloc(struct device *device, size_t bytes, struct action *action);

#endif
