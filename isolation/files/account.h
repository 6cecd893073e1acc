/* Counting a GPU's memory for one container, across processes, without a lock.
 *
 * One word per GPU holds the sum of what all processes have (`total`), so two that race can never pass the limit together:
 * one of them changes the word first and the other one sees that. A process that dies must take exactly its own part out of the
 * sum, though it may die between any two instructions; so the word also says whose the last change was, and its number among
 * those of that process:
 *
 *     total     units : 36 | slot : 10 | number : 18
 *     held      units : 36 |    0 : 10 | number : 18     of one process: what it has, as of its change `number`
 *     intent    give:1 : units : 36 ... | number : 18    the change that it is about to make
 *     applied   number                                   the last of its changes that is known to be in the total
 *
 * A change goes: write the intent; replace the total, noting before in `applied` of the slot that the old word names that its
 * change is in; write `held`, one word that takes the change and its number in together. A process that finds the owner dead
 * checks whether the pending change is in the total: either the total still names it, or the process that replaced the
 * total has noted it. Each step may be the last one, also of the process that cleans up, which follows the same steps in the dead one's name.
 *
 * Sums are in units of 256 bytes, the finest that the driver allocates: 16 TiB fit. */
#ifndef ISOLATION_FILES_ACCOUNT_H
#define ISOLATION_FILES_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "files/region.h"

enum { UNIT_BYTES = 256 };

/* Bytes in units, rounded up; more than the word holds counts as the most that it holds. */
uint64_t units_of(uint64_t bytes);

/* Takes `units` of GPU `gpu` for the slot, whose lock the caller must hold, unless the sum would pass `limit_units`. One thread of
 * the process at a time. */
bool account_take(struct region *region, unsigned gpu, unsigned slot, uint64_t units, uint64_t limit_units);

/* Gives back; never more than the slot has. As above. */
void account_give(struct region *region, unsigned gpu, unsigned slot, uint64_t units);

/* Gives back all that the slot has, of every GPU, after finishing what its dead owner had begun. The caller holds the
 * slot's lock. */
void account_clear(struct region *region, unsigned slot);

/* What one slot has at a moment, and how many changes lie between two moments, as far as the number shows (2^18 look like none). */
struct account_reading { uint64_t units, number; };
struct account_reading account_read(const struct region *region, unsigned gpu, unsigned slot);
uint64_t account_changes(struct account_reading earlier, struct account_reading later);

/* What all processes have together, and what one has. The latter is exact only for one's own slot. */
uint64_t account_total_units(const struct region *region, unsigned gpu);
uint64_t account_held_units(const struct region *region, unsigned gpu, unsigned slot);

#endif
