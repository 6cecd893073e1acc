/* What one file of memory's hooks calls of another. */
#ifndef ISOLATION_HOOKS_MEMORY_H
#define ISOLATION_HOOKS_MEMORY_H

#include "driver/driver.h"

/* The context is gone in the driver: so is its memory. */
void linear_end_context(CUcontext context);
void arrays_end_context(CUcontext context);
void opened_end_context(CUcontext context);

/* Charges so many bytes of imported memory of unknown size, before they are mapped. */
CUresult physical_pay(CUmemGenericAllocationHandle handle, size_t bytes);

/* Charges what memory pools and graphs' memory have now, which changes whenever streams get on: after every wait, where
 * something was freed before it. */
void pools_settle(void);
/* The same after a wait for everything: of what was freed before the wait began (pools_freed() then) nothing is left to look for. */
uint64_t pools_freed(void);
void pools_settle_done(uint64_t freed_before);
void graph_memory_settle(void);

#endif
