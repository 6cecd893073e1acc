/* Calls of ours in threads of the program. While some stream is captured in the global mode, what is "unsafe" (asking events, streams and pools,
 * say) makes the capture fail from any thread whose own mode is not relaxed. A capture may begin at any moment, so the thread's mode is
 * relaxed around each call. Calls of the program itself are made in its own mode: what they make fail would have failed without us. */
#ifndef ISOLATION_DRIVER_CAPTURE_MODE_H
#define ISOLATION_DRIVER_CAPTURE_MODE_H

#include "driver/driver.h"
#include "driver/real.h"

enum { CAPTURE_RELAXED = 2 };

/* What restore_capture_mode takes. */
static inline int relax_capture_mode(void)
{
    int mode = CAPTURE_RELAXED;
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

static inline void restore_capture_mode(int mode)
{
    if (mode >= 0)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

#endif
