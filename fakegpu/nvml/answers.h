/* Small answers that many functions of the interface give. */
#ifndef FAKEGPU_NVML_ANSWERS_H
#define FAKEGPU_NVML_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>

#include "description/description.h"
#include "interface/nvml.h"

#define MIB (UINT64_C(1) << 20)

/* Copies text into a caller's buffer, whole or not at all. */
nvmlReturn_t answer_text(const char *text, char *buffer, unsigned length);

/* "00000000:3B:00.0", in NVML's upper case. */
void write_bus_id(const struct pci_address *address, char text[32]);

/* Microseconds of the wall clock. */
int64_t wall_clock_us(void);

/* MiB that processes hold. */
uint64_t gpu_used_mib(const struct gpu *gpu);

/* Whether the GPU has ECC at all. */
bool gpu_has_ecc(const struct gpu *gpu);

#endif
