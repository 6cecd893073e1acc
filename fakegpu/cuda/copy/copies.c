#include "cuda/copy/copies.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/stream/capturing.h"

/* A copy on its way. */
struct running_copy {
    struct copy copy;
    size_t rows_done, bytes_done; /* of a single row, its bytes */
    unsigned char staged[];       /* what was read of the program's memory beforehand */
};

static uint64_t total_bytes(const struct copy *copy)
{
    return (uint64_t)copy->width * copy->rows * copy->slices;
}

/* From the first byte to the last. */
static size_t span(const struct copy *copy, size_t pitch, size_t slice)
{
    return (copy->slices - 1) * slice + (copy->rows - 1) * pitch + copy->width;
}

CUresult copy_check(CUcontext context, const struct copy *copy, uint64_t *duration_ns, bool *pageable)
{
    struct memory to, from;
    bool to_known, from_known = false;
    CUresult result =
        memory_check((CUdeviceptr)(uintptr_t)copy->to, span(copy, copy->to_pitch, copy->to_slice), &to, &to_known);
    if (result == CUDA_SUCCESS && copy->from)
        result = memory_check((CUdeviceptr)(uintptr_t)copy->from, span(copy, copy->from_pitch, copy->from_slice), &from,
                              &from_known);
    if (result != CUDA_SUCCESS)
        return result;
    bool to_device = to_known && to.device, from_device = from_known && from.device;
    /* Filling reads nothing; on the device, reading and writing share the memory's rate. */
    bool inside = to_device && (!copy->from || (from_device && to.device == from.device));
    uint64_t rate = inside ? (copy->from ? MEMORY_BYTES_PER_US / 2 : MEMORY_BYTES_PER_US) : BUS_BYTES_PER_US;
    *duration_ns = COPY_START_NS + total_bytes(copy) * 1000 / rate;
    *pageable = !to_known || (copy->from && !from_known);
    (void)context;
    return CUDA_SUCCESS;
}

/* --- moving bytes ---------------------------------------------------------------------------------------------- */

static void fill_row(unsigned char *to, size_t width, uint32_t fill, unsigned fill_bytes)
{
    if (fill_bytes == 1) {
        memset(to, (int)fill, width);
        return;
    }
    for (size_t i = 0; i + fill_bytes <= width; i += fill_bytes)
        memcpy(to + i, &fill, fill_bytes);
}

static void move_rows(struct running_copy *running, size_t until)
{
    const struct copy *copy = &running->copy;
    for (; running->rows_done < until; running->rows_done++) {
        size_t slice = running->rows_done / copy->rows, row = running->rows_done % copy->rows;
        unsigned char *to = copy->to + slice * copy->to_slice + row * copy->to_pitch;
        if (copy->from)
            memmove(to, copy->from + slice * copy->from_slice + row * copy->from_pitch, copy->width);
        else
            fill_row(to, copy->width, copy->fill, copy->fill_bytes);
    }
}

/* Ranges that overlap are moved at the end, at once. */
static bool overlaps(const struct copy *copy)
{
    return copy->to < copy->from + copy->width && copy->from < copy->to + copy->width;
}

static void move(struct running_copy *running, uint64_t done_ns, uint64_t duration_ns)
{
    const struct copy *copy = &running->copy;
    size_t rows = copy->rows * copy->slices;
    bool last = done_ns >= duration_ns;
    if (rows > 1 || !copy->from || overlaps(copy)) {
        move_rows(running, last ? rows : (size_t)((double)(rows - 1) * ((double)done_ns / (double)duration_ns)));
        return;
    }
    size_t until = last ? copy->width : (size_t)((double)copy->width * ((double)done_ns / (double)duration_ns));
    if (until > copy->width)
        until = copy->width;
    if (until > running->bytes_done)
        memcpy(copy->to + running->bytes_done, copy->from + running->bytes_done, until - running->bytes_done);
    running->bytes_done = until;
}

void copy_act(void *argument, uint64_t done_ns, uint64_t duration_ns)
{
    memory_use_begin();
    move(argument, done_ns, duration_ns);
    memory_use_end();
}

/* --- giving it to a stream ------------------------------------------------------------------------------------- */

static bool make_work(const struct copy *copy, uint64_t duration_ns, size_t staged_bytes, struct work *work)
{
    struct running_copy *running = malloc(sizeof *running + staged_bytes);
    if (!running)
        return false;
    running->copy = *copy;
    running->rows_done = running->bytes_done = 0;
    if (staged_bytes) {
        memcpy(running->staged, copy->from, staged_bytes);
        running->copy.from = running->staged;
    }
    *work = (struct work){
        .kind = WORK_TIMED,
        .small = total_bytes(copy) <= COPY_SMALL_BYTES,
        .duration_ns = duration_ns,
        .act = copy_act,
        .argument = running,
        .argument_owned = true,
    };
    return true;
}

bool copy_work(const struct copy *copy, uint64_t duration_ns, struct work *work)
{
    return make_work(copy, duration_ns, 0, work);
}

CUresult copy_give(CUstream stream, const struct copy *copy, enum copy_call call)
{
    uint64_t duration_ns;
    bool pageable;
    struct work work;
    CUresult result = copy_check(stream->context, copy, &duration_ns, &pageable);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return call == COPY_SYNC ? capture_unsupported(stream) : capture_copy(stream, copy);
    bool waits = call == COPY_SYNC;
    size_t staged_bytes = 0;
    if (pageable && !waits) {
        struct memory to;
        bool small = copy->from && copy->rows * copy->slices == 1 && copy->width <= COPY_SMALL_BYTES;
        if (small && memory_find((CUdeviceptr)(uintptr_t)copy->to, &to))
            staged_bytes = copy->width;
        else
            waits = true;
    }
    if (!make_work(copy, duration_ns, staged_bytes, &work))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = stream_give(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.argument);
    return result == CUDA_SUCCESS && waits ? stream_finish(stream) : result;
}

CUresult copy_linear(CUstream handle, CUdeviceptr to, CUdeviceptr from, size_t bytes, enum copy_call call)
{
    STREAM(handle, stream);
    if (!bytes)
        return CUDA_SUCCESS;
    REQUIRE_CU(to && from);
    return copy_give(stream,
                     &(struct copy){.to = (unsigned char *)(uintptr_t)to,
                                    .from = (const unsigned char *)(uintptr_t)from,
                                    .width = bytes,
                                    .rows = 1,
                                    .slices = 1},
                     call);
}
