/* Launches of kernels. */
#include "hooks/work.h"

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* So many threads run at once on a large GPU (128 multiprocessors of 2048): fewer take as long as these. */
enum { DEVICES_MOST = 64, WAVE_THREADS = 128 * 2048 };

/* The same kernel on a grid of another size takes another time; on one that is new, as much as threads of others say. */
static struct kind kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads)
{
    uint64_t own = (uint64_t)(uintptr_t)function, key = own;
    key = key * UINT64_C(0x100000001b3) + grid_x;
    key = key * UINT64_C(0x100000001b3) + grid_y;
    key = key * UINT64_C(0x100000001b3) + grid_z;
    key = key * UINT64_C(0x100000001b3) + threads;
    uint64_t size = (uint64_t)grid_x * grid_y * grid_z * threads;
    return (struct kind){.key = key, .like = own, .like_size = size > WAVE_THREADS ? size : WAVE_THREADS};
}

LIMITED_STREAM(cuLaunchKernel,
               (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra),
               (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra),
               WORK_KERNEL, kernel(function, grid_x, grid_y, grid_z, block_x * block_y * block_z))

LIMITED_STREAM(cuLaunchCooperativeKernel,
               (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters),
               (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters),
               WORK_KERNEL, kernel(function, grid_x, grid_y, grid_z, block_x * block_y * block_z))

static struct kind configured(const CUlaunchConfig *config, CUfunction function)
{
    return config ? kernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                           config->blockDimX * config->blockDimY * config->blockDimZ)
                  : unsized(0);
}

LIMITED(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
        (config, function, parameters, extra), WORK_KERNEL, configured(config, function), config ? config->hStream : NULL)
LIMITED(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
        (config, function, parameters, extra), WORK_KERNEL, configured(config, function),
        config && config->hStream ? config->hStream : CU_STREAM_PER_THREAD)

/* One on each of several GPUs: each has its own turn. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags);
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    struct piece pieces[DEVICES_MOST];
    unsigned entered = 0, most = list && count <= DEVICES_MOST ? count : 0;
    CUresult result = CUDA_SUCCESS;
    for (; entered < most && result == CUDA_SUCCESS; entered += result == CUDA_SUCCESS) {
        const CUDA_LAUNCH_PARAMS *one = &list[entered];
        result = compute_enter(&pieces[entered], WORK_KERNEL,
                               kernel(one->function, one->gridDimX, one->gridDimY, one->gridDimZ,
                                      one->blockDimX * one->blockDimY * one->blockDimZ),
                               one->hStream);
    }
    if (result == CUDA_SUCCESS)
        result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 0; i < entered; i++)
        compute_leave(&pieces[i], result);
    return result;
}

/* As programs launched before CUDA 4. */
LIMITED(cuLaunch, (CUfunction function), (function), WORK_KERNEL, kernel(function, 1, 1, 1, 0), NULL)
LIMITED(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height), WORK_KERNEL,
        kernel(function, (unsigned)width, (unsigned)height, 1, 0), NULL)
LIMITED(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream), (function, width, height, stream),
        WORK_KERNEL, kernel(function, (unsigned)width, (unsigned)height, 1, 0), stream)
