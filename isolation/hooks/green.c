/* Green contexts: parts of a device's multiprocessors. One keeps the primary context active, which costs memory, and may be its last user; apart from that it
 * has no memory of its own, and what is made while it is current belongs to the primary context. */
#include "compute/flow.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/holdings.h"

typedef struct CUgreenCtx_st *CUgreenCtx;
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);

CUresult cuGreenCtxCreate(CUgreenCtx *green, void *description, CUdevice device, unsigned flags);

/* The primary context is there before, charged as it always is, and may be gone after where the driver refuses. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *description, CUdevice device, unsigned flags)
{
    CUcontext primary, context;
    if (!green || !description)
        return REAL(cuGreenCtxCreate)(green, description, device, flags);
    CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuGreenCtxCreate)(green, description, device, flags);
    /* The handle is the same each time that it is asked for. */
    if (result == CUDA_SUCCESS && REAL(cuCtxFromGreenCtx)(&context, *green) == CUDA_SUCCESS) {
        struct holding held = {.key = (uintptr_t)context, .kind = HOLDING_GREEN, .other = (uint64_t)device, .context = primary};
        holding_put(&held);
    }
    cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

static bool is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green);

/* Whether it was the primary context's last user shows when our own hold of that one ends. Its work goes on without it, and its events are of the
 * primary context. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct holding held;
    CUcontext context, primary;
    bool known = REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS &&
                 holding_take(HOLDING_GREEN, (uintptr_t)context, &held);
    CUdevice device = known ? (CUdevice)held.other : 0;
    bool kept = known && is_active(device) && cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS;
    unsigned flows = flows_hold(known ? context : NULL);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    flows_release(flows, known && result == CUDA_SUCCESS ? context : NULL, kept && primary == held.context ? primary : NULL);
    if (known && result != CUDA_SUCCESS)
        holding_put(&held);
    if (kept)
        cuDevicePrimaryCtxRelease_v2(device);
    return result;
}
