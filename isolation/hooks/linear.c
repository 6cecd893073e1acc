/* Plain, pitched and managed memory: what has an address and belongs to the context.
 *
 * A small piece shares its page with others, which only its address shows: a whole page is reserved before the driver is asked, and
 * released again if the page turns out to be charged already. With less than a page left of the limit, a small piece is tried only if the gaps
 * between those that are known leave room for it in a page that is paid for, and that page stays paid for meanwhile. */
#include <stdatomic.h>
#include <stdlib.h>

#include "driver/capture_mode.h"
#include "driver/driver.h"
#include "driver/gpus.h"
#include "driver/real.h"
#include "hooks/memory.h"
#include "memory/charge.h"
#include "memory/footprint.h"
#include "memory/holdings.h"
#include "memory/reserved.h"
#include "memory/shared.h"
#include "process/fork_mutex.h"

enum {
    PITCH_BYTES = 512, /* rows of pitched memory begin at multiples of this, or of less */
    PIECE_BYTES = 512, /* and so do pieces */
};

/* An allocation under way. */
struct taking {
    int gpu;
    uint64_t bytes, reserved_bytes;
    uint64_t page; /* that is kept paid for, by its number; 0: none, nothing is tight */
    bool small;
};

/* Room in pages that are paid for: what small pieces leave of them. */
static _Atomic int64_t room_bytes[LIMITED_GPUS_MAX];

/* --- with less than a page left ---------------------------------------------------------------------------------- */

/* Of several threads that look for a gap, the second one must see what the first one put there. One that finds a whole page left
 * does not wait for them; should it take their gap, a page more is taken until that shows. */
static void nothing(void) {}
MUTEX_FRESH_IN_CHILD(tight, nothing)

/* Small pieces of one context, by address. */
struct pieces {
    struct { uint64_t from, to; } *of;
    size_t count, room;
    bool unknown; /* there was no memory to note them all */
};

static void note_piece(const struct holding *held, void *argument)
{
    struct pieces *pieces = argument;
    if (held->bytes)
        return; /* has pages of its own */
    if (pieces->count == pieces->room) {
        size_t room = pieces->room ? 2 * pieces->room : 64;
        void *grown = realloc(pieces->of, room * sizeof *pieces->of);
        pieces->unknown |= !grown;
        if (!grown)
            return;
        pieces->of = grown;
        pieces->room = room;
    }
    pieces->of[pieces->count].from = held->key / PIECE_BYTES * PIECE_BYTES;
    pieces->of[pieces->count++].to = (held->key + held->size + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
}

static int by_address(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

/* A page with a gap of so many bytes; 0: none. */
static uint64_t page_with_gap(struct pieces *pieces, uint64_t bytes)
{
    uint64_t end = 0, page = 0;
    if (!pieces->count || pieces->unknown)
        return 0;
    qsort(pieces->of, pieces->count, sizeof *pieces->of, by_address);
    for (size_t i = 0; i < pieces->count; i++) {
        uint64_t from = pieces->of[i].from;
        if (from / GRANULE_BYTES != page) {
            if (page && (page + 1) * GRANULE_BYTES >= end + bytes)
                return page;
            page = from / GRANULE_BYTES;
            end = page * GRANULE_BYTES;
        }
        if (from >= end + bytes)
            return page;
        end = pieces->of[i].to;
    }
    return (page + 1) * GRANULE_BYTES >= end + bytes ? page : 0;
}

/* True: there is a page with room, which stays paid for until page_release; the mutex is held until then. */
static bool page_keep(struct taking *taking)
{
    struct pieces pieces = {0};
    CUcontext context = context_with_memory();
    pthread_mutex_lock(&tight);
    holdings_each(HOLDING_LINEAR, context, note_piece, &pieces);
    taking->page = page_with_gap(&pieces, (taking->bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES);
    free(pieces.of);
    if (taking->page && holding_users(HOLDING_SLAB, taking->page, 1, NULL) > 0)
        return true;
    taking->page = 0;
    pthread_mutex_unlock(&tight);
    return false;
}

/* If the driver has freed that page meanwhile, its charge covers the piece's new one. */
static void page_release(struct taking *taking)
{
    struct holding left;
    if (!taking->page)
        return;
    if (!holding_users(HOLDING_SLAB, taking->page, -1, &left)) {
        atomic_fetch_sub(&room_bytes[taking->gpu], (int64_t)left.bytes);
        if (left.shared)
            holding_pay_back(&left);
        else
            taking->reserved_bytes = left.bytes;
    }
    taking->page = 0;
    pthread_mutex_unlock(&tight);
}

/* --- around each call ---------------------------------------------------------------------------------------------- */

static CUresult begin(uint64_t bytes, struct taking *taking)
{
    *taking = (struct taking){.bytes = bytes, .small = bytes < SMALL_BYTES, .reserved_bytes = whole_granules(bytes)};
    CUresult result = gpu_of_current(&taking->gpu);
    if (result != CUDA_SUCCESS)
        return result;
    result = charge_take(taking->gpu, taking->reserved_bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && taking->small && taking->gpu >= 0 &&
        atomic_load(&room_bytes[taking->gpu]) >= (int64_t)bytes && page_keep(taking)) {
        taking->reserved_bytes = 0;
        return CUDA_SUCCESS;
    }
    return result;
}

/* Of a small piece that the driver returned: its page is paid for from here on. */
static CUresult settle_small(struct taking *taking, CUdeviceptr address, CUcontext context)
{
    struct holding slab = {.key = address / GRANULE_BYTES, .kind = HOLDING_SLAB, .gpu = taking->gpu,
                           .bytes = GRANULE_BYTES, .context = context};
    enum holding_shared shared = holding_share(&slab);
    if (shared == HOLDING_FRESH && !taking->reserved_bytes && charge_taken(taking->gpu, GRANULE_BYTES) != CUDA_SUCCESS) {
        holding_users(HOLDING_SLAB, slab.key, -1, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (shared == HOLDING_NO_ROOM)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (shared == HOLDING_FRESH)
        atomic_fetch_add(&room_bytes[taking->gpu], (int64_t)GRANULE_BYTES);
    else
        charge_give(taking->gpu, taking->reserved_bytes);
    taking->reserved_bytes = 0;
    atomic_fetch_sub(&room_bytes[taking->gpu], (int64_t)taking->bytes);
    return CUDA_SUCCESS;
}

static void leave_small(const struct holding *piece)
{
    struct holding slab;
    atomic_fetch_add(&room_bytes[piece->gpu], (int64_t)piece->size);
    if (!holding_users(HOLDING_SLAB, piece->other, -1, &slab)) {
        atomic_fetch_sub(&room_bytes[slab.gpu], (int64_t)slab.bytes);
        holding_pay_back(&slab);
    }
}

CUresult cuMemFree_v2(CUdeviceptr address);

/* `result` is what the driver said. */
static CUresult end(struct taking *taking, CUresult result, CUdeviceptr address)
{
    CUcontext context = NULL;
    page_release(taking);
    if (result == CUDA_SUCCESS) {
        context = context_with_memory();
        struct holding held = {.key = address, .kind = HOLDING_LINEAR, .gpu = taking->gpu, .context = context,
                               .size = taking->bytes};
        CUresult settled = CUDA_SUCCESS;
        if (taking->small)
            settled = settle_small(taking, address, context);
        held.other = taking->small ? address / GRANULE_BYTES : 0;
        held.bytes = taking->reserved_bytes;
        if (settled == CUDA_SUCCESS && holding_put(&held))
            return CUDA_SUCCESS;
        REAL(cuMemFree_v2)(address);
        if (settled == CUDA_SUCCESS && taking->small)
            leave_small(&held);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_give(taking->gpu, taking->reserved_bytes);
    return result;
}

static void pay_back(const struct holding *held)
{
    if (held->bytes)
        holding_pay_back(held);
    else
        leave_small(held);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    struct taking taking;
    if (!address || !bytes)
        return REAL(cuMemAlloc_v2)(address, bytes);
    CUresult result = begin(bytes, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc_v2)(address, bytes);
    return end(&taking, result, *address);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
    struct taking taking;
    if (!address || !bytes)
        return REAL(cuMemAlloc)(address, bytes);
    CUresult result = begin(bytes, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc)(address, bytes);
    return end(&taking, result, *address);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    struct taking taking;
    if (!address || !bytes)
        return REAL(cuMemAllocManaged)(address, bytes, flags);
    CUresult result = begin(bytes, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocManaged)(address, bytes, flags);
    return end(&taking, result, *address);
}

/* How far apart the rows will be is the driver's to say: the most is reserved first. */
static CUresult begin_pitched(size_t width_bytes, size_t height, struct taking *taking)
{
    uint64_t row_bytes = width_bytes > SIZE_MAX - PITCH_BYTES ? SIZE_MAX : (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    return begin(times(row_bytes, height), taking);
}

static CUresult end_pitched(struct taking *taking, CUresult result, CUdeviceptr address, uint64_t bytes)
{
    uint64_t whole = whole_granules(bytes);
    if (result == CUDA_SUCCESS && bytes < SMALL_BYTES && !taking->small) {
        /* Less than was thought: it shares a page. */
        charge_give(taking->gpu, taking->reserved_bytes - GRANULE_BYTES);
        *taking = (struct taking){.gpu = taking->gpu, .bytes = bytes, .reserved_bytes = GRANULE_BYTES, .small = true};
    } else if (result == CUDA_SUCCESS && !taking->small && whole < taking->reserved_bytes) {
        charge_give(taking->gpu, taking->reserved_bytes - whole);
        taking->reserved_bytes = whole;
    }
    return end(taking, result, address);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct taking taking;
    if (!address || !pitch || !width || !height)
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    CUresult result = begin_pitched(width, height, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    return end_pitched(&taking, result, *address, result == CUDA_SUCCESS ? times(*pitch, height) : 0);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct taking taking;
    if (!address || !pitch || !width || !height)
        return REAL(cuMemAllocPitch)(address, pitch, width, height, element);
    CUresult result = begin_pitched(width, height, &taking);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocPitch)(address, pitch, width, height, element);
    return end_pitched(&taking, result, *address, result == CUDA_SUCCESS ? times(*pitch, height) : 0);
}

/* What is known of it is taken out first: once the driver has freed it, another thread may get the same address. What is not known
 * may be of a pool. */
static CUresult forget(CUresult result, bool known, const struct holding *held)
{
    if (known && result == CUDA_SUCCESS)
        pay_back(held);
    else if (known)
        holding_put(held);
    else
        reserved_note_freed(result == CUDA_SUCCESS ? 1 : 0);
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct holding held;
    bool known = holding_take(HOLDING_LINEAR, address, &held);
    CUresult result = forget(REAL(cuMemFree_v2)(address), known, &held);
    if (!known)
        pools_settle();
    return result;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    struct holding held;
    bool known = holding_take(HOLDING_LINEAR, address, &held);
    return forget(REAL(cuMemFree)(address), known, &held);
}

/* Takes plain memory and that of pools. `waited_for` is the stream by a handle that means the same everywhere. Plain memory is there until the stream gets that far, which is waited for: rare, and the driver
 * may give no sign of it later. */
static CUresult free_async(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr address, CUstream stream, CUstream waited_for)
{
    struct holding held;
    bool known = holding_take(HOLDING_LINEAR, address, &held);
    CUresult result = real(address, stream);
    if (known && result == CUDA_SUCCESS) {
        int mode = relax_capture_mode();
        REAL(cuStreamSynchronize)(waited_for);
        restore_capture_mode(mode);
    }
    return forget(result, known, &held);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return free_async(REAL(cuMemFreeAsync), address, stream, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return free_async(REAL(cuMemFreeAsync_ptsz), address, stream, stream ? stream : CU_STREAM_PER_THREAD);
}

static void end_piece(const struct holding *held, void *unused)
{
    struct holding taken;
    (void)unused;
    if (holding_take(HOLDING_LINEAR, held->key, &taken))
        pay_back(&taken);
}

/* The driver frees a context's memory with it. */
void linear_end_context(CUcontext context)
{
    holdings_each(HOLDING_LINEAR, context, end_piece, NULL);
    opened_end_context(context);
}
