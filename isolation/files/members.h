/* The processes of a container that use its GPUs: each has a slot of the usage file.
 *
 * A process holds a POSIX record lock on the byte of its slot; the kernel takes the lock away when the process ends, however it
 * does, or begins another program, and it does so across pid namespaces. Since the kernel drops locks before it
 * ends what the process has in the driver, a slot counts as left only once the process has ended (or is another one, or
 * another program) where its pid namespace is ours and that can be seen.
 *
 * Not thread-safe: the caller has a mutex (memory/shared.c). */
#ifndef ISOLATION_FILES_MEMBERS_H
#define ISOLATION_FILES_MEMBERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "files/region.h"

/* A slot of this process, as long as it keeps it. */
struct member {
    int slot;       /* -1: none */
    uint64_t owner; /* what the slot's `owner` must still be */
};

/* Inode of this process's pid namespace, which is what slots of it say; 0 where /proc does not say. */
uint64_t member_namespace(void);

/* Takes a slot, clearing what a dead owner left in it. False: all are taken. `file` is the usage file. */
bool member_join(struct region *region, int file, struct member *member);

/* Lets the slot's lock go, where this process still has it: the slot is no longer its own. */
void member_leave(int file, struct member *member);

/* Whether the slot is still this process's: not after fork, nor once it was cleared. */
bool member_holds(const struct region *region, const struct member *member);

/* Clears the slots of the dead; returns how many there were. A few microseconds per process that lives. */
unsigned members_sweep(struct region *region, int file, const struct member *self);

/* A slot for memory that several processes may hold, to be known by `key` (not 0). This process holds it, and is alone with it until
 * member_share_open: no process may find one in which nothing is charged yet. -1: there is none, or half of them are memory's already. */
int member_share(struct region *region, int file, uint64_t key);
void member_share_open(struct region *region, int file, int slot);

/* Takes hold of the memory of that key, once more if need be; -1: no holder. */
int member_share_hold(struct region *region, int file, uint64_t key);

/* Whether this process holds it once only. */
bool member_share_is_last(int slot);

/* Ends one hold; without holders the slot is cleared. */
void member_share_leave(struct region *region, int file, int slot);

/* In a child of fork: it holds nothing. */
void member_share_forget(void);

/* Whether anybody holds the slot's lock. `pid` (may be NULL) gets its process id in this process's pid namespace, 0 if it has none
 * there; one's own is not distinguished on kernels before 3.15. */
bool member_alive(int file, unsigned slot, pid_t *pid);

#endif
