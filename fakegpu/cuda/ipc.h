/* Files of memory that other processes may open, as those who free memory see them. */
#ifndef FAKEGPU_CUDA_IPC_H
#define FAKEGPU_CUDA_IPC_H

#include "cuda/arena.h"

/* The mapping goes: nobody opens its file any more, if it has one. */
void ipc_forget(const struct device *device, const struct shared_file *shared);

/* Removes what the dead owner of a slot left. */
void ipc_clear_slot(const struct device *device, unsigned slot);

#endif
