/* The interface's names and what each means to programs of which version. */
#ifndef FAKEGPU_CUDA_ENTRY_NAMES_H
#define FAKEGPU_CUDA_ENTRY_NAMES_H

#include "cuda/context/context.h"

struct named_function {
    const char *name; /* NULL: the end of the table */
    int version;      /* of CUDA, since which the name means this variant */
    bool per_thread;  /* where the default stream is each thread's own */
    void (*symbol)(void);
};

/* Sorted by name, and by version within a name. */
extern const struct named_function named_functions[];

#endif
