/* The part of the driver's interface that puts work on a GPU, beside driver.h. Structures that are only passed on are opaque. */
#ifndef ISOLATION_DRIVER_WORK_H
#define ISOLATION_DRIVER_WORK_H

#include "driver.h"

/* --- called, not limited ------------------------------------------------------------------------------------ */

CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuDeviceGetCount(int *count);

#endif
