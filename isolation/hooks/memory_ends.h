/* What ends together with something else, from one hooks' file to another. */
#ifndef ISOLATION_MEMORY_ENDS_H
#define ISOLATION_MEMORY_ENDS_H

#include "driver/driver.h"

/* The context that memory belongs to which is made now: the current one, or the primary one of a green context. NULL: none. */
CUcontext context_with_memory(void);

/* The context is gone in the driver: so is its memory. */
void linear_end_context(CUcontext context);
void arrays_end_context(CUcontext context);
void opened_end_context(CUcontext context);

/* Charges so many bytes of imported memory whose size nobody knew, before they are mapped. */
CUresult physical_pay(CUmemGenericAllocationHandle handle, size_t bytes);

/* cuMemFreeAsync, which takes plain memory too. `waited_for` is the stream by a handle that means the same everywhere. */
CUresult linear_free_async(CUresult (*free_async)(CUdeviceptr, CUstream), CUdeviceptr address, CUstream stream,
                           CUstream waited_for);

/* Charges what memory pools and graphs' memory have now, which changes whenever streams get on: after every wait, where
 * something was freed before it. */
void pools_settle(void);
/* The same after a wait for everything: of what was freed before the wait began (pools_freed() then) nothing is left to look for. */
uint64_t pools_freed(void);
void pools_settle_done(uint64_t freed_before);
void graph_memory_settle(void);

/* Of memory that the program frees in order with a stream, or that may be a pool's (`pieces` of it): settle at the next chance. */
void pools_note_freed(unsigned pieces);

/* GPU of a location that an allocation names (driver/gpus.h), or LOCATION_HOST. */
enum { LOCATION_HOST = -2 };
CUresult gpu_of_location(const CUmemLocation *location, int *gpu);

#endif
