/* Reading a description file. */
#ifndef FAKEGPU_DESCRIPTION_READING_H
#define FAKEGPU_DESCRIPTION_READING_H

#include "description/description.h"

/* Reads `size` bytes of `text`; `name` is what messages call the file.
 *
 * Returns true and fills `result`, or returns false and writes one line without its end into
 * `message` ("NAME:LINE: KEY: problem; what to do"). Keeps no pointer to its arguments. */
bool description_read(const char *text, size_t size, const char *name, struct description *result,
                      char message[MESSAGE_MAX]);

/* How GPUs `a` and `b` reach each other: as the file says, else by their NUMA nodes. Never PATH_UNSAID. */
enum path description_path(const struct description *description, uint32_t a, uint32_t b);

#endif
