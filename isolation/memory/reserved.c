#include "memory/reserved.h"

#include "driver/capture_mode.h"
#include "driver/real.h"
#include "memory/charge.h"
#include "memory/footprint.h"

struct reserved_counts reserved_counts;

void reserved_forget(void)
{
    reserved_counts.freed = reserved_counts.settled = 0;
    reserved_counts.pieces = reserved_counts.going = 0;
}

void reserved_note_freed(unsigned count)
{
    atomic_fetch_add_explicit(&reserved_counts.going, count, memory_order_relaxed);
    if (count && atomic_fetch_sub_explicit(&reserved_counts.pieces, count, memory_order_relaxed) <= 0)
        atomic_store_explicit(&reserved_counts.pieces, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&reserved_counts.freed, 1, memory_order_release);
}

uint64_t reserve_growth_bytes(uint64_t bytes)
{
    return bytes > RESERVE_CHUNK_BYTES ? whole_granules(bytes) : RESERVE_CHUNK_BYTES;
}

CUresult pool_ask(CUmemoryPool pool, int attribute, uint64_t *bytes)
{
    int mode = relax_capture_mode();
    CUresult result = REAL(cuMemPoolGetAttribute)(pool, attribute, bytes);
    restore_capture_mode(mode);
    return result;
}

static CUresult ask(enum holding_kind kind, uint64_t key, uint64_t *bytes)
{
    if (kind == HOLDING_POOL)
        return pool_ask((CUmemoryPool)(uintptr_t)key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
    return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)key, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
}

CUresult reserved_settle(enum holding_kind kind, uint64_t key, int gpu, uint64_t taken_bytes, uint64_t least_bytes)
{
    struct holding held = {.key = key, .kind = kind, .gpu = gpu};
    uint64_t now_bytes = 0;
    holding_look(kind, key, &held);
    uint64_t charged_bytes = held.bytes + taken_bytes;
    /* A driver that does not say is taken to have what was charged. */
    if (ask(kind, key, &now_bytes) != CUDA_SUCCESS)
        now_bytes = charged_bytes;
    now_bytes = now_bytes > least_bytes ? now_bytes : least_bytes;
    if (now_bytes > charged_bytes && charge_taken(gpu, now_bytes - charged_bytes) != CUDA_SUCCESS) {
        charge_give(gpu, taken_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (now_bytes < charged_bytes)
        charge_give(gpu, charged_bytes - now_bytes);
    held.bytes = now_bytes;
    holding_put(&held);
    return CUDA_SUCCESS;
}
