/* Memory in a file beside the GPU's state, which several processes may hold.
 *
 * As in the real driver it lives until its last holder is gone, and one process at a time is charged for it: its maker, and when
 * that one gives it up or dies, another one that holds it. (NVIDIA's open kernel modules, mem.c: of the objects that share
 * memory one is the owner, which counts for its process; when it goes, the next one is.) What is only lent, so that a descriptor alone keeps it,
 * stays charged to who gave it up last. */
#ifndef FAKEGPU_CUDA_DEVICE_SHARED_H
#define FAKEGPU_CUDA_DEVICE_SHARED_H

#include "cuda/device/device.h"

/* How this process holds it; number 0: not at all. */
struct shared_file {
    uint64_t number; /* of the memory, unique on the GPU */
    int file;        /* an open file description of this holder's own */
};

enum { SHARED_PATH_BYTES = 4608 };

/* Where files of a device lie, and how they begin: DIRECTORY/<uuid>.ipc- */
void shared_prefix(const struct device *device, char *path, size_t size);

/* Path of the file while the owner of `slot` is charged for it. */
bool shared_path(const struct device *device, unsigned slot, uint64_t generation, uint64_t number,
                 char path[SHARED_PATH_BYTES]);

/* Makes it and holds it; what it takes of the GPU was taken by the caller, whom it is charged to. False: errno says why. */
bool shared_make(const struct device *device, size_t size, struct shared_file *made);

/* Undoes what no other process has seen. */
void shared_unmake(const struct device *device, struct shared_file *made);

/* A descriptor for another process, which keeps the memory; -1 with errno. */
int shared_lend(const struct shared_file *shared);

/* Holds the memory of an open file, which becomes the holder's: it is closed with it. `device` is one that this process is attached to. */
CUresult shared_join(const struct device *device, int file, struct shared_file *joined);

/* Holds it no longer. Returns how many bytes of the GPU the caller is to give back: 0 where another process was charged. */
uint64_t shared_leave(const struct device *device, struct shared_file *shared);

/* The same where the caller gives back what it takes of the GPU anyway: from here on a process that has it open is charged, and none opens it any more. */
void shared_forget(const struct device *device, struct shared_file *shared);

/* Bytes to give back of what only descriptors kept, and no longer do. */
uint64_t shared_sweep(const struct device *device);

/* Of a slot whose owner is dead: its memory is charged to those who hold it still. */
void shared_clear_slot(const struct device *device, unsigned slot);

#endif
