#define _GNU_SOURCE
#include "files/members.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "files/account.h"
#include "files/own_process.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif
enum { LOOKS_FOR_DEAD = 2, SHARED_MOST = REGION_SLOTS / 2 };
#define EXITING 0x4 /* of a process's flags in /proc/PID/stat */

/* What /proc says of a process. */
struct seen {
    bool there;
    char state;
    unsigned long flags, threads;
};

/* How often this process holds each slot that is memory's. */
static unsigned holds[REGION_SLOTS];

static bool lock_byte(int file, int type, unsigned byte)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return !fcntl(file, F_SETLK, &lock);
}

bool member_alive(int file, unsigned slot, pid_t *pid)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    /* Asking as an open file description shows this process's own locks, too. */
    if (fcntl(file, F_OFD_GETLK, &lock)) {
        lock.l_pid = 0;
        if (fcntl(file, F_GETLK, &lock))
            return true; /* who cannot be seen may live */
    }
    if (pid)
        *pid = lock.l_type != F_UNLCK && lock.l_pid > 0 ? lock.l_pid : 0;
    return lock.l_type != F_UNLCK;
}

static bool read_file(const char *path, char *text, size_t room)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, room - 1);
    close(file);
    text[size > 0 ? size : 0] = '\0';
    return size > 0;
}

/* The fields of interest are the third, the ninth and the twentieth; the second one may hold anything. */
static struct seen look(pid_t pid)
{
    char path[64], text[1024];
    struct seen seen = {0};
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *at = read_file(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    if (!at || !at[1])
        return seen;
    seen.there = true;
    seen.state = at[2];
    at += 2;
    for (int field = 3; field < 20 && at; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
        if (at && field + 1 == 9)
            seen.flags = strtoul(at, NULL, 10);
        if (at && field + 1 == 20)
            seen.threads = strtoul(at, NULL, 10);
    }
    return seen;
}

uint64_t member_namespace(void)
{
    char text[64] = "";
    ssize_t size = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    return size > 5 ? strtoull(text + 5, NULL, 10) : 0;
}

/* Of an unlocked slot: whether what its owner had in the driver is gone, too. A process that is still ending has
 * it yet: its first thread may have ended (Z) while its last one closes the files, one after the other. One that runs on has
 * begun another program or thrown its files away; both end what it had. So does another process with its number: only while that one
 * ends, too, this slot waits for it. */
static bool has_ended(const struct region_slot *slot)
{
    uint64_t there = atomic_load(&slot->pid_namespace);
    if (!there || there != member_namespace())
        return true;
    struct seen seen = look(atomic_load(&slot->pid));
    if (!seen.there)
        return true;
    if (seen.state == 'Z' || seen.state == 'X')
        return seen.threads <= 1;
    return !(seen.flags & EXITING);
}

static uint64_t new_owner(pid_t pid)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)pid << 40 ^ ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec)) | 1;
}

/* With the slot's lock held. */
static void clear(struct region *region, unsigned slot)
{
    account_clear(region, slot);
    atomic_store(&region->slots[slot].shared, 0);
    atomic_store(&region->slots[slot].owner, 0);
}

/* Takes the lock of a slot whose owner is dead or that has none, and clears it. Asked first whether it is locked: one's own
 * lock would be taken again, and released afterwards. */
static bool take_over(struct region *region, int file, unsigned slot)
{
    if (holds[slot] || member_alive(file, slot, NULL) || !lock_byte(file, F_WRLCK, slot))
        return false;
    if (atomic_load(&region->slots[slot].owner) && !has_ended(&region->slots[slot])) {
        lock_byte(file, F_UNLCK, slot);
        return false;
    }
    clear(region, slot);
    return true;
}

static void raise_slots_used(struct region *region, uint32_t used)
{
    uint32_t before = atomic_load(&region->header.slots_used);
    while (before < used && !atomic_compare_exchange_weak(&region->header.slots_used, &before, used))
        ;
}

static void say_who(struct region_slot *slot)
{
    atomic_store(&slot->pid, getpid());
    atomic_store(&slot->pid_namespace, member_namespace());
}

static bool join_slot(struct region *region, int file, unsigned i, struct member *member)
{
    struct region_slot *slot = &region->slots[i];
    if (!take_over(region, file, i))
        return false;
    uint64_t owner = new_owner(getpid());
    say_who(slot);
    atomic_store(&slot->owner, owner);
    *member = (struct member){(int)i, owner};
    own_process_begin();
    return true;
}

/* Each question whether an owner lives goes through all the locks of the file, and many processes begin at once: so first those
 * free slots, then a few of the others, so that those of dead processes come back even if no process ever sweeps, then
 * one that was never taken. All of them only where there is none. */
bool member_join(struct region *region, int file, struct member *member)
{
    unsigned used = atomic_load(&region->header.slots_used);
    if (used > REGION_SLOTS)
        used = REGION_SLOTS;
    for (unsigned i = 0; i < used; i++) {
        if (!atomic_load(&region->slots[i].owner) && join_slot(region, file, i, member))
            return true;
    }
    for (unsigned i = 0; i < LOOKS_FOR_DEAD && i < used; i++) {
        if (join_slot(region, file, ((unsigned)getpid() + i) % used, member))
            return true;
    }
    for (unsigned i = used; i < REGION_SLOTS; i++) {
        raise_slots_used(region, i + 1);
        if (join_slot(region, file, i, member))
            return true;
    }
    for (unsigned i = 0; i < REGION_SLOTS; i++) {
        if (join_slot(region, file, i, member))
            return true;
    }
    return false;
}

void member_leave(int file, struct member *member)
{
    if (member->slot >= 0)
        lock_byte(file, F_UNLCK, (unsigned)member->slot);
    member->slot = -1;
}

bool member_holds(const struct region *region, const struct member *member)
{
    return member->slot >= 0 && atomic_load(&region->slots[member->slot].owner) == member->owner && own_process();
}

unsigned members_sweep(struct region *region, int file, const struct member *self)
{
    unsigned used = atomic_load(&region->header.slots_used), cleared = 0;
    for (unsigned i = 0; i < used && i < REGION_SLOTS; i++) {
        if (!atomic_load(&region->slots[i].owner) || (int)i == self->slot || !take_over(region, file, i))
            continue;
        lock_byte(file, F_UNLCK, i);
        cleared++;
    }
    return cleared;
}

/* --- memory that several hold ------------------------------------------------------------------------------------- */

int member_share(struct region *region, int file, uint64_t key)
{
    unsigned used = atomic_load(&region->header.slots_used), shared = 0;
    for (unsigned i = 0; i < used && i < REGION_SLOTS; i++)
        shared += atomic_load(&region->slots[i].shared) != 0;
    for (unsigned i = 0; i < REGION_SLOTS && shared < SHARED_MOST; i++) {
        if (atomic_load(&region->slots[i].owner))
            continue;
        raise_slots_used(region, i + 1);
        if (!take_over(region, file, i))
            continue;
        say_who(&region->slots[i]);
        atomic_store(&region->slots[i].owner, key);
        holds[i] = 1;
        return (int)i;
    }
    return -1;
}

void member_share_open(struct region *region, int file, int slot)
{
    atomic_store(&region->slots[slot].shared, 1);
    lock_byte(file, F_RDLCK, (unsigned)slot);
}

static bool is_memory(const struct region_slot *slot, uint64_t key)
{
    return atomic_load(&slot->shared) && atomic_load(&slot->owner) == key;
}

/* Of two that take hold and clear, one gets the lock; what was cleared meanwhile is no longer this memory's. */
int member_share_hold(struct region *region, int file, uint64_t key)
{
    unsigned used = atomic_load(&region->header.slots_used);
    for (unsigned i = 0; i < used && i < REGION_SLOTS; i++) {
        struct region_slot *slot = &region->slots[i];
        if (!is_memory(slot, key) || (!holds[i] && !lock_byte(file, F_RDLCK, i)))
            continue;
        if (holds[i] || is_memory(slot, key)) {
            if (!holds[i]++)
                say_who(slot);
            return (int)i;
        }
        lock_byte(file, F_UNLCK, i);
    }
    return -1;
}

bool member_share_is_last(int slot) { return holds[slot] == 1; }

void member_share_leave(struct region *region, int file, int slot)
{
    unsigned i = (unsigned)slot;
    if (!holds[i] || --holds[i])
        return;
    if (!atomic_load(&region->slots[i].shared))
        clear(region, i); /* no other process has seen it */
    lock_byte(file, F_UNLCK, i);
    /* Its last owner is this process, which lives: what it had of it in the driver is gone. */
    if (!member_alive(file, i, NULL) && lock_byte(file, F_WRLCK, i)) {
        if (atomic_load(&region->slots[i].shared))
            clear(region, i);
        lock_byte(file, F_UNLCK, i);
    }
}

void member_share_forget(void)
{
    for (unsigned i = 0; i < REGION_SLOTS; i++)
        holds[i] = 0;
}
