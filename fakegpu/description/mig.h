/* Multi-Instance GPU: which instances a model can be divided into, and what each of them is.
 *
 * Profiles and placements are those that `nvidia-smi mig -lgip` and `-lgipp` print on the models (NVIDIA's MIG user guide). Pure. */
#ifndef FAKEGPU_DESCRIPTION_MIG_H
#define FAKEGPU_DESCRIPTION_MIG_H

#include "description/description.h"

enum { MIG_STARTS_MAX = 7, MIG_PROFILES = 7, MIG_COMPUTE_PROFILES = 5 };

/* One kind of GPU instance. */
struct mig_profile {
    const char *name;      /* "3g.40gb" */
    uint32_t number;       /* NVML_GPU_INSTANCE_PROFILE_... */
    uint32_t id;           /* what nvidia-smi calls it by, and instances refer to */
    uint32_t slices;       /* of compute, seven in all */
    uint32_t memory_slices; /* eight in all; a placement's size */
    uint32_t at_most;      /* instances of it on an empty GPU */
    uint32_t multiprocessors, copy_engines, decoders, jpegs, ofas;
    uint32_t memory_mib;
    uint32_t start_count;
    uint32_t starts[MIG_STARTS_MAX]; /* where it may begin, in the order in which the driver tries them */
};

/* The model's profiles, in NVML's order of listing; NULL: it cannot be divided. There are MIG_PROFILES of them. */
const struct mig_profile *mig_profiles(const struct gpu *gpu);

/* By name, by NVML's number, by id; NULL: the model has no such profile. */
const struct mig_profile *mig_profile_named(const struct gpu *gpu, const char *name);
const struct mig_profile *mig_profile_numbered(const struct gpu *gpu, uint32_t number);
const struct mig_profile *mig_profile_with_id(const struct gpu *gpu, uint32_t id);

/* Whether the profile may begin there, and whether no instance occupies any of it. */
bool mig_may_start(const struct mig_profile *profile, uint32_t start);
bool mig_is_free(const struct gpu *gpu, const struct mig_profile *profile, uint32_t start);

/* How many more instances of the profile fit between those that exist. */
uint32_t mig_remaining(const struct gpu *gpu, const struct mig_profile *profile);

/* The id of a GPU instance, which follows from its placement. */
uint32_t mig_instance_id(const struct mig_profile *profile, uint32_t start);

/* Adds an instance, whose placement is free, and keeps them in the order of their ids. Returns it. */
struct gpu_instance *mig_add(struct gpu *gpu, const struct mig_profile *profile, uint32_t start);
void mig_remove(struct gpu *gpu, struct gpu_instance *instance);
struct gpu_instance *mig_find(struct gpu *gpu, uint32_t id);

/* Slices of a kind of compute instance by NVML's number, which is its id too; 0: the GPU instance has no such kind. */
uint32_t mig_compute_slices(const struct mig_profile *profile, uint32_t number);
uint32_t mig_compute_number(uint32_t slices);
uint32_t mig_compute_multiprocessors(const struct mig_profile *profile, uint32_t slices);

/* Where compute instances of so many slices may begin. Returns how many places there are. */
uint32_t mig_compute_starts(const struct mig_profile *profile, uint32_t slices, uint32_t starts[MIG_STARTS_MAX]);
bool mig_compute_is_free(const struct gpu_instance *instance, uint32_t slices, uint32_t start);

/* The profile's name as NVML has it: "MIG 3g.40gb", "MIG 1c.3g.40gb". */
enum { MIG_NAME_MAX = 24 };
void mig_name(const struct mig_profile *profile, uint32_t compute_slices, char name[MIG_NAME_MAX]);

/* What the MIG device of a compute instance is called; the same whenever the same instance exists. */
void mig_uuid(const struct gpu *gpu, const struct gpu_instance *instance, uint32_t compute, char uuid[41]);

/* MIG devices of the GPU that this process sees, as GPUs of their own; `index` counts from 0. False: there are not that many. */
bool mig_device(const struct gpu *gpu, uint32_t index, struct gpu *device);

#endif
