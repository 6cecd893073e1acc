/* What a description file says of a node's GPUs, as plain values; docs/developer/fakegpu.md describes the format.
 *
 * This part knows neither files nor NVML: it turns text into values or into one message. Both
 * stand-in libraries of this folder read their node through it, and the playground's Python
 * reader (gpus.py) gives the same messages word for word: a test holds the two together. */
#ifndef FAKEGPU_DESCRIPTION_DESCRIPTION_H
#define FAKEGPU_DESCRIPTION_DESCRIPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GPUS_MAX = 32,        /* GPUs of a node */
    PROCESSES_MAX = 64,   /* processes named for one GPU */
    XIDS_MAX = 16,        /* distinct XIDs of one GPU */
    LINKS_MAX = 18,       /* NVLinks of one GPU, as many as NVML 535 knows */
    CPUS_MAX = 1024,      /* CPUs of a node */
    TEXT_MAX = 63,        /* bytes of a model's or a process's name */
    LINE_MAX_BYTES = 511, /* bytes of a line without its end */
    DESCRIPTION_MAX_BYTES = 1 << 20,
    MESSAGE_MAX = 1024,
    GPU_INSTANCES_MAX = 7,     /* MIG instances of one GPU */
    COMPUTE_INSTANCES_MAX = 7, /* of one GPU instance */
    PROFILE_NAME_MAX = 15,     /* bytes of the name of a MIG profile */
};

enum clock_kind { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_KINDS };

/* How two GPUs of a node reach each other without NVLink, nearest first. */
enum path { PATH_UNSAID, PATH_PIX, PATH_PXB, PATH_PHB, PATH_NODE, PATH_SYS };

/* A fault that makes every call on a GPU fail. */
enum gpu_fault { GPU_WELL, GPU_LOST, GPU_RESET_REQUIRED, GPU_UNKNOWN_ERROR };

/* A fault that makes the whole driver fail. */
enum driver_fault { DRIVER_WELL, DRIVER_NOT_LOADED, DRIVER_VERSION_MISMATCH };

/* What the driver wants done before the GPU works again; numbered as the interface does. */
enum recovery {
    RECOVERY_NONE,
    RECOVERY_GPU_RESET,
    RECOVERY_NODE_REBOOT,
    RECOVERY_DRAIN_P2P,
    RECOVERY_DRAIN_AND_RESET,
    RECOVERY_IMEX_DOMAIN,
    RECOVERY_BUS_RESET,
    RECOVERY_SYSTEM_REBOOT,
};

enum switched { SWITCH_UNSAID, SWITCH_OFF, SWITCH_ON };

struct process {
    uint32_t pid;
    uint32_t used_mib;
    bool graphics;
    char name[TEXT_MAX + 1]; /* empty: /proc is asked */
};

struct xid {
    uint32_t number;
    uint32_t count; /* how often it has happened so far; an event is sent for each step up */
};

struct pci_address {
    uint32_t domain, bus, device, function;
};

/* A part of a GPU instance's compute slices; its id is its place in the list. */
struct compute_instance {
    uint32_t start, slices; /* no slices: there is none with this id */
    bool hidden;            /* this process does not see it */
};

struct mig_profile;

/* A part of a GPU in MIG mode (description/mig.h). */
struct gpu_instance {
    char name[PROFILE_NAME_MAX + 1];    /* of its profile, while the GPU's lines are read */
    const struct mig_profile *profile;
    uint32_t start;
    struct compute_instance compute[COMPUTE_INSTANCES_MAX];
};

struct gpu {
    char model[TEXT_MAX + 1];
    char uuid[41]; /* "GPU-" and 36 characters, lower case */
    char serial[TEXT_MAX + 1]; /* empty: none */
    char vbios[TEXT_MAX + 1];  /* empty: none */
    struct pci_address pci;
    uint32_t total_mib, reserved_mib;
    uint32_t context_mib; /* what each CUDA context takes for itself */
    /* What comes to it without being asked for (cuda/growth.h); without `grows` nothing. */
    bool grows;
    uint32_t launch_mib, stream_kib, further_context_kib;
    uint32_t compute_major, compute_minor;
    uint32_t minor;   /* /dev/nvidiaN */
    int32_t numa;     /* -1: none */
    uint64_t cpus[CPUS_MAX / 64]; /* all zero: none said */
    uint32_t pcie_generation, pcie_width;
    uint32_t temperature_c, slowdown_c, shutdown_c;
    uint32_t power_w, power_limit_w;
    uint32_t clock_mhz[CLOCK_KINDS], clock_max_mhz[CLOCK_KINDS];
    int32_t fan_percent; /* -1: no fan */
    uint32_t gpu_percent, memory_percent;
    enum switched persistence, ecc;
    uint32_t switch_links; /* NVLinks that end in a switch */
    enum gpu_fault fault;
    enum recovery recovery;
    uint32_t ecc_corrected, ecc_uncorrected;
    uint32_t xid_count;
    struct xid xids[XIDS_MAX];
    uint32_t process_count;
    struct process processes[PROCESSES_MAX];
    enum switched mig; /* unsaid: off */
    uint32_t instance_count;
    struct gpu_instance instances[GPU_INSTANCES_MAX]; /* in the order of their ids */
    /* Of a MIG device, which is described as a GPU of its own with one instance; never of what a file describes. */
    bool mig_device;
    char parent_uuid[41];
    uint32_t gpu_instance, compute_instance; /* ids; of a GPU UINT32_MAX */
    uint32_t multiprocessors;                /* 0: what the generation has */
};

struct description {
    char driver_version[33];
    uint32_t cuda_major, cuda_minor;
    enum driver_fault fault;
    uint32_t gpu_count;
    struct gpu gpus[GPUS_MAX];
    uint8_t path[GPUS_MAX][GPUS_MAX];   /* enum path, symmetric, as the file says it */
    uint8_t nvlinks[GPUS_MAX][GPUS_MAX]; /* direct links between two GPUs, symmetric */
};

#endif
