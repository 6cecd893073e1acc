/* The keys of the format: where each belongs, what it wants, and how its value is read. */
#ifndef FAKEGPU_DESCRIPTION_KEYS_H
#define FAKEGPU_DESCRIPTION_KEYS_H

#include "description/words.h"

/* Parts of a file, in their order. */
enum part { PART_HEADER, PART_GPU, PART_PAIRS };

enum reading { READ, READ_MALFORMED, READ_TWICE, READ_TOO_MANY, READ_NO_SUCH_GPU };

struct key {
    const char *name;
    enum part part;
    bool required;
    bool repeats; /* its reader itself refuses duplicates */
    const char *wants, *example;
    /* `gpu` is the one under way, or NULL outside of PART_GPU. */
    enum reading (*read)(const struct line *line, struct description *node, struct gpu *gpu);
};

enum { KEYS = 36 };
extern const struct key description_keys[];
extern const size_t description_key_count;

/* Values of a GPU of which the file says nothing else. */
void gpu_defaults(struct gpu *gpu, uint32_t index);

#endif
