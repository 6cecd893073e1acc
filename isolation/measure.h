/* What is used of a GPU by the driver's own accounting. */
#ifndef ISOLATION_MEASURE_H
#define ISOLATION_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

/* Opens the management library that lies beside the driver's: tens of milliseconds on a real driver. False: it is not there, and what
 * follows answers false. Each measure_open is followed by one measure_close. */
bool measure_open(void);
void measure_close(void);

/* What this process has. False: it is not in the driver's list. */
bool measure_own_bytes(const char *uuid, uint64_t *bytes);

/* What all processes have together, others' containers included. */
bool measure_all_bytes(const char *uuid, uint64_t *bytes);

#endif
