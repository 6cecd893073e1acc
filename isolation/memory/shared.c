#include "memory/shared.h"

#include "files/account.h"
#include "memory/tags.h"
#include "process/fork_mutex.h"

/* Slots that this process would have left, but for its descriptors; how many, so that there is next to nothing to do where there are none. */
static bool carried[REGION_SLOTS];
static unsigned carried_count;

static void forget_all(void)
{
    member_share_forget();
    for (unsigned i = 0; i < REGION_SLOTS; i++)
        carried[i] = false;
    carried_count = 0;
}
MUTEX_ACROSS_FORK(mutex, forget_all)

int shared_begin(int gpu, uint64_t bytes, uint64_t key)
{
    const struct container *here = container_here();
    if (!here || gpu < 0)
        return -1;
    pthread_mutex_lock(&mutex);
    int slot = member_share(here->region, here->file, key);
    if (slot >= 0 && account_take(here->region, (unsigned)gpu, (unsigned)slot, units_of(bytes), UINT64_MAX)) {
        member_share_open(here->region, here->file, slot);
    } else if (slot >= 0) {
        member_share_leave(here->region, here->file, slot);
        slot = -1;
    }
    pthread_mutex_unlock(&mutex);
    return slot;
}

int shared_hold(uint64_t key)
{
    const struct container *here = container_here();
    if (!here)
        return -1;
    pthread_mutex_lock(&mutex);
    int slot = member_share_hold(here->region, here->file, key);
    if (slot >= 0 && carried[slot]) {
        carried[slot] = false; /* it is held by more than the descriptor again */
        carried_count--;
        member_share_leave(here->region, here->file, slot);
    }
    pthread_mutex_unlock(&mutex);
    return slot;
}

uint64_t shared_key(int slot)
{
    return atomic_load(&container_here()->region->slots[slot].owner);
}

void shared_leave(int slot)
{
    const struct container *here = container_here();
    if (!here)
        return;
    pthread_mutex_lock(&mutex);
    if (!carried[slot] && member_share_is_last(slot) && tag_is_carried(shared_key(slot))) {
        carried[slot] = true;
        carried_count++;
    } else {
        member_share_leave(here->region, here->file, slot);
    }
    pthread_mutex_unlock(&mutex);
}

/* With the mutex. */
static unsigned settle(const struct container *here)
{
    unsigned left = 0;
    for (int i = 0; carried_count && i < REGION_SLOTS; i++) {
        if (!carried[i] || tag_is_carried(shared_key(i)))
            continue;
        carried[i] = false;
        carried_count--;
        left++;
        member_share_leave(here->region, here->file, i);
    }
    return left;
}

bool slot_join(const struct container *here, struct member *self)
{
    pthread_mutex_lock(&mutex);
    bool joined = member_join(here->region, here->file, self);
    pthread_mutex_unlock(&mutex);
    return joined;
}

void slot_leave(const struct container *here, struct member *self)
{
    pthread_mutex_lock(&mutex);
    member_leave(here->file, self);
    pthread_mutex_unlock(&mutex);
}

unsigned slots_sweep(const struct container *here, const struct member *self)
{
    pthread_mutex_lock(&mutex);
    unsigned left = members_sweep(here->region, here->file, self) + settle(here);
    pthread_mutex_unlock(&mutex);
    return left;
}
