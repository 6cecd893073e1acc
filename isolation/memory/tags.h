/* By which key the processes that share memory know it. A descriptor that the driver exported carries one along, to whomever it is sent:
 * a lock of its open file description, on bytes that exist in no file. */
#ifndef ISOLATION_MEMORY_TAGS_H
#define ISOLATION_MEMORY_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a descriptor says of the memory behind it. */
struct tag {
    uint64_t key;   /* never 0 */
    uint64_t bytes; /* whole pages; 0: nothing is charged for it */
};

/* A new key for memory that is exported by descriptors. */
uint64_t tag_new_key(void);

/* The key of memory that is known by a handle's bytes; no other memory has it. */
uint64_t tag_key_of(const void *handle, size_t size);

/* False: the system does not allow it. */
bool tag_put(int file, struct tag tag);

/* False: it has none. */
bool tag_read(int file, struct tag *tag);

/* Whether a descriptor of this process carries that key. Some microseconds for each descriptor; at once for the key of a handle. */
bool tag_is_carried(uint64_t key);

#endif
