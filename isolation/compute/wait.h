/* Waiting for the container's turn. */
#ifndef ISOLATION_COMPUTE_WAIT_H
#define ISOLATION_COMPUTE_WAIT_H

#include "compute/flow.h"

/* Waits until the container may put work on the GPU, and fewer than `launches_most` lie behind the last mark that was reached; the mutex is
 * released meanwhile. Returns the time. */
uint64_t flow_wait(struct flow *flow, uint64_t now_ns, unsigned launches_most);

/* After a look: how much may be put in passing. */
void flow_allow_batch(struct flow *flow, uint64_t now_ns);

#endif
