/* What this process takes of the container's GPU memory: every hook that takes or gives back memory goes through here. */
#ifndef ISOLATION_MEMORY_CHARGE_H
#define ISOLATION_MEMORY_CHARGE_H

#include "driver/driver.h"
#include "memory/holdings.h"
#include "process/container.h"

/* Reserves `bytes` of GPU `gpu` (driver/gpus.h) before the driver is asked for them. CUDA_ERROR_OUT_OF_MEMORY where the container's limit
 * would be passed, also after what dead processes left was taken back; CUDA_ERROR_SYSTEM_NOT_READY without limits. Waits where the container may not
 * take its whole request yet. */
CUresult charge_take(int gpu, uint64_t bytes);

/* The same for bytes that the driver has taken just now. */
CUresult charge_taken(int gpu, uint64_t bytes);

/* Waits until the container may take its whole request of the GPU. False: other containers have not given it back within two minutes. */
bool charge_await_request(int gpu);

/* Gives back what charge_take gave, in whatever pieces. */
void charge_give(int gpu, uint64_t bytes);

/* Gives back what was charged for a holding, to this process or in a slot of its own (memory/shared.h). */
void holding_pay_back(const struct holding *held);

/* The container's memory on a GPU, for reports: limit, and what its living processes have, including what was not requested (memory/beyond.h). For
 * GPU_NOT_ALLOCATED both are 0. */
CUresult charge_look(int gpu, uint64_t *limit_bytes, uint64_t *used_bytes);

/* What one context costs on a GPU, as a process of this container measured it: 0: not measured. The process that may measure is alone
 * with that: charge_measuring waits (at most ten seconds) until no other process measures. */
uint64_t charge_context_bytes(int gpu);
void charge_measuring(int gpu, bool begin);
void charge_context_measured(int gpu, uint64_t bytes);

#endif
