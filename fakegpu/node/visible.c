#include "node/visible.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "description/mig.h"
#include "description/words.h"

enum { NAMES_MAX = 4096 };

static bool names_gpu(const char *word, const struct gpu *gpu, uint32_t position)
{
    uint32_t index;
    if (!strcmp(word, "all") || !strcmp(word, gpu->uuid))
        return true;
    return word_number(word, 0, GPUS_MAX - 1, &index) && index == position;
}

static bool needs_no_gpu(const char *word)
{
    return !*word || !strcmp(word, "none") || !strcmp(word, "void") || !strcmp(word, "all");
}

__attribute__((format(printf, 1, 0))) static bool exists(const char *format, unsigned number)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, format, number);
    return !stat(path, &status);
}

/* Access to a MIG device takes two device files, of its GPU instance and of its compute instance. Their numbers follow from the ids:
 * nine for each of fifteen GPU instances of a GPU, its own first (/proc/driver/nvidia-caps/mig-minors). */
static bool has_access(const struct gpu *gpu, const struct gpu_instance *instance, uint32_t compute)
{
    unsigned number = 3 + (gpu->minor * 15 + mig_instance_id(instance->profile, instance->start)) * 9;
    return exists("/dev/nvidia-caps/nvidia-cap%u", number) && exists("/dev/nvidia-caps/nvidia-cap%u", number + 1 + compute);
}

/* Shows the MIG devices that the word names, all of a GPU that it names. Returns whether it names any. */
static bool show(struct gpu *gpu, uint32_t position, const char *word)
{
    char uuid[41];
    bool whole = names_gpu(word, gpu, position), named = whole;
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        for (uint32_t compute = 0; compute < COMPUTE_INSTANCES_MAX; compute++) {
            struct compute_instance *one = &gpu->instances[i].compute[compute];
            if (!one->slices)
                continue;
            mig_uuid(gpu, &gpu->instances[i], compute, uuid);
            if (whole || !strcmp(word, uuid)) {
                one->hidden = false;
                named = true;
            }
        }
    }
    return named;
}

static void hide_all(struct gpu *gpu)
{
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        for (uint32_t compute = 0; compute < COMPUTE_INSTANCES_MAX; compute++)
            gpu->instances[i].compute[compute].hidden = true;
    }
}

static void hide_without_access(struct gpu *gpu)
{
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        for (uint32_t compute = 0; compute < COMPUTE_INSTANCES_MAX; compute++) {
            struct compute_instance *one = &gpu->instances[i].compute[compute];
            one->hidden |= one->slices && !has_access(gpu, &gpu->instances[i], compute);
        }
    }
}

/* GPUs keep the node's order whatever order the names have, as in a container of NVIDIA's runtime. */
uint32_t visible_choose(struct description *description, const char *names, bool by_files, uint32_t visible[GPUS_MAX],
                        char unknown[UNKNOWN_NAME_MAX])
{
    char copy[NAMES_MAX];
    bool chosen[GPUS_MAX] = {false};
    uint32_t count = 0;
    snprintf(copy, sizeof copy, "%s", names);
    unknown[0] = '\0';
    for (uint32_t i = 0; i < description->gpu_count; i++)
        hide_all(&description->gpus[i]);
    for (char *word = copy, *next; word; word = next) {
        if ((next = strchr(word, ',')))
            *next++ = '\0';
        bool fits = needs_no_gpu(word);
        for (uint32_t i = 0; i < description->gpu_count; i++) {
            if (show(&description->gpus[i], i, word))
                fits = chosen[i] = true;
        }
        if (!fits && !unknown[0])
            snprintf(unknown, UNKNOWN_NAME_MAX, "%.60s", word);
    }
    for (uint32_t i = 0; i < description->gpu_count; i++) {
        if (by_files)
            hide_without_access(&description->gpus[i]);
        if (chosen[i] && (!by_files || exists("/dev/nvidia%u", description->gpus[i].minor)))
            visible[count++] = i;
    }
    return count;
}
