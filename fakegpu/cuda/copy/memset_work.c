/* Setting memory as a stream's work. */
#include <stdlib.h>

#include "cuda/copy/copies.h"
#include "cuda/stream/capturing.h"
#include "cuda/stream/context_work.h"

static void apply(void *argument, uint64_t done_ns, uint64_t duration_ns)
{
    if (done_ns >= duration_ns)
        memset_apply(argument);
}

bool memset_work(const struct memset_rows *rows, struct work *work)
{
    struct memset_rows *kept = malloc(sizeof *kept);
    if (!kept)
        return false;
    *kept = *rows;
    size_t bytes = rows->width * rows->height * rows->element_bytes;
    *work = (struct work){
        .kind = WORK_TIMED,
        .small = bytes <= COPY_SMALL_BYTES,
        .duration_ns = COPY_START_NS + bytes * 1000 / MEMORY_BYTES_PER_US,
        .act = apply,
        .argument = kept,
        .argument_owned = true,
    };
    return true;
}

CUresult engine_memset(CUstream handle, const struct memset_rows *rows)
{
    struct work work;
    STREAM(handle, stream);
    if (stream->capture)
        return capture_memset(stream, rows);
    if (!rows->width || !rows->height)
        return CUDA_SUCCESS;
    if (!memset_work(rows, &work))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = stream_give(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.argument);
    return result;
}
