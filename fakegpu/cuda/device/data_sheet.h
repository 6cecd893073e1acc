/* The attributes of a device, by the interface's numbers. */
#ifndef FAKEGPU_CUDA_DEVICE_DATA_SHEET_H
#define FAKEGPU_CUDA_DEVICE_DATA_SHEET_H

#include "description/description.h"

/* False for a number that the interface does not have. */
bool data_sheet_value(const struct gpu *gpu, int attribute, int *value);

#endif
