/* Files of memory that other processes may open, as those who free memory see them. */
#ifndef FAKEGPU_CUDA_MEMORY_IPC_H
#define FAKEGPU_CUDA_MEMORY_IPC_H

#include "cuda/memory/arena.h"
#include "cuda/memory/records.h"
#include "interface/cuda_memory.h"

/* Under lock: the handle of a piece of memory. */
CUresult ipc_export(struct record *record, CUipcMemHandle *handle);

/* Opens it, for the context or as a piece of the pool. */
CUresult ipc_open(CUcontext context, void *pool, const CUipcMemHandle *handle, CUdeviceptr *address);

#endif
