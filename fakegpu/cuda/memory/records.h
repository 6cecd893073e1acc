/* The book of memory that cuda/memory/memory.h's look-ups read: one record per range, for the files that make memory. */
#ifndef FAKEGPU_CUDA_MEMORY_RECORDS_H
#define FAKEGPU_CUDA_MEMORY_RECORDS_H

#include "cuda/memory/arena.h"
#include "cuda/memory/memory.h"
#include "cuda/memory/ranges.h"

struct record {
    struct range range; /* first: the book's links */
    struct memory memory;
    struct piece piece; /* what is behind device memory; its chunk is NULL where it has a mapping of its own */
    struct shared_file shared_file; /* of a mapping of its own */
    void *owner;        /* a pool, a VMM handle, a mapping: its file knows */
    bool sync_operations; /* an attribute that programs set */
    bool being_freed;     /* its stream has yet to come to it */
    bool written;         /* managed memory: by the GPU */
    bool shared;          /* other processes may have it open: pages must stay where they are */
};

/* Guards the book, arenas and everything else of memory. Taken before a device's mutex, and never while work is
 * waited for. */
void memory_lock(void);
void memory_unlock(void);

/* Waits until no thread uses memory, and blocks new users. Under lock. */
void memory_stop_use(void);
void memory_resume_use(void);

/* Under lock: a new record in the book; NULL without host memory. It covers [start, start + size). */
struct record *record_add(enum memory_kind kind, void *start, size_t size, struct device *device, CUcontext context);

/* Under lock: out of the book, and freed. */
void record_remove(struct record *record);

/* Under lock: of the range that holds the address; NULL for none. */
struct record *record_at(CUdeviceptr address);

/* Under lock: of the first range that ends after the address; for walking the book. */
struct record *record_from(CUdeviceptr address);

/* Under lock: whether the address was reserved (VMM); nothing is behind it unless it has a record. */
bool address_reserved(CUdeviceptr address);

/* Under lock: device memory that belongs to a context; small pieces share pages. */
CUresult memory_take(CUcontext context, size_t size, struct piece *piece);
void memory_give_back(CUcontext context, const struct piece *piece);

/* Under lock, when a context ends: its arrays. */
void arrays_end_context(CUcontext context);

/* Plain memory. Work that uses it is waited for first, as the real driver does. */
CUresult linear_free(CUcontext context, CUdeviceptr address);

/* Under lock: what a record of that kind is made of, away, and the record too. */
void ipc_close(struct record *record);
void host_free(struct record *record);
void pool_free(struct record *record);

#endif
