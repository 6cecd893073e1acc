/* The limits file: accepted limits are within bounds and mean the same when written again; rejected ones have a reason. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "files/limits.h"

static size_t write_again(const struct limits *limits, char *text, size_t room)
{
    int size = snprintf(text, room, "gpushare-limits %d.%d\ncontainer %s %s\n", LIMITS_MAJOR, LIMITS_MINOR, limits->container,
                        limits->pod_uid);
    for (unsigned i = 0; i < limits->gpu_count; i++) {
        const struct gpu_limit *gpu = &limits->gpus[i];
        size += snprintf(text + size, room - (size_t)size, "gpu %s memory_bytes=%llu", gpu->uuid,
                         (unsigned long long)gpu->memory_bytes);
        if (gpu->core_percent)
            size += snprintf(text + size, room - (size_t)size, " core_percent=%u", gpu->core_percent);
        size += snprintf(text + size, room - (size_t)size, " core_policy=%s", gpu->core_policy == CORE_IDLE ? "idle" : "hard");
        if (gpu->core_class != CORE_INFERRED)
            size += snprintf(text + size, room - (size_t)size, " core_class=%s", gpu->core_class == CORE_BATCH ? "batch" : "latency");
        size += snprintf(text + size, room - (size_t)size, "\n");
    }
    if (limits->allowance)
        size += snprintf(text + size, room - (size_t)size, "allowance\n");
    return (size_t)size;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits limits, again;
    char message[LIMITS_MESSAGE_MAX] = "", text[8192];
    if (!limits_read((const char *)bytes, size, &limits, message)) {
        must_be_a_message(message, sizeof message);
        return 0;
    }
    MUST(limits.gpu_count <= LIMITED_GPUS_MAX && limits.container[0] && limits.pod_uid[0]);
    for (unsigned i = 0; i < limits.gpu_count; i++) {
        const struct gpu_limit *gpu = &limits.gpus[i];
        MUST(memchr(gpu->uuid, '\0', sizeof gpu->uuid));
        MUST(gpu->memory_bytes % (1 << 20) == 0 && gpu->memory_bytes <= UINT64_C(1) << 48 && gpu->core_percent <= 100);
    }
    MUST(limits_read(text, write_again(&limits, text, sizeof text), &again, message));
    MUST(!memcmp(&limits, &again, sizeof limits));
    return 0;
}
