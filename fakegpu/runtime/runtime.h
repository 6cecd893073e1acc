/* A stand-in for NVIDIA's CUDA runtime, on the driver's public interface alone.
 *
 * NVIDIA's own runtime asks the driver for private tables, which the stand-in driver has not. Every call here is one or two of
 * whatever libcuda.so.1 is found first, so that programs of the runtime meet the isolation library as on a GPU. Written
 * against the runtime's headers, of NVIDIA's wheels; what is not here is not exported, so that a program that needs
 * it says so when it starts. */
#ifndef FAKEGPU_RUNTIME_H
#define FAKEGPU_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#define EXPORT __attribute__((visibility("default")))

/* Makes a context current where there is none: the primary one of the thread's device. */
cudaError_t ready(void);

/* Remembers an error for cudaGetLastError. The numbers of the driver's errors are those of the runtime. */
cudaError_t keep(int error);

/* The kernel of a host function that a program's binary registered, or of a handle that is one already. */
CUresult kernel_of(const void *function, CUfunction *found);

/* A function of the runtime that is one call of the driver's, in a context. */
#define IN_CONTEXT(signature, call)                                                                                    \
    EXPORT cudaError_t signature                                                                                       \
    {                                                                                                                  \
        cudaError_t unready = ready();                                                                                 \
        return keep(unready ? (int)unready : (int)(call));                                                             \
    }

#endif
