/* Copies in one piece, and fills. */
#include "hooks/work.h"

/* Directions: from where to where a copy goes decides how fast it is. */
enum { ANY, TO_PEER, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, FILL, FILL_ROWS };

#define COPY(symbol, parameters, arguments, direction)                                                     \
    LIMITED(symbol, parameters, arguments, WORK_COPY_WAITED, sized(direction, bytes), NULL)
#define COPY_DEFAULT(symbol, parameters, arguments, direction)                                             \
    LIMITED_DEFAULT(symbol, parameters, arguments, WORK_COPY_WAITED, sized(direction, bytes))
#define COPY_STREAM(symbol, parameters, arguments, direction)                                              \
    LIMITED_STREAM(symbol, parameters, arguments, WORK_COPY, sized(direction, bytes))
/* With a stream, from before streams could be the thread's own. */
#define COPY_OLD(symbol, parameters, arguments, direction)                                                 \
    LIMITED(symbol, parameters, arguments, WORK_COPY, sized(direction, bytes), stream)

COPY_DEFAULT(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), ANY)
COPY_STREAM(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream), ANY)
COPY_STREAM(cuMemcpyWithAttributesAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),
            (to, from, bytes, attributes, stream), ANY)
COPY_DEFAULT(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
             (to, to_context, from, from_context, bytes), TO_PEER)
COPY_STREAM(cuMemcpyPeerAsync,
            (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream),
            (to, to_context, from, from_context, bytes, stream), TO_PEER)

COPY(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned bytes), (to, from, bytes), HOST_TO_DEVICE)
COPY_DEFAULT(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes), HOST_TO_DEVICE)
COPY_OLD(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned bytes, CUstream stream), (to, from, bytes, stream),
         HOST_TO_DEVICE)
COPY_STREAM(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            HOST_TO_DEVICE)
COPY(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned bytes), (to, from, bytes), DEVICE_TO_HOST)
COPY_DEFAULT(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), DEVICE_TO_HOST)
COPY_OLD(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned bytes, CUstream stream), (to, from, bytes, stream),
         DEVICE_TO_HOST)
COPY_STREAM(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            DEVICE_TO_HOST)
COPY(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes), (to, from, bytes), DEVICE_TO_DEVICE)
COPY_DEFAULT(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), DEVICE_TO_DEVICE)
COPY_OLD(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes, CUstream stream),
         (to, from, bytes, stream), DEVICE_TO_DEVICE)
COPY_STREAM(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),
            DEVICE_TO_DEVICE)

/* Arrays. */
COPY(cuMemcpyDtoA, (CUarray to, unsigned at, CUdeviceptr_v1 from, unsigned bytes), (to, at, from, bytes), DEVICE_TO_DEVICE)
COPY_DEFAULT(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t bytes), (to, at, from, bytes), DEVICE_TO_DEVICE)
COPY(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned at, unsigned bytes), (to, from, at, bytes), DEVICE_TO_DEVICE)
COPY_DEFAULT(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes), DEVICE_TO_DEVICE)
COPY(cuMemcpyAtoA, (CUarray to, unsigned to_at, CUarray from, unsigned at, unsigned bytes), (to, to_at, from, at, bytes),
     DEVICE_TO_DEVICE)
COPY_DEFAULT(cuMemcpyAtoA_v2, (CUarray to, size_t to_at, CUarray from, size_t at, size_t bytes), (to, to_at, from, at, bytes),
             DEVICE_TO_DEVICE)
COPY(cuMemcpyHtoA, (CUarray to, unsigned at, const void *from, unsigned bytes), (to, at, from, bytes), HOST_TO_DEVICE)
COPY_DEFAULT(cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes), (to, at, from, bytes), HOST_TO_DEVICE)
COPY_OLD(cuMemcpyHtoAAsync, (CUarray to, unsigned at, const void *from, unsigned bytes, CUstream stream),
         (to, at, from, bytes, stream), HOST_TO_DEVICE)
COPY_STREAM(cuMemcpyHtoAAsync_v2, (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
            (to, at, from, bytes, stream), HOST_TO_DEVICE)
COPY(cuMemcpyAtoH, (void *to, CUarray from, unsigned at, unsigned bytes), (to, from, at, bytes), DEVICE_TO_HOST)
COPY_DEFAULT(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes), DEVICE_TO_HOST)
COPY_OLD(cuMemcpyAtoHAsync, (void *to, CUarray from, unsigned at, unsigned bytes, CUstream stream), (to, from, at, bytes, stream),
         DEVICE_TO_HOST)
COPY_STREAM(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
            (to, from, at, bytes, stream), DEVICE_TO_HOST)

/* --- fills -------------------------------------------------------------------------------------------------- */

#define FILLS(bits, type)                                                                                  \
    LIMITED(cuMemsetD##bits, (CUdeviceptr_v1 to, type value, unsigned count), (to, value, count), WORK_FILL, \
            sized(FILL, count * sizeof value), NULL)                                                       \
    LIMITED_DEFAULT(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count), (to, value, count), WORK_FILL, \
                    sized(FILL, count * sizeof value))                                                     \
    LIMITED_STREAM(cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t count, CUstream stream),    \
                   (to, value, count, stream), WORK_FILL, sized(FILL, count * sizeof value))               \
    LIMITED(cuMemsetD2D##bits, (CUdeviceptr_v1 to, unsigned pitch, type value, unsigned width, unsigned height), \
            (to, pitch, value, width, height), WORK_FILL, sized(FILL_ROWS, (uint64_t)width * height * sizeof value), NULL) \
    LIMITED_DEFAULT(cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), \
                    (to, pitch, value, width, height), WORK_FILL, sized(FILL_ROWS, width * height * sizeof value)) \
    LIMITED_STREAM(cuMemsetD2D##bits##Async,                                                               \
                   (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
                   (to, pitch, value, width, height, stream), WORK_FILL,                                   \
                   sized(FILL_ROWS, width * height * sizeof value))

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
