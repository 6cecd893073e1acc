/* What the CUDA half's processes hold and do of a GPU, as the NVML half reports it.
 *
 * Of processes it only reads: a slot whose owner is dead is left out, and cleared by the next CUDA process. Where no CUDA process
 * has been yet there is no state, and nothing is held; the first limit makes it. */
#ifndef FAKEGPU_NVML_STATE_H
#define FAKEGPU_NVML_STATE_H

#include "description/description.h"
#include "node/node.h"
#include "node/state.h"

struct gpu_user {
    pid_t pid; /* as this process's pid namespace has it; 0: it is not in it */
    uint64_t held_bytes;
    unsigned busy_percent; /* of the GPU's time in the window asked for */
};

/* Living processes that hold memory of a MIG device or of a GPU that is not in MIG mode, whose processes are its devices'. `users` may be NULL where only the sum of their memory is wanted; `window_ns` up to now
 * is what busy_percent is about (a bucket at least). Returns how many there are. */
unsigned gpu_users(const struct gpu *gpu, uint64_t window_ns, struct gpu_user users[SLOTS_MAX], uint64_t *held_bytes);

/* Sets what the processes of a cgroup may hold together (node/memory_limits.h), or says why not. */
nvmlReturn_t gpu_limit(const struct gpu *gpu, uint64_t cgroup, const char *path, uint64_t soft_bytes, uint64_t hard_bytes);

/* What is set on a cgroup, and what its processes hold. */
void gpu_limits(const struct gpu *gpu, uint64_t cgroup, uint64_t *soft_bytes, uint64_t *hard_bytes, uint64_t *held_bytes);

/* Percent of the last second in which the GPU worked: what the description says, and CUDA's work. */
unsigned gpu_busy_percent(const struct gpu *gpu);

/* Whether processes hold memory of it; of a GPU in MIG mode: of any of its devices. */
bool gpu_is_used(const struct gpu *gpu);

/* Bytes that processes hold, of all MIG devices together: those that the description names, and CUDA's. */
uint64_t gpu_used_bytes(const struct gpu *gpu);

#endif
