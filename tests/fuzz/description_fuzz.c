/* The fake driver's description of a node: accepted values are within bounds, a rejected one has a one-line reason. */
#define _GNU_SOURCE
#include "description/mig.h"
#include "description/reading.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct description node;
    char message[MESSAGE_MAX] = "";
    if (!description_read((const char *)bytes, size, "node", &node, message)) {
        must_be_a_message(message, sizeof message);
        return 0;
    }
    MUST(node.gpu_count <= GPUS_MAX);
    for (uint32_t a = 0; a < node.gpu_count; a++) {
        const struct gpu *gpu = &node.gpus[a];
        MUST(gpu->process_count <= PROCESSES_MAX && gpu->xid_count <= XIDS_MAX && gpu->reserved_mib <= gpu->total_mib);
        MUST(memchr(gpu->model, '\0', sizeof gpu->model) && memchr(gpu->uuid, '\0', sizeof gpu->uuid));
        MUST(gpu->instance_count <= GPU_INSTANCES_MAX);
        uint32_t slices = 0;
        for (uint32_t i = 0; i < gpu->instance_count; i++) {
            MUST(gpu->instances[i].profile && mig_may_start(gpu->instances[i].profile, gpu->instances[i].start));
            slices += gpu->instances[i].profile->memory_slices;
        }
        MUST(slices <= 8);
        for (uint32_t b = 0; b < node.gpu_count; b++) {
            enum path path = description_path(&node, a, b);
            MUST(path > PATH_UNSAID && path <= PATH_SYS && path == description_path(&node, b, a));
        }
    }
    return 0;
}
