/* What the driver has taken for the container's processes beyond what they were charged: code, variables of modules, streams and whatever else
 * comes without being asked for. So the container counts as having the larger of what was charged and what the driver's list says that its
 * processes have.
 *
 * What is beyond is in no account: it is found by comparing, now and then, and each process finds it for all of them. So nothing of it
 * must be taken back when a process dies. Processes that the driver's list lacks are left out: those of another pid namespace within the
 * container, and all where the driver does not list any. */
#ifndef ISOLATION_MEMORY_BEYOND_H
#define ISOLATION_MEMORY_BEYOND_H

#include "process/container.h"

/* Why it is asked, which says how old the last comparison may be. */
enum beyond_why {
    BEYOND_TAKING,   /* before an allocation: as old as it takes for comparisons to be a hundredth of the time, 20 ms at least */
    BEYOND_REPORTING,  /* for a report: a millisecond */
    BEYOND_REFUSING, /* before an allocation is refused: now */
};

/* In bytes, of one GPU. Never more than was true at a moment since the call before last began; less while processes are about to take what
 * they were charged. */
uint64_t beyond_bytes(const struct container *container, int gpu, enum beyond_why why);

/* The process did what is known to take memory implicitly: the next comparison is due at once. */
void beyond_expect(void);

/* This process's account, in its slot, has risen to so many units. Called with each rise, once it is made. */
void beyond_note_held(int gpu, unsigned slot, uint64_t units);

#endif
