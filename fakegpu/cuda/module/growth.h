/* Memory that the driver takes implicitly, and that stays until the context ends.
 *
 * Stacks always; the rest for GPUs whose description says so (`growth`). The rules are what NVIDIA H200s did with driver 580
 * (docs/measurements/2026-11-h200.md). */
#ifndef FAKEGPU_CUDA_MODULE_GROWTH_H
#define FAKEGPU_CUDA_MODULE_GROWTH_H

#include "cuda/module/modules.h"

/* Before a launch: stacks as large as the context's limit says; the driver's own code with the context's first launch, and a page with
 * the first one of each further module. CUDA_ERROR_OUT_OF_MEMORY. */
CUresult growth_launch(CUcontext context, CUfunction function);

/* For one stream more than there are: as many as there were at most are kept. CUDA_ERROR_OUT_OF_MEMORY. */
CUresult growth_stream(CUcontext context);
void growth_stream_gone(CUcontext context);

/* Managed memory that the GPU writes for the first time is there twice. CUDA_ERROR_OUT_OF_MEMORY. */
CUresult growth_written(CUcontext context, CUdeviceptr address);

/* What a context costs from its beginning: one after a process's first costs more. */
uint64_t growth_context_bytes(const struct device *device);

#endif
