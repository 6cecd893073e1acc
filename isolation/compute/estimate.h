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

/* Before that: whether such a measurement makes the kind uneven, or confirms what it is taken for. On a `visit`, or where it is not
 * `sure`, others' work may be in it, so one that differs says nothing of the kind. */
void estimate_compare(unsigned place, uint64_t amount, uint64_t time_ns, bool sure, bool visit);

/* Pieces of this kind took longer than they were taken for: it is uneven. */
void estimate_set_uneven(unsigned place);

/* Whether pieces of this kind lately took very different times: what one of them took says little of the others then, and
 * estimate_stretch takes the place of estimate_learn. */
bool estimate_uneven(unsigned place);

/* Pieces of an uneven kind were charged `charged_ns` together, and took `time_ns`; one of them was taken for `was_ns` then. */
void estimate_stretch(unsigned place, uint64_t amount, uint64_t was_ns, uint64_t time_ns, uint64_t charged_ns);

/* How many measurements confirmed what the kind is taken for, since one last did not: 0 to 255. */
unsigned estimate_trust(unsigned place);

/* Nothing is known any more (a child of fork). */
void estimates_forget(void);

#endif
