/* A container's turn page as the arbiter sees it: memory that another may scribble over or take away at any moment. */
#ifndef ISOLATION_ARBITER_PAGE_H
#define ISOLATION_ARBITER_PAGE_H

#include "arbiter/schedule.h"
#include "files/turn.h"

/* Lets page_* survive a file that was cut off under its mapping (SIGBUS). Once, before any thread. */
void page_guard(void);

/* Maps turn page `index` of a usage file. NULL: `problem` says why (a constant string). */
struct turn_page *page_map(int directory, const char *name, unsigned index, const char **problem);
void page_unmap(struct turn_page *page);

/* What the container says at `now_ns`. False: the page is gone, or not of this version. */
bool page_read(struct turn_page *page, uint64_t now_ns, struct asked *asked);

/* Writes what it was granted, and that the arbiter lives. `wake`: those who wait shall look. False: the page is gone. */
bool page_write(struct turn_page *page, uint64_t now_ns, struct granted granted, bool wake);

/* Marks the page: no arbiter is left to grant turns. */
void page_leave(struct turn_page *page);

/* Sleeps until the container has something to say (`*seen` is what it said last), at most a second. False: nothing was
 * said, or the page is gone. */
bool page_listen(struct turn_page *page, uint32_t *seen);

/* Ends a page_listen. */
void page_disturb(struct turn_page *page);

#endif
