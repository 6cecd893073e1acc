#include "cuda/device/data_sheet.h"

#include <stddef.h>

/* The last attribute of CUDA 13; what the table does not have is 0 or "no". */
enum { ATTRIBUTES = 162 };

/* The same for every GPU of the generations that descriptions have. Names are those of the interface, without its prefix. */
static const int same_for_all[ATTRIBUTES] = {
    [1] = 1024,         /* MAX_THREADS_PER_BLOCK */
    [2] = 1024,         /* MAX_BLOCK_DIM_X */
    [3] = 1024,         /* MAX_BLOCK_DIM_Y */
    [4] = 64,           /* MAX_BLOCK_DIM_Z */
    [5] = 2147483647,   /* MAX_GRID_DIM_X */
    [6] = 65535,        /* MAX_GRID_DIM_Y */
    [7] = 65535,        /* MAX_GRID_DIM_Z */
    [8] = 49152,        /* MAX_SHARED_MEMORY_PER_BLOCK */
    [9] = 65536,        /* TOTAL_CONSTANT_MEMORY */
    [10] = 32,          /* WARP_SIZE */
    [11] = 2147483647,  /* MAX_PITCH */
    [12] = 65536,       /* MAX_REGISTERS_PER_BLOCK */
    [14] = 512,         /* TEXTURE_ALIGNMENT */
    [15] = 1,           /* GPU_OVERLAP */
    [19] = 1,           /* CAN_MAP_HOST_MEMORY */
    [21] = 131072,      /* MAXIMUM_TEXTURE1D_WIDTH */
    [22] = 131072,      /* MAXIMUM_TEXTURE2D_WIDTH */
    [23] = 65536,       /* MAXIMUM_TEXTURE2D_HEIGHT */
    [24] = 16384,       /* MAXIMUM_TEXTURE3D_WIDTH */
    [25] = 16384,       /* MAXIMUM_TEXTURE3D_HEIGHT */
    [26] = 16384,       /* MAXIMUM_TEXTURE3D_DEPTH */
    [27] = 32768,       /* MAXIMUM_TEXTURE2D_LAYERED_WIDTH */
    [28] = 32768,       /* MAXIMUM_TEXTURE2D_LAYERED_HEIGHT */
    [29] = 2048,        /* MAXIMUM_TEXTURE2D_LAYERED_LAYERS */
    [30] = 512,         /* SURFACE_ALIGNMENT */
    [31] = 1,           /* CONCURRENT_KERNELS */
    [40] = 2,           /* ASYNC_ENGINE_COUNT */
    [41] = 1,           /* UNIFIED_ADDRESSING */
    [42] = 32768,       /* MAXIMUM_TEXTURE1D_LAYERED_WIDTH */
    [43] = 2048,        /* MAXIMUM_TEXTURE1D_LAYERED_LAYERS */
    [45] = 32768,       /* MAXIMUM_TEXTURE2D_GATHER_WIDTH */
    [46] = 32768,       /* MAXIMUM_TEXTURE2D_GATHER_HEIGHT */
    [47] = 8192,        /* MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE */
    [48] = 8192,        /* MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE */
    [49] = 32768,       /* MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE */
    [51] = 32,          /* TEXTURE_PITCH_ALIGNMENT */
    [52] = 32768,       /* MAXIMUM_TEXTURECUBEMAP_WIDTH */
    [53] = 32768,       /* MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH */
    [54] = 2046,        /* MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS */
    [55] = 32768,       /* MAXIMUM_SURFACE1D_WIDTH */
    [56] = 131072,      /* MAXIMUM_SURFACE2D_WIDTH */
    [57] = 65536,       /* MAXIMUM_SURFACE2D_HEIGHT */
    [58] = 16384,       /* MAXIMUM_SURFACE3D_WIDTH */
    [59] = 16384,       /* MAXIMUM_SURFACE3D_HEIGHT */
    [60] = 16384,       /* MAXIMUM_SURFACE3D_DEPTH */
    [61] = 32768,       /* MAXIMUM_SURFACE1D_LAYERED_WIDTH */
    [62] = 2048,        /* MAXIMUM_SURFACE1D_LAYERED_LAYERS */
    [63] = 32768,       /* MAXIMUM_SURFACE2D_LAYERED_WIDTH */
    [64] = 32768,       /* MAXIMUM_SURFACE2D_LAYERED_HEIGHT */
    [65] = 2048,        /* MAXIMUM_SURFACE2D_LAYERED_LAYERS */
    [66] = 32768,       /* MAXIMUM_SURFACECUBEMAP_WIDTH */
    [67] = 32768,       /* MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH */
    [68] = 2046,        /* MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS */
    [69] = 134217728,   /* MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
    [70] = 131072,      /* MAXIMUM_TEXTURE2D_LINEAR_WIDTH */
    [71] = 65000,       /* MAXIMUM_TEXTURE2D_LINEAR_HEIGHT */
    [72] = 2097120,     /* MAXIMUM_TEXTURE2D_LINEAR_PITCH */
    [73] = 32768,       /* MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH */
    [74] = 32768,       /* MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT */
    [77] = 32768,       /* MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH */
    [78] = 1,           /* STREAM_PRIORITIES_SUPPORTED */
    [79] = 1,           /* GLOBAL_L1_CACHE_SUPPORTED */
    [80] = 1,           /* LOCAL_L1_CACHE_SUPPORTED */
    [82] = 65536,       /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    [83] = 1,           /* MANAGED_MEMORY */
    [87] = 2,           /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
    [90] = 1,           /* COMPUTE_PREEMPTION_SUPPORTED */
    [91] = 1,           /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    [95] = 1,           /* COOPERATIVE_LAUNCH */
    [99] = 1,           /* HOST_REGISTER_SUPPORTED */
    [102] = 1,          /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    [103] = 1,          /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    [106] = 32,         /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    [111] = 1024,       /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    [115] = 1,          /* MEMORY_POOLS_SUPPORTED */
    [129] = 1,          /* UNIFIED_FUNCTION_POINTERS */
    [134] = -1,         /* HOST_NUMA_ID */
    [131] = -1,         /* NUMA_ID */
};

/* What generations differ in, by compute capability times ten; the nearest one below counts. */
static const struct generation {
    uint32_t compute;
    int multiprocessors, threads, shared_kib, shared_optin_kib, l2_mib, bus_bits;
} generations[] = {
    {0, 16, 2048, 96, 48, 2, 256},
    {60, 56, 2048, 64, 48, 4, 4096},
    {70, 80, 2048, 96, 96, 6, 4096},
    {75, 40, 1024, 64, 64, 4, 256},
    {80, 108, 2048, 164, 163, 40, 5120},
    {86, 84, 1536, 100, 99, 6, 384},
    {89, 128, 1536, 100, 99, 72, 384},
    {90, 132, 2048, 228, 227, 50, 5120},
    {100, 148, 2048, 228, 227, 126, 8192},
};

static const struct generation *generation_of(const struct gpu *gpu)
{
    const struct generation *found = generations;
    for (size_t i = 0; i < sizeof generations / sizeof generations[0]; i++) {
        if (generations[i].compute <= gpu->compute_major * 10 + gpu->compute_minor)
            found = &generations[i];
    }
    return found;
}

bool data_sheet_value(const struct gpu *gpu, int attribute, int *value)
{
    const struct generation *generation = generation_of(gpu);
    if (attribute < 1 || attribute >= ATTRIBUTES)
        return false;
    switch (attribute) {
    case 13: /* CLOCK_RATE, kHz */
        *value = (int)gpu->clock_max_mhz[CLOCK_SM] * 1000;
        return true;
    case 16: /* MULTIPROCESSOR_COUNT */
        *value = gpu->multiprocessors ? (int)gpu->multiprocessors : generation->multiprocessors;
        return true;
    case 32: /* ECC_ENABLED */
        *value = gpu->ecc == SWITCH_ON;
        return true;
    case 33: /* PCI_BUS_ID */
        *value = (int)gpu->pci.bus;
        return true;
    case 34: /* PCI_DEVICE_ID */
        *value = (int)gpu->pci.device;
        return true;
    case 36: /* MEMORY_CLOCK_RATE, kHz */
        *value = (int)gpu->clock_max_mhz[CLOCK_MEMORY] * 1000;
        return true;
    case 37: /* GLOBAL_MEMORY_BUS_WIDTH */
        *value = generation->bus_bits;
        return true;
    case 38: /* L2_CACHE_SIZE */
        *value = generation->l2_mib << 20;
        return true;
    case 39: /* MAX_THREADS_PER_MULTIPROCESSOR */
        *value = generation->threads;
        return true;
    case 50: /* PCI_DOMAIN_ID */
        *value = (int)gpu->pci.domain;
        return true;
    case 75: /* COMPUTE_CAPABILITY_MAJOR */
        *value = (int)gpu->compute_major;
        return true;
    case 76: /* COMPUTE_CAPABILITY_MINOR */
        *value = (int)gpu->compute_minor;
        return true;
    case 81: /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
        *value = generation->shared_kib << 10;
        return true;
    case 97: /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
        *value = generation->shared_optin_kib << 10;
        return true;
    case 119: /* MEMPOOL_SUPPORTED_HANDLE_TYPES: descriptors */
        *value = 1;
        return true;
    default:
        *value = same_for_all[attribute];
        return true;
    }
}
