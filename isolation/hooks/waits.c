/* Waits: what was freed in order with a stream is free afterwards, and pools give chunks back. */
#include "driver/driver.h"
#include "driver/real.h"
#include "hooks/memory.h"

static CUresult settled(CUresult result)
{
    pools_settle();
    return result;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return settled(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream);
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return settled(REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuCtxSynchronize(void);
EXPORT CUresult cuCtxSynchronize(void)
{
    uint64_t freed = pools_freed();
    CUresult result = REAL(cuCtxSynchronize)();
    pools_settle_done(freed);
    return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context);
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    uint64_t freed = pools_freed();
    CUresult result = REAL(cuCtxSynchronize_v2)(context);
    pools_settle_done(freed);
    return result;
}

CUresult cuEventSynchronize(CUevent event);
EXPORT CUresult cuEventSynchronize(CUevent event)
{
    return settled(REAL(cuEventSynchronize)(event));
}
