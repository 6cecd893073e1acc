/* NVLinks of a GPU, numbered: first those to other GPUs in their order, then those to switches. */
#ifndef FAKEGPU_NVML_TOPOLOGY_H
#define FAKEGPU_NVML_TOPOLOGY_H

#include "description/description.h"

struct link_end {
    bool to_switch;
    uint32_t peer; /* position of the GPU at the other end; switches are numbered from 0 */
    struct pci_address pci;
};

/* How many NVLinks the GPU at `position` has. */
uint32_t link_count(const struct description *description, uint32_t position);

/* What is at the other end of one of them; false when there is no such link. */
bool link_end(const struct description *description, uint32_t position, uint32_t link, struct link_end *end);

/* The generation of NVLink that a GPU of this compute capability has, 0 for none known. */
uint32_t link_generation(const struct gpu *gpu);

/* MB/s of one link in one direction. */
uint32_t link_speed_mbps(const struct gpu *gpu);

#endif
