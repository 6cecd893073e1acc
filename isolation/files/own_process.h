/* Whether memory is still that of the process that filled it: a child of fork has a copy, also one that was made by a bare system call, which
 * runs no handlers. Asked with every allocation, so it must cost next to nothing. */
#ifndef ISOLATION_FILES_OWN_PROCESS_H
#define ISOLATION_FILES_OWN_PROCESS_H

#include <stdbool.h>

/* Says that it is, from here on. One thread at a time. */
void own_process_begin(void);

/* Whether this process said so, and not a parent of it. On Linux before 4.14 a system call. */
bool own_process(void);

#endif
