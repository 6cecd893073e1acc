/* Where a container's files lie: the library that is shipped knows one place only, since a tenant sets the environment. */
#ifndef ISOLATION_PROCESS_PLACE_H
#define ISOLATION_PROCESS_PLACE_H

#define RUN_DIRECTORY "/run/gpushare"

/* By this name the driver's library is an optional dependency of ours (see the Makefile). */
#ifdef GPUSHARE_RUN_FROM_ENVIRONMENT
#ifdef LIBRARY_NVML
#define DRIVER_LIBRARY "libgpushare-driver-nvml.so"
#else
#define DRIVER_LIBRARY "libgpushare-driver-cuda.so"
#endif
#else
#ifdef LIBRARY_NVML
#define DRIVER_LIBRARY RUN_DIRECTORY "/driver/libnvidia-ml.so"
#else
#define DRIVER_LIBRARY RUN_DIRECTORY "/driver/libcuda.so"
#endif
#endif

/* The driver's management library, for the CUDA library to ask. */
#ifdef GPUSHARE_RUN_FROM_ENVIRONMENT
#define MANAGEMENT_LIBRARY "libgpushare-driver-nvml.so"
#else
#define MANAGEMENT_LIBRARY RUN_DIRECTORY "/driver/libnvidia-ml.so"
#endif

#endif
