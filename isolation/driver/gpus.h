/* Which of the container's GPUs a CUDA call is about. */
#ifndef ISOLATION_DRIVER_GPUS_H
#define ISOLATION_DRIVER_GPUS_H

#include "driver/driver.h"
#include "process/container.h"

enum { GPU_NOT_ALLOCATED = -1 };

/* Index in the limits of a device, into *gpu; GPU_NOT_ALLOCATED for one that the limits do not name. An error: the driver's own
 * for a bad device, or CUDA_ERROR_SYSTEM_NOT_READY when there are no limits. Answers are kept: 10 ns from the second on. */
CUresult gpu_of_device(CUdevice device, int *gpu);

/* The same for the thread's current context; CUDA_ERROR_INVALID_CONTEXT without one. */
CUresult gpu_of_current(int *gpu);

/* The same for a stream, which may be of another context than the current one. */
CUresult gpu_of_stream(CUstream stream, int *gpu);

/* The device of a stream, in the driver's numbering. */
CUresult device_of_stream(CUstream stream, CUdevice *device);

/* The same for a location that an allocation names, or LOCATION_HOST. */
enum { LOCATION_HOST = -2 };
CUresult gpu_of_location(const CUmemLocation *location, int *gpu);

#endif
