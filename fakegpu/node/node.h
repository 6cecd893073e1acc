/* The node as this process sees it: the description in its present state, cut to the visible GPUs.
 *
 * The file may be replaced at any moment (by rename). Every call looks at its inode and time
 * first, so a fault written into it shows in the next call. A version that cannot be read is reported
 * once on stderr; the last good one stays in force, so that a typing error takes no node down.
 * A file that is gone is a driver that is gone.
 *
 * All functions are thread-safe; one mutex guards the description, and none of them waits for
 * anything but the file. */
#ifndef FAKEGPU_NODE_NODE_H
#define FAKEGPU_NODE_NODE_H

#include "description/description.h"
#include "interface/nvml.h"
#include "node/cgroups.h"

struct node {
    const struct description *description;
    uint32_t visible_count;
    uint32_t visible[GPUS_MAX]; /* index in the description of each GPU that this process sees */
};

/* Counted: each success needs its own node_close. Reports a problem on stderr, once per version of the file. */
nvmlReturn_t node_open(void);
nvmlReturn_t node_close(void);

/* Brings the description up to date and locks it; on success node_unlock must follow.
 * `caller` is the NVML function's name, for FAKEGPU_TRACE. */
nvmlReturn_t node_lock(const struct node **node, const char *caller);
void node_unlock(void);

/* Where this node's GPUs keep their state (node/state.h), as an absolute path of at most STATE_DIRECTORY_MAX bytes with its end.
 * Not under lock. */
enum { STATE_DIRECTORY_MAX = 4096 };
nvmlReturn_t node_state_directory(char path[STATE_DIRECTORY_MAX]);

/* The cgroups that this process is in (node/cgroups.h). Not under lock. */
void node_cgroups(uint64_t ids[CGROUPS_DEEP]);

/* Whether a path leads to below the root of all cgroups. Not under lock. */
bool node_is_cgroup(const char *path);

/* Handles stay the same for the life of the process, whatever happens to the file. Under lock only. */
nvmlDevice_t node_handle(const struct gpu *gpu);

/* Position in the description of the GPU behind a handle, when it is there and visible; under lock only. */
nvmlReturn_t node_find(const struct node *node, nvmlDevice_t device, uint32_t *position);

/* The error that a GPU's fault makes of every call, NVML_SUCCESS for none. */
nvmlReturn_t gpu_state(const struct gpu *gpu);

/* Copies the GPU behind a handle, and the index under which this process sees it. MIG devices are refused: most functions do
 * not support them. */
nvmlReturn_t node_gpu(nvmlDevice_t device, struct gpu *gpu, uint32_t *index, const char *caller);

/* The same for functions that support both: a MIG device is copied as a GPU of its own (description/mig.h), its parent's position is
 * stored in `parent` (may be NULL). */
nvmlReturn_t node_device(nvmlDevice_t device, struct gpu *gpu, uint32_t *parent, const char *caller);

/* Changes the MIG mode and instances of a GPU, for all processes: what `change` makes of them is written into the
 * description. `change` may return an error, and then nothing changes. */
typedef nvmlReturn_t gpu_change(struct gpu *gpu, void *argument);
nvmlReturn_t node_change(nvmlDevice_t device, gpu_change *change, void *argument, const char *caller);

#define REQUIRE(condition)                                                                                 \
    do {                                                                                                   \
        if (!(condition))                                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                                            \
    } while (0)

/* Declares `gpu`, a copy of what the description says of `device`, or returns the error. */
#define READ_GPU(device, gpu)                                                                              \
    struct gpu gpu;                                                                                        \
    do {                                                                                                   \
        nvmlReturn_t refused_ = node_gpu((device), &gpu, NULL, __func__);                                  \
        if (refused_ != NVML_SUCCESS)                                                                      \
            return refused_;                                                                               \
    } while (0)

/* The same, of a GPU or a MIG device. */
#define READ_DEVICE(device, gpu)                                                                           \
    struct gpu gpu;                                                                                        \
    do {                                                                                                   \
        nvmlReturn_t refused_ = node_device((device), &gpu, NULL, __func__);                               \
        if (refused_ != NVML_SUCCESS)                                                                      \
            return refused_;                                                                               \
    } while (0)

#endif
