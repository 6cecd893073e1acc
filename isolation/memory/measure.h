/* What is used of a GPU by the driver's own accounting. Safe from any thread. */
#ifndef ISOLATION_MEMORY_MEASURE_H
#define ISOLATION_MEMORY_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

/* Opens the management library that lies beside the driver's: tens of milliseconds on a real driver, once in a process. False: it is not there,
 * and what follows answers false. */
bool measure_open(void);

/* A process by its number in this pid namespace, and what it has. */
struct measured { uint32_t pid; uint64_t bytes; };
enum { MEASURED_MAX = 512 };

/* Those that the driver lists with their memory, each once. False: it does not say. */
bool measure_each(const char *uuid, struct measured processes[MEASURED_MAX], unsigned *count);

/* What this process has. False: it is not in the driver's list. */
bool measure_own_bytes(const char *uuid, uint64_t *bytes);

/* What all processes have together, others' containers included. */
bool measure_all_bytes(const char *uuid, uint64_t *bytes);

#endif
