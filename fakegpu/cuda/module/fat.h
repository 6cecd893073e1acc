/* Fat binaries, as compilers write them. */
#ifndef FAKEGPU_CUDA_MODULE_FAT_H
#define FAKEGPU_CUDA_MODULE_FAT_H

#include <stdint.h>

#define FAT_MAGIC UINT32_C(0xba55ed50)
enum {
    FAT_PTX = 1,      /* the same program for another generation: one of them counts */
    FAT_ELF = 2,
    FAT_PTX_PART = 99, /* ours: of several that were linked, each counts */
    FAT_COMPRESSED = 0x2000 | 0x8000,
    FAT_MAX_BYTES = 1 << 30,
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* after the header */
};
struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* after the header */
    uint32_t compressed_bytes, unknown;
    uint16_t minor, major;
    uint32_t architecture, name_offset, name_bytes;
    uint64_t flags;
};

#endif
