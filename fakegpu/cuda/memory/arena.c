#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "cuda/memory/arena.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Free room of a chunk, by rising offset; two gaps never touch. */
struct gap {
    struct gap *next;
    size_t offset, size;
};

struct chunk {
    struct chunk *next;
    unsigned char *bytes;
    size_t size, used;
    bool backed; /* by memory that was taken of the GPU */
    struct gap *gaps;
    struct shared_file shared_file;
};

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static unsigned char *map_pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Nothing is behind the pages until they are touched, so a GPU of 141 GiB fits any machine. */
void *backing_map(size_t size)
{
    unsigned char *memory = map_pages(size);
    if (!memory || (uintptr_t)memory % GRANULE_BYTES == 0)
        return memory; /* newer kernels put large pieces where large pages may be */
    munmap(memory, size);
    size_t room = size + GRANULE_BYTES;
    if (!(memory = map_pages(room)))
        return NULL;
    size_t head = (size_t)(-(uintptr_t)memory & (GRANULE_BYTES - 1));
    if (head)
        munmap(memory, head);
    munmap(memory + head + size, room - head - size);
    return memory + head;
}

void backing_unmap(void *memory, size_t size)
{
    munmap(memory, size);
}

void piece_range(const struct piece *piece, unsigned char **bytes, size_t *size)
{
    *bytes = piece->chunk ? piece->chunk->bytes : piece->bytes;
    *size = piece->chunk ? piece->chunk->size : piece->size;
}

struct shared_file *piece_shared(const struct piece *piece, struct shared_file *own)
{
    return piece->chunk ? &piece->chunk->shared_file : own;
}

static CUresult back(struct arena *arena, struct chunk *chunk)
{
    if (chunk->backed)
        return CUDA_SUCCESS;
    if (device_reserve(arena->device, chunk->size) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    chunk->backed = true;
    arena->reserved_bytes += chunk->size;
    if (arena->reserved_high_bytes < arena->reserved_bytes)
        arena->reserved_high_bytes = arena->reserved_bytes;
    return CUDA_SUCCESS;
}

CUresult arena_back(struct arena *arena, const struct piece *piece)
{
    return back(arena, piece->chunk);
}

static struct chunk *new_chunk(struct arena *arena, size_t size)
{
    if (arena->most_reserved_bytes && size > arena->most_reserved_bytes - arena->reserved_bytes)
        return NULL;
    struct chunk *chunk = malloc(sizeof *chunk);
    struct gap *gap = malloc(sizeof *gap);
    unsigned char *bytes = chunk && gap ? backing_map(size) : NULL;
    if (!bytes)
        goto refused;
    *gap = (struct gap){NULL, 0, size};
    *chunk = (struct chunk){.next = arena->chunks, .bytes = bytes, .size = size, .gaps = gap};
    if (!arena->late && back(arena, chunk) != CUDA_SUCCESS) {
        backing_unmap(bytes, size);
        goto refused;
    }
    arena->chunks = chunk;
    return chunk;
refused:
    free(chunk);
    free(gap);
    return NULL;
}

static struct gap **first_fit(struct chunk *chunk, size_t size)
{
    struct gap **link = &chunk->gaps;
    while (*link && (*link)->size < size)
        link = &(*link)->next;
    return link;
}

static void cut(struct chunk *chunk, struct gap **link, size_t size, struct piece *piece)
{
    struct gap *gap = *link;
    *piece = (struct piece){chunk, chunk->bytes + gap->offset, size};
    gap->offset += size;
    gap->size -= size;
    if (!gap->size) {
        *link = gap->next;
        free(gap);
    }
    chunk->used += size;
}

CUresult arena_take(struct arena *arena, size_t size, struct piece *piece)
{
    struct gap **link = NULL;
    struct chunk *chunk;
    if (size > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size = round_up(size, PIECE_ALIGNMENT);
    for (chunk = arena->chunks; chunk; chunk = chunk->next) {
        if (chunk->size - chunk->used >= size && *(link = first_fit(chunk, size)))
            break;
    }
    if (!chunk) {
        chunk = new_chunk(arena, size > arena->chunk_bytes ? round_up(size, GRANULE_BYTES) : arena->chunk_bytes);
        if (!chunk)
            return CUDA_ERROR_OUT_OF_MEMORY;
        link = &chunk->gaps;
    }
    cut(chunk, link, size, piece);
    arena->used_bytes += size;
    if (arena->used_high_bytes < arena->used_bytes)
        arena->used_high_bytes = arena->used_bytes;
    return CUDA_SUCCESS;
}

/* A gap that touches its neighbours grows together with them. */
void arena_give_back(struct arena *arena, const struct piece *piece)
{
    struct chunk *chunk = piece->chunk;
    size_t offset = (size_t)(piece->bytes - chunk->bytes);
    struct gap **link = &chunk->gaps, *before = NULL;
    while (*link && (*link)->offset < offset) {
        before = *link;
        link = &(*link)->next;
    }
    chunk->used -= piece->size;
    arena->used_bytes -= piece->size;
    if (before && before->offset + before->size == offset) {
        before->size += piece->size;
        struct gap *after = before->next;
        if (after && after->offset == before->offset + before->size) {
            before->size += after->size;
            before->next = after->next;
            free(after);
        }
    } else if (*link && (*link)->offset == offset + piece->size) {
        (*link)->offset = offset;
        (*link)->size += piece->size;
    } else {
        struct gap *gap = malloc(sizeof *gap);
        if (!gap)
            return; /* the piece stays lost until its chunk goes */
        *gap = (struct gap){*link, offset, piece->size};
        *link = gap;
    }
}

static void free_chunk(struct arena *arena, struct chunk *chunk)
{
    while (chunk->gaps) {
        struct gap *gap = chunk->gaps;
        chunk->gaps = gap->next;
        free(gap);
    }
    shared_forget(arena->device, &chunk->shared_file);
    backing_unmap(chunk->bytes, chunk->size);
    if (chunk->backed) {
        device_release(arena->device, chunk->size);
        arena->reserved_bytes -= chunk->size;
    }
    free(chunk);
}

void arena_trim(struct arena *arena, uint64_t keep_bytes)
{
    struct chunk **link = &arena->chunks;
    while (*link) {
        struct chunk *chunk = *link;
        if (chunk->used || (chunk->backed && arena->reserved_bytes <= keep_bytes)) {
            link = &chunk->next;
        } else {
            *link = chunk->next;
            free_chunk(arena, chunk);
        }
    }
}

void arena_end(struct arena *arena)
{
    while (arena->chunks) {
        struct chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        arena->used_bytes -= chunk->used;
        free_chunk(arena, chunk);
    }
}
