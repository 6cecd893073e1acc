/* Writing the MIG state of a GPU into the text of a description. */
#ifndef FAKEGPU_DESCRIPTION_WRITING_H
#define FAKEGPU_DESCRIPTION_WRITING_H

#include "description/description.h"

/* `text` with the lines `mig` and `instance` of the GPU at `index` replaced by those of `gpu`; all other lines stay as they are.
 * Returns the size that was written to `result`, which has room for `room` bytes; 0: that is too little. */
size_t description_with_instances(const char *text, size_t size, uint32_t index, const struct gpu *gpu, char *result, size_t room);

#endif
