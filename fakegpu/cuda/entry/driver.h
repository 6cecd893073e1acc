/* The library as a whole. */
#ifndef FAKEGPU_CUDA_ENTRY_DRIVER_H
#define FAKEGPU_CUDA_ENTRY_DRIVER_H

#include "cuda/device/device.h"

/* CUDA_SUCCESS once cuInit has succeeded; in a child forked after that, CUDA_ERROR_NOT_INITIALIZED for good. */
CUresult driver_ready(void);

/* For functions that need the driver, and no context. */
#define READY()                                                                                            \
    do {                                                                                                   \
        CUresult unready_ = driver_ready();                                                                \
        if (unready_ != CUDA_SUCCESS)                                                                      \
            return unready_;                                                                               \
    } while (0)

/* Declares `device` for an ordinal, or returns the error. */
#define DEVICE(ordinal, device)                                                                            \
    READY();                                                                                               \
    struct device *device = device_get(ordinal);                                                           \
    if (!device)                                                                                           \
        return CUDA_ERROR_INVALID_DEVICE

#define REQUIRE_CU(condition)                                                                              \
    do {                                                                                                   \
        if (!(condition))                                                                                  \
            return CUDA_ERROR_INVALID_VALUE;                                                               \
    } while (0)

#endif
