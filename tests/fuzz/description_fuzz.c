/* The stand-in driver's description of a node: what is taken is within bounds, what is not has one line that says why. */
#define _GNU_SOURCE
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
        for (uint32_t b = 0; b < node.gpu_count; b++) {
            enum path path = description_path(&node, a, b);
            MUST(path > PATH_UNSAID && path <= PATH_SYS && path == description_path(&node, b, a));
        }
    }
    return 0;
}
