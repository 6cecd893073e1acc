/* How long kinds of work take on the GPU, learned from the pieces that were measured. One table a process, without locks: a value that
 * two threads change at once is one of the two. */
#ifndef ISOLATION_COMPUTE_ESTIMATE_H
#define ISOLATION_COMPUTE_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* The place of a kind of work, by its key; the same until 4096 other kinds have come by. */
unsigned estimate_place(uint64_t key);

/* Nanoseconds for `amount` (bytes, or ESTIMATE_ONE for work that has no size). False: nothing is known yet. */
enum { ESTIMATE_ONE = 1024 };
#define ESTIMATE_NONE (~0u) /* no place */
bool estimate_of(unsigned place, uint64_t amount, uint64_t *time_ns);

/* One piece took so long. `sure`: it had the GPU for itself; if not, it counts only where nothing better is known. */
void estimate_learn(unsigned place, uint64_t amount, uint64_t time_ns, bool sure);

/* Nothing is known any more (a child of fork). */
void estimates_forget(void);

#endif
