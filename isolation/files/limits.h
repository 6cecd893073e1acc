/* The limits file: what the node agent gives a container. Text, read-only for the tenant.
 *
 *     gpushare-limits 1.2
 *     container <namespace>/<pod>/<container> <uid of the pod>
 *     gpu <UUID> memory_bytes=<n> [core_percent=<1..100>] [core_policy=hard|idle] [core_class=latency|batch]
 *     [allowance]
 *
 * A line ends with LF; words are separated by one space. GPUs that are not named are refused. A file of another
 * major version is refused as a whole, and so is anything odd in one of the same minor version or an older one; of a higher
 * minor version, unknown lines and unknown keys are passed over. 1.1 added core_class and 1.2 'allowance', which are
 * taken in older files too.
 *
 * With 'allowance' there is a file of that name next to this one, read-only for the tenant, too: LIMITED_GPUS_MAX words of eight bytes, what the
 * container may take of each GPU at this moment, in the order of the lines here. memory_bytes is then its request. */
#ifndef ISOLATION_FILES_LIMITS_H
#define ISOLATION_FILES_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LIMITS_MAJOR = 1,
    LIMITS_MINOR = 2,
    LIMITED_GPUS_MAX = 16,
    LIMITS_MAX_BYTES = 64 << 10,
    LIMITS_MESSAGE_MAX = 256,
};

enum core_policy {
    CORE_HARD, /* its share and no more, alone on the GPU too */
    CORE_IDLE, /* what the others leave idle as well */
};

/* What the container's work is like, as its owner says. */
enum core_class {
    CORE_INFERRED, /* not declared: follows from what it does */
    CORE_LATENCY,  /* interactive: a user waits for it */
    CORE_BATCH,    /* throughput only */
};

struct gpu_limit {
    char uuid[64];         /* "GPU-..." or "MIG-...", as NVML spells it */
    uint64_t memory_bytes; /* a multiple of 1 MiB */
    unsigned core_percent; /* of the GPU's time, 1 to 100; 0: not limited */
    enum core_policy core_policy;
    enum core_class core_class;
};

struct limits {
    char container[512]; /* <namespace>/<pod>/<container> */
    char pod_uid[64];
    bool allowance; /* memory is limited by the file of that name */
    unsigned gpu_count;
    struct gpu_limit gpus[LIMITED_GPUS_MAX];
};

/* Reads `size` bytes of text. False: refused, and `message` says the line, what is wrong with it, and what to do. */
bool limits_read(const char *text, size_t size, struct limits *limits, char message[LIMITS_MESSAGE_MAX]);

/* Reads the file at `path`. False: as above; the message names the file. */
bool limits_read_file(const char *path, struct limits *limits, char message[LIMITS_MESSAGE_MAX]);

#endif
