/* What the hooks of everything that takes time on the GPU are made of. */
#ifndef ISOLATION_HOOKS_WORK_H
#define ISOLATION_HOOKS_WORK_H

#include "compute/compute.h"
#include "driver/driver.h"
#include "driver/real.h"

/* One function: `parameters` and `arguments` in parentheses; the rest as compute_enter has it. */
#define LIMITED(symbol, parameters, arguments, work, kind, stream)                                         \
    CUresult symbol parameters;                                                                            \
    EXPORT CUresult symbol parameters                                                                      \
    {                                                                                                      \
        struct piece piece_;                                                                               \
        CUresult refused_ = compute_enter(&piece_, work, kind, stream);                                    \
        return refused_ != CUDA_SUCCESS ? refused_ : compute_leave(&piece_, REAL(symbol) arguments);       \
    }

/* A function without a stream of its own, and its variant for the per-thread default stream. */
#define LIMITED_DEFAULT(symbol, parameters, arguments, work, kind)                                         \
    LIMITED(symbol, parameters, arguments, work, kind, NULL)                                               \
    LIMITED(symbol##_ptds, parameters, arguments, work, kind, CU_STREAM_PER_THREAD)

/* The same with a parameter `stream`. */
#define LIMITED_STREAM(symbol, parameters, arguments, work, kind)                                          \
    LIMITED(symbol, parameters, arguments, work, kind, stream)                                             \
    LIMITED(symbol##_ptsz, parameters, arguments, work, kind, stream ? stream : CU_STREAM_PER_THREAD)

/* Kinds of copies and fills: sizes of one power of two take alike long a byte. */
static inline struct kind sized(uint64_t kind, uint64_t bytes)
{
    return (struct kind){.key = kind << 8 | (uint64_t)(bytes ? 64 - __builtin_clzll(bytes) : 0), .size = bytes};
}

#endif
