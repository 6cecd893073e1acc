/* Memory that several processes of the container may hold. It is charged to none of them but to a slot of its own in the usage file, which lasts
 * until the last of them has let go of it or is dead. */
#ifndef ISOLATION_MEMORY_SHARED_H
#define ISOLATION_MEMORY_SHARED_H

#include "files/members.h"
#include "memory/holdings.h"
#include "process/container.h"

/* Charges it, whatever is left of the limit: this process holds it, and gives back what it was charged for it itself. -1: there is no slot,
 * so it stays charged to this process. */
int shared_begin(int gpu, uint64_t bytes, uint64_t key);

/* Takes hold of memory that some process of the container holds; -1: none does. */
int shared_hold(uint64_t key);

/* Ends one hold, once no descriptor of this process keeps the memory any more. */
void shared_leave(int slot);

/* By which key it is known. */
uint64_t shared_key(int slot);

/* The process's own slot is taken and left, and those of the dead are cleared, with the mutex of this memory's slots: the locks of the file keep
 * processes apart, but not the threads of one. slots_sweep also lets go of what descriptors kept, and do no longer. Returns of how many slots. */
bool slot_join(const struct container *here, struct member *self);
void slot_leave(const struct container *here, struct member *self);
unsigned slots_sweep(const struct container *here, const struct member *self);

#endif
