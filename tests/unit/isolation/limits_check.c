/* Reads a limits file: prints what it says, or why it is refused and ends with 1. */
#include <stdio.h>

#include "files/limits.h"

static const char *const classes[] = {"inferred", "latency", "batch"};

int main(int count, char **arguments)
{
    struct limits limits;
    char message[LIMITS_MESSAGE_MAX];
    if (count != 2 || !limits_read_file(arguments[1], &limits, message)) {
        fprintf(stderr, "%s\n", count == 2 ? message : "usage: limits_check FILE");
        return count == 2 ? 1 : 2;
    }
    printf("%s %s\n", limits.container, limits.pod_uid);
    for (unsigned i = 0; i < limits.gpu_count; i++)
        printf("%s %llu %u %s %s\n", limits.gpus[i].uuid, (unsigned long long)limits.gpus[i].memory_bytes,
               limits.gpus[i].core_percent, limits.gpus[i].core_policy == CORE_IDLE ? "idle" : "hard", classes[limits.gpus[i].core_class]);
    return 0;
}
