#define _GNU_SOURCE
#include "arbiter/page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files/region.h"

/* Where a thread goes on whose page vanished under it; NULL while it touches none. */
static _Thread_local sigjmp_buf *volatile landing;

static void page_vanished(int signal_number)
{
    if (landing)
        siglongjmp(*landing, 1);
    signal(signal_number, SIG_DFL); /* a fault of our own: end as usual */
}

void page_guard(void)
{
    struct sigaction action = {.sa_handler = page_vanished, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

/* What follows touches a page and then sets `landing` to NULL; if the page vanishes meanwhile, the function returns. */
#define GUARDED(otherwise)                                                                                             \
    sigjmp_buf here_;                                                                                                  \
    if (sigsetjmp(here_, 0)) {                                                                                         \
        landing = NULL;                                                                                                \
        return otherwise;                                                                                              \
    }                                                                                                                  \
    landing = &here_

struct turn_page *page_map(int directory, const char *name, unsigned index, const char **problem)
{
    struct stat status;
    void *mapped = MAP_FAILED;
    off_t offset = (off_t)REGION_PAGE_BYTES * (1 + index);
    int file = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (file < 0 || fstat(file, &status))
        *problem = strerror(errno);
    else if (!S_ISREG(status.st_mode))
        *problem = "no regular file";
    else if (status.st_size < offset + REGION_PAGE_BYTES)
        *problem = "smaller than a usage file; it was cut off";
    else if ((mapped = mmap(NULL, REGION_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset)) == MAP_FAILED)
        *problem = strerror(errno);
    if (file >= 0)
        close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void page_unmap(struct turn_page *page)
{
    munmap(page, REGION_PAGE_BYTES);
}

bool page_read(struct turn_page *page, uint64_t now_ns, struct asked *asked)
{
    struct asked found = {0};
    GUARDED(false);
    uint32_t version = atomic_load(&page->library_version);
    found.used_ns = atomic_load(&page->used_ns);
    found.requests = atomic_load(&page->requests);
    for (unsigned i = 0; i < TURN_SLOTS; i++) {
        struct turn_slot *slot = &page->slots[i];
        if (!atomic_load_explicit(&slot->owner, memory_order_relaxed))
            continue;
        uint64_t busy_ns = atomic_load(&slot->busy_until_ns), wants_ns = atomic_load(&slot->wants_until_ns);
        if (busy_ns > found.busy_until_ns)
            found.busy_until_ns = busy_ns;
        found.wants |= wants_ns > now_ns && wants_ns <= now_ns + TURN_WISH_NS;
    }
    landing = NULL;
    if (version && version != TURN_VERSION)
        return false;
    *asked = found;
    return true;
}

bool page_write(struct turn_page *page, uint64_t now_ns, struct granted granted, bool wake)
{
    GUARDED(false);
    atomic_store(&page->began_ns, granted.began_ns);
    atomic_store(&page->allowed_ns, granted.allowed_ns);
    atomic_store(&page->ahead_ns, granted.ahead_ns);
    atomic_store(&page->beside_ns, granted.beside_ns);
    atomic_store(&page->until_ns, granted.until_ns);
    atomic_store(&page->heartbeat_ns, now_ns);
    if (atomic_load(&page->arbiter_version) != TURN_VERSION)
        atomic_store(&page->arbiter_version, TURN_VERSION);
    if (wake)
        turn_wake(&page->grants);
    landing = NULL;
    return true;
}

void page_leave(struct turn_page *page)
{
    GUARDED();
    atomic_store(&page->until_ns, 0);
    atomic_store(&page->heartbeat_ns, 0);
    turn_wake(&page->grants);
    landing = NULL;
}

bool page_listen(struct turn_page *page, uint32_t *seen)
{
    uint32_t present = *seen;
    GUARDED(false);
    present = atomic_load(&page->requests);
    landing = NULL;
    if (present == *seen)
        return turn_sleep(&page->requests, present, turn_now_ns() + 1000000000u); /* the kernel looks, not we: no signal */
    *seen = present;
    return true;
}

void page_disturb(struct turn_page *page)
{
    syscall(SYS_futex, &page->requests, FUTEX_WAKE, TURN_EVERYBODY, NULL, NULL, 0);
}
