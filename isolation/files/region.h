/* The usage file: what the processes of one container share, mapped by all of them and by the node's arbiter.
 *
 *     0                     struct region_header, one page
 *     4096 * (1 + n)        the turn page of GPU n (struct turn_page, files/turn.h); n as in the limits file
 *     4096 * 17             struct region_gpu of each GPU
 *     ...                   struct region_slot of each process
 *
 * The node agent makes it with its full size (REGION_BYTES), filled with zeros, writable for every user of the container; zeros
 * are a valid beginning of everything but the header, which the first process fills in. Byte order and alignment are
 * the machine's: the file never leaves it. Whatever a tenant writes into it harms that tenant: nothing on the host's side
 * believes it.
 *
 * Byte N of the file is locked (POSIX record lock) while the process of slot N lives; the bytes from
 * REGION_LOCK_FIRST_CONTEXT on, one per GPU, while a process measures what a first context costs. A process never closes a
 * descriptor of this file, which would drop its lock. */
#ifndef ISOLATION_FILES_REGION_H
#define ISOLATION_FILES_REGION_H

#include <stdatomic.h>
#include <stdint.h>

#include "files/limits.h"

#define REGION_MAGIC UINT64_C(0x3167656572617567) /* any other first word but zero: not ours */

enum {
    REGION_VERSION = 1, /* of this layout; a library refuses every other one */
    REGION_PAGE_BYTES = 4096,
    REGION_SLOTS = 1024,
    REGION_LOCK_FIRST_CONTEXT = 1 << 20,
};

struct region_header {
    _Atomic uint64_t magic;
    _Atomic uint32_t version;
    _Atomic uint32_t slots_used; /* slots from here on were never taken */
    unsigned char rest[REGION_PAGE_BYTES - 16];
};

/* Of one GPU. See files/account.h for the first two words. */
struct region_gpu {
    _Atomic uint64_t total;         /* all that is reserved, and whose the last change was */
    _Atomic uint64_t context_bytes; /* what one context costs on this GPU, as measured; 0: not known yet */
    _Atomic uint64_t refused;       /* how often more memory was asked for than is left; for people to see */
    unsigned char rest[40];
};

/* What one process holds on one GPU; see files/account.h. */
struct region_account {
    _Atomic uint64_t held, intent, applied;
};

/* Of one process. Written by its owner only; once that is dead, by the process that holds the lock on the slot's byte.
 *
 * Or of memory that several processes may hold: each of them has a read lock on the byte, and `owner` is by which key they know it. What it
 * takes is written into the slot once, before anybody else knows of it. So it is charged once, until its last holder is gone. */
struct region_slot {
    _Atomic uint64_t owner;          /* 0: none; else unique in the region, the same as long as the owner lives */
    _Atomic int32_t pid;             /* in its own pid namespace; of memory: of who took hold of it last */
    _Atomic uint32_t shared;         /* 1: memory's */
    _Atomic uint64_t pid_namespace;  /* inode number */
    _Atomic uint64_t unused;
    struct region_account accounts[LIMITED_GPUS_MAX];
};

struct region {
    struct region_header header;
    unsigned char turns[LIMITED_GPUS_MAX][REGION_PAGE_BYTES];
    struct region_gpu gpus[LIMITED_GPUS_MAX];
    struct region_slot slots[REGION_SLOTS];
};

#define REGION_BYTES (sizeof(struct region))

_Static_assert(sizeof(struct region_header) == REGION_PAGE_BYTES && sizeof(struct region_gpu) == 64 &&
               sizeof(struct region_account) == 24 && sizeof(struct region_slot) == 32 + 24 * LIMITED_GPUS_MAX,
               "the layout is a file's");

#endif
