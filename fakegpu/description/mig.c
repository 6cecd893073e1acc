#include "description/mig.h"

#include <stdio.h>
#include <string.h>

/* name, NVML's number, id, slices, memory slices, at most, SMs, copy engines, decoders, JPEG, OFA, MiB, starts */
static const struct mig_profile a100_80gb[MIG_PROFILES] = {
    {"1g.10gb", 0, 19, 1, 1, 7, 14, 1, 0, 0, 0, 9728, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.10gb+me", 7, 20, 1, 1, 1, 14, 1, 1, 1, 1, 9728, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.20gb", 9, 15, 1, 2, 4, 14, 1, 1, 0, 0, 19968, 4, {6, 4, 0, 2}},
    {"2g.20gb", 1, 14, 2, 2, 3, 28, 2, 1, 0, 0, 19968, 3, {4, 0, 2}},
    {"3g.40gb", 2, 9, 3, 4, 2, 42, 3, 2, 0, 0, 40192, 2, {4, 0}},
    {"4g.40gb", 3, 5, 4, 4, 1, 56, 4, 2, 0, 0, 40192, 1, {0}},
    {"7g.80gb", 4, 0, 7, 8, 1, 98, 7, 5, 1, 1, 80896, 1, {0}},
};
static const struct mig_profile h100_80gb[MIG_PROFILES] = {
    {"1g.10gb", 0, 19, 1, 1, 7, 16, 1, 1, 1, 0, 9984, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.10gb+me", 7, 20, 1, 1, 1, 16, 1, 1, 1, 1, 9984, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.20gb", 9, 15, 1, 2, 4, 26, 1, 1, 1, 0, 20096, 4, {6, 4, 0, 2}},
    {"2g.20gb", 1, 14, 2, 2, 3, 32, 2, 2, 2, 0, 20096, 3, {4, 0, 2}},
    {"3g.40gb", 2, 9, 3, 4, 2, 60, 3, 3, 3, 0, 40448, 2, {4, 0}},
    {"4g.40gb", 3, 5, 4, 4, 1, 64, 4, 4, 4, 0, 40448, 1, {0}},
    {"7g.80gb", 4, 0, 7, 8, 1, 132, 8, 7, 7, 1, 81152, 1, {0}},
};
/* Memory of an H200's instances is what CUDA programs print of them. */
static const struct mig_profile h200_141gb[MIG_PROFILES] = {
    {"1g.18gb", 0, 19, 1, 1, 7, 16, 1, 1, 1, 0, 16384, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.18gb+me", 7, 20, 1, 1, 1, 16, 1, 1, 1, 1, 16384, 7, {6, 4, 5, 0, 1, 2, 3}},
    {"1g.35gb", 9, 15, 1, 2, 4, 26, 1, 1, 1, 0, 33280, 4, {6, 4, 0, 2}},
    {"2g.35gb", 1, 14, 2, 2, 3, 32, 2, 2, 2, 0, 33280, 3, {4, 0, 2}},
    {"3g.71gb", 2, 9, 3, 4, 2, 60, 3, 3, 3, 0, 66560, 2, {4, 0}},
    {"4g.71gb", 3, 5, 4, 4, 1, 64, 4, 4, 4, 0, 66560, 1, {0}},
    {"7g.141gb", 4, 0, 7, 8, 1, 132, 8, 7, 7, 1, 143360, 1, {0}},
};

const struct mig_profile *mig_profiles(const struct gpu *gpu)
{
    bool has_80gb = gpu->total_mib > 80000 && gpu->total_mib <= 81920;
    if (gpu->compute_major == 8 && gpu->compute_minor == 0)
        return has_80gb ? a100_80gb : NULL;
    if (gpu->compute_major == 9 && gpu->compute_minor == 0)
        return has_80gb ? h100_80gb : gpu->total_mib > 140000 && gpu->total_mib <= 144384 ? h200_141gb : NULL;
    return NULL;
}

const struct mig_profile *mig_profile_named(const struct gpu *gpu, const char *name)
{
    const struct mig_profile *profiles = mig_profiles(gpu);
    for (int i = 0; profiles && i < MIG_PROFILES; i++) {
        if (!strcmp(profiles[i].name, name))
            return &profiles[i];
    }
    return NULL;
}

const struct mig_profile *mig_profile_numbered(const struct gpu *gpu, uint32_t number)
{
    const struct mig_profile *profiles = mig_profiles(gpu);
    for (int i = 0; profiles && i < MIG_PROFILES; i++) {
        if (profiles[i].number == number)
            return &profiles[i];
    }
    return NULL;
}

const struct mig_profile *mig_profile_with_id(const struct gpu *gpu, uint32_t id)
{
    const struct mig_profile *profiles = mig_profiles(gpu);
    for (int i = 0; profiles && i < MIG_PROFILES; i++) {
        if (profiles[i].id == id)
            return &profiles[i];
    }
    return NULL;
}

/* --- GPU instances --------------------------------------------------------------------------- */

bool mig_may_start(const struct mig_profile *profile, uint32_t start)
{
    for (uint32_t i = 0; i < profile->start_count; i++) {
        if (profile->starts[i] == start)
            return true;
    }
    return false;
}

static bool overlap(uint32_t start, uint32_t size, uint32_t other_start, uint32_t other_size)
{
    return start < other_start + other_size && other_start < start + size;
}

bool mig_is_free(const struct gpu *gpu, const struct mig_profile *profile, uint32_t start)
{
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        const struct gpu_instance *other = &gpu->instances[i];
        if (overlap(start, profile->memory_slices, other->start, other->profile->memory_slices))
            return false;
    }
    return true;
}

/* Places of one profile do not overlap each other, so each free one counts. */
uint32_t mig_remaining(const struct gpu *gpu, const struct mig_profile *profile)
{
    uint32_t places = 0, existing = 0;
    for (uint32_t i = 0; i < profile->start_count; i++)
        places += mig_is_free(gpu, profile, profile->starts[i]);
    for (uint32_t i = 0; i < gpu->instance_count; i++)
        existing += gpu->instances[i].profile == profile;
    uint32_t more = profile->at_most > existing ? profile->at_most - existing : 0;
    return places < more ? places : more;
}

/* Ids are dealt out from the largest size to the smallest: 0; 1 and 2; 3 to 6; 7 to 13. */
uint32_t mig_instance_id(const struct mig_profile *profile, uint32_t start)
{
    switch (profile->memory_slices) {
    case 8:
        return 0;
    case 4:
        return 1 + start / 4;
    case 2:
        return 3 + start / 2;
    default:
        return 7 + start;
    }
}

struct gpu_instance *mig_add(struct gpu *gpu, const struct mig_profile *profile, uint32_t start)
{
    uint32_t id = mig_instance_id(profile, start), at = gpu->instance_count++;
    for (; at && mig_instance_id(gpu->instances[at - 1].profile, gpu->instances[at - 1].start) > id; at--)
        gpu->instances[at] = gpu->instances[at - 1];
    gpu->instances[at] = (struct gpu_instance){.profile = profile, .start = start};
    return &gpu->instances[at];
}

void mig_remove(struct gpu *gpu, struct gpu_instance *instance)
{
    size_t after = (size_t)(&gpu->instances[gpu->instance_count] - instance) - 1;
    memmove(instance, instance + 1, after * sizeof *instance);
    gpu->instance_count--;
}

struct gpu_instance *mig_find(struct gpu *gpu, uint32_t id)
{
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        if (mig_instance_id(gpu->instances[i].profile, gpu->instances[i].start) == id)
            return &gpu->instances[i];
    }
    return NULL;
}

/* --- compute instances ------------------------------------------------------------------------ */

static const uint32_t compute_slices[MIG_COMPUTE_PROFILES] = {1, 2, 3, 4, 7};

uint32_t mig_compute_slices(const struct mig_profile *profile, uint32_t number)
{
    uint32_t slices = number < MIG_COMPUTE_PROFILES ? compute_slices[number] : 0;
    /* Four slices are halved and quartered only. */
    return slices <= profile->slices && !(profile->slices == 4 && slices == 3) ? slices : 0;
}

uint32_t mig_compute_number(uint32_t slices)
{
    uint32_t number = 0;
    while (compute_slices[number] != slices)
        number++;
    return number;
}

uint32_t mig_compute_multiprocessors(const struct mig_profile *profile, uint32_t slices)
{
    return slices == profile->slices ? profile->multiprocessors : slices * (profile->multiprocessors / profile->slices & ~1u);
}

uint32_t mig_compute_starts(const struct mig_profile *profile, uint32_t slices, uint32_t starts[MIG_STARTS_MAX])
{
    uint32_t count = 0, step = slices == 3 ? 4 : slices;
    for (uint32_t start = 0; start + slices <= profile->slices; start += step)
        starts[count++] = start;
    return count;
}

bool mig_compute_is_free(const struct gpu_instance *instance, uint32_t slices, uint32_t start)
{
    for (uint32_t i = 0; i < COMPUTE_INSTANCES_MAX; i++) {
        const struct compute_instance *other = &instance->compute[i];
        if (other->slices && overlap(start, slices, other->start, other->slices))
            return false;
    }
    return true;
}

/* --- MIG devices ------------------------------------------------------------------------------ */

void mig_name(const struct mig_profile *profile, uint32_t slices, char name[MIG_NAME_MAX])
{
    /* A compute instance is called without "+me", which the GPU instance has. */
    if (slices && slices < profile->slices)
        snprintf(name, MIG_NAME_MAX, "MIG %uc.%.10s", slices & 7, profile->name);
    else
        snprintf(name, MIG_NAME_MAX, "MIG %.10s", profile->name);
}

/* As the driver does: a hash of the GPU's UUID and of both ids, marked as version 5. */
void mig_uuid(const struct gpu *gpu, const struct gpu_instance *instance, uint32_t compute, char uuid[41])
{
    char text[96];
    unsigned char bytes[16];
    snprintf(text, sizeof text, "%s/%u/%u", gpu->uuid, mig_instance_id(instance->profile, instance->start), compute);
    for (int half = 0; half < 2; half++) {
        uint64_t hash = UINT64_C(14695981039346656037) + (uint64_t)half;
        for (const char *at = text; *at; at++)
            hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
        for (int round = 0; round < 3; round++)
            hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
        for (int i = 0; i < 8; i++)
            bytes[half * 8 + i] = (unsigned char)(hash >> 8 * i);
    }
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    char *end = uuid + sprintf(uuid, "MIG-");
    for (int i = 0; i < 16; i++)
        end += sprintf(end, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

static void describe(const struct gpu *gpu, const struct gpu_instance *instance, uint32_t compute, struct gpu *device)
{
    char name[MIG_NAME_MAX];
    uint32_t slices = instance->compute[compute].slices;
    mig_name(instance->profile, slices, name);
    *device = *gpu;
    snprintf(device->model, sizeof device->model, "%.39s %.23s", gpu->model, name);
    mig_uuid(gpu, instance, compute, device->uuid);
    device->total_mib = instance->profile->memory_mib;
    device->reserved_mib = 0;
    device->process_count = 0;
    device->instance_count = 1;
    device->instances[0] = *instance;
    device->mig_device = true;
    memcpy(device->parent_uuid, gpu->uuid, sizeof device->parent_uuid);
    device->gpu_instance = mig_instance_id(instance->profile, instance->start);
    device->compute_instance = compute;
    device->multiprocessors = mig_compute_multiprocessors(instance->profile, slices);
}

bool mig_device(const struct gpu *gpu, uint32_t index, struct gpu *device)
{
    if (gpu->mig != SWITCH_ON || gpu->mig_device)
        return false;
    for (uint32_t i = 0; i < gpu->instance_count; i++) {
        for (uint32_t compute = 0; compute < COMPUTE_INSTANCES_MAX; compute++) {
            const struct compute_instance *one = &gpu->instances[i].compute[compute];
            if (one->slices && !one->hidden && !index--) {
                describe(gpu, &gpu->instances[i], compute, device);
                return true;
            }
        }
    }
    return false;
}
