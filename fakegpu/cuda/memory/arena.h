/* Device memory in pieces: chunks that are taken from the GPU whole, and parts of them handed out.
 *
 * As with the real driver, what a process holds of a GPU grows by chunks, whatever the size of the pieces. Not thread-safe
 * by itself: memory_lock is held around every call. */
#ifndef FAKEGPU_CUDA_MEMORY_ARENA_H
#define FAKEGPU_CUDA_MEMORY_ARENA_H

#include "cuda/context/context.h"
#include "cuda/device/shared.h"

struct chunk;

struct arena {
    struct device *device;
    bool late;                    /* pieces have addresses at once, and take of the GPU when arena_back is called */
    size_t chunk_bytes;           /* at least; a larger piece gets a chunk of its own */
    uint64_t most_reserved_bytes; /* 0: no bound but the GPU's */
    struct chunk *chunks;
    uint64_t reserved_bytes, used_bytes, reserved_high_bytes, used_high_bytes;
};

struct piece {
    struct chunk *chunk;
    unsigned char *bytes;
    size_t size; /* rounded up to the alignment of pieces */
};

enum { PIECE_ALIGNMENT = 512 };

/* CUDA_ERROR_OUT_OF_MEMORY with nothing changed. */
CUresult arena_take(struct arena *arena, size_t size, struct piece *piece);
void arena_give_back(struct arena *arena, const struct piece *piece);

/* Late arenas: the piece's chunk takes of the GPU now, if it does not yet. CUDA_ERROR_OUT_OF_MEMORY with nothing changed. */
CUresult arena_back(struct arena *arena, const struct piece *piece);

/* Returns empty chunks to the GPU until no more than `keep_bytes` are reserved. */
void arena_trim(struct arena *arena, uint64_t keep_bytes);

/* Gives everything back, pieces in use too. */
void arena_end(struct arena *arena);

/* The whole mapping that a piece is part of, and its file: the chunk's, or `own` where the piece has no chunk. */
void piece_range(const struct piece *piece, unsigned char **bytes, size_t *size);
struct shared_file *piece_shared(const struct piece *piece, struct shared_file *own);

/* Lazily backed memory of the process, whole pages; NULL when there is no room. */
void *backing_map(size_t size);
void backing_unmap(void *memory, size_t size);

#endif
