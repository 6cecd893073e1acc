/* Which GPUs and MIG devices of its machine a process sees. */
#ifndef FAKEGPU_NODE_VISIBLE_H
#define FAKEGPU_NODE_VISIBLE_H

#include "description/description.h"

enum { UNKNOWN_NAME_MAX = 64 };

/* Fills `visible` with the positions of the GPUs, and hides the MIG devices that the process was not assigned. Returns how many GPUs there are. `names` are UUIDs or indices by comma, `all`, `none` or `void`;
 * `by_files`: and only what the process has the device files of. The first name that is neither is kept in `unknown`. */
uint32_t visible_choose(struct description *description, const char *names, bool by_files, uint32_t visible[GPUS_MAX],
                        char unknown[UNKNOWN_NAME_MAX]);

#endif
