#define _GNU_SOURCE
#include "files/own_process.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
enum { PAGE_BYTES = 4096 };

/* On a page that is zeros again in every child; NULL where the kernel has no such pages. */
static _Atomic(_Atomic uint32_t *) mark;
static _Atomic pid_t owner;

static _Atomic uint32_t *make_mark(void)
{
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (!madvise(page, PAGE_BYTES, MADV_WIPEONFORK))
        return page;
    munmap(page, PAGE_BYTES);
    return NULL;
}

void own_process_begin(void)
{
    _Atomic uint32_t *place = atomic_load(&mark);
    if (!place)
        place = make_mark();
    if (place)
        atomic_store(place, 1);
    atomic_store(&owner, getpid());
    atomic_store(&mark, place);
}

bool own_process(void)
{
    _Atomic uint32_t *place = atomic_load_explicit(&mark, memory_order_acquire);
    if (place)
        return atomic_load_explicit(place, memory_order_relaxed);
    pid_t known = atomic_load(&owner);
    return known && known == getpid();
}
