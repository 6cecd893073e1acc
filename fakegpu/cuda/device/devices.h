/* How cuInit makes the table of devices. */
#ifndef FAKEGPU_CUDA_DEVICES_H
#define FAKEGPU_CUDA_DEVICES_H

#include "cuda/context/context.h"
#include "node/node.h"

/* Copies what the description says of the visible GPUs; CUDA_ERROR_NO_DEVICE for none. `directory` is where their state lies. */
CUresult devices_describe(const struct node *node, const char *directory);

/* Where IPC's files of a device lie, and how they begin: DIRECTORY/<uuid>.ipc- */
void device_ipc_prefix(const struct device *device, char *path, size_t size);

#endif
