/* Changing a file that several processes read and change, without a lock file of its own. */
#ifndef FAKEGPU_NODE_REPLACING_H
#define FAKEGPU_NODE_REPLACING_H

#include <stdbool.h>
#include <stddef.h>

/* Locks the folder of a file against others that change files in it, until replacing_end. -1, with errno: it cannot be. */
int replacing_begin(const char *path);
void replacing_end(int folder);

/* Replaces the file in one step. False, with errno: it stays as it was. */
bool replacing_write(const char *path, const char *text, size_t size);

#endif
